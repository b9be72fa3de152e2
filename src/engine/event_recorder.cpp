#include "engine/event_recorder.h"

#include "base/error.h"
#include "base/log.h"

namespace octet::engine {

EventRecorder::EventRecorder(const std::string& path, int64_t most_bytes)
    : path_(path),
      file_(path, std::ios::binary | std::ios::trunc),
      left_(most_bytes),
      log_([this](const std::string& line) { take(line); }) {
  if (!file_) {
    throw Error({.what = "the file cannot be written",
                 .where = "--record-events",
                 .value = path,
                 .fix = "name a file in a directory that exists and may be written"});
  }
}

EventRecorder::~EventRecorder() {
  write();
}

// A line that is not indented begins an event.
void EventRecorder::take(const std::string& line) {
  if (full_) return;
  if (!line.starts_with(' ')) write();
  event_ += line;
  event_ += '\n';
}

void EventRecorder::write() {
  if (full_ || event_.empty()) return;
  left_ -= static_cast<int64_t>(event_.size());
  if (left_ >= 0) file_ << event_ << std::flush;
  event_.clear();
  if (left_ >= 0 && file_) return;
  full_ = true;
  log::warning("{} takes no more events: {}", path_,
               left_ < 0 ? "it has reached its size" : "writing failed");
}

}  // namespace octet::engine
