// Writes the events of a scheduler to a file, up to a size.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "sched/event_log.h"

namespace octet::engine {

// The file is a log as sched/event_log.h says, whole events only, so that sched::replay() takes it
// however it ended: when the next event does not fit, nothing more is written. It holds the token
// ids of all prompts and outputs.
class EventRecorder {
 public:
  // Error if the file cannot be written.
  EventRecorder(const std::string& path, int64_t most_bytes);
  ~EventRecorder();
  EventRecorder(const EventRecorder&) = delete;
  EventRecorder& operator=(const EventRecorder&) = delete;

  sched::EventLog& log() { return log_; }

 private:
  void take(const std::string& line);
  void write();  // the event

  std::string path_;
  std::ofstream file_;
  int64_t left_;
  bool full_ = false;
  std::string event_;  // its lines so far
  sched::EventLog log_;
};

}  // namespace octet::engine
