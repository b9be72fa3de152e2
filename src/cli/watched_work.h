// Long work of a verb that writes a checkpoint: a bar on the terminal, and Ctrl-C between two
// tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/progress.h"
#include "cli/signals.h"

namespace octet::cli {

// Told how many bytes or tokens are done, and of how many; throws Interrupted if a signal has come.
// Signals are held back from the moment it is made, since what is half written must go before we
// do.
class WatchedWork {
 public:
  explicit WatchedWork(std::string label, Progress::Unit unit = Progress::Unit::bytes)
      : label_(std::move(label)), unit_(unit) {}

  void operator()(int64_t done, int64_t total) {
    if (!bar_) bar_.emplace(label_, total, unit_);
    bar_->advance(done - shown_);
    shown_ = done;
    signals_.check();
  }
  // Ends the bar's line, so that a report may follow.
  void end() { bar_.reset(); }

 private:
  const std::string label_;
  const Progress::Unit unit_;
  const HeldSignals signals_;
  std::optional<Progress> bar_;
  int64_t shown_ = 0;
};

}  // namespace octet::cli
