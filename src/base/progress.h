// A progress bar for long work: share, rate and time left on one line of stderr. Silent where
// stderr is no terminal.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace octet {

class Progress {
 public:
  enum class Unit { items, bytes, tokens };

  // `total` in `unit`s; 0 = unknown, which shows no share and no time left.
  Progress(std::string label, int64_t total, Unit unit = Unit::items);

  // Ends the line. The bar stays at what was reached.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Adds `amount` to what is done. Thread-safe; redraws at most ten times a second.
  void advance(int64_t amount);

  // The line for `done` after `seconds`: "quantize [=====>    ]  52%  1.2 GiB/s  0:07 left".
  std::string line(int64_t done, double seconds) const;

 private:
  void draw();

  const std::string label_;
  const int64_t total_;
  const Unit unit_;
  const bool shown_;
  const std::chrono::steady_clock::time_point start_;
  std::atomic<int64_t> done_{0};
  std::atomic<int64_t> next_draw_ms_{0};
  std::mutex drawing_;
};

}  // namespace octet
