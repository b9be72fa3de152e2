// Everything that went into a scheduler and came out, as lines of text that can be replayed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sched/admission.h"
#include "sched/config.h"
#include "sched/sequence.h"
#include "sched/step_plan.h"

namespace octet::sched {

// One event a line, numbers in decimal, lists separated by commas, `-` for none:
//   config block_tokens=16 num_blocks=64 ... policy=fcfs
//   submit id=1 max_tokens=8 min_tokens=0 ... priority=0 score=0 salt=<hex> eos=2 stop=- prompt=5,6
//   cancel id=1
//   finish_at id=1 output=3 reason=stop
//   plan
//   apply step=1 tokens=17;-;4,5                slices are separated by `;`
// followed by what came back, indented by one space:
//    admission reason=ok prompt=2 max_tokens=8 model=32 pool=1024
//    step=1 seq=1 first=0 count=2 known=2 prompt=2 sample=1 from=- tokens=5,6 scored=0:6 blocks=0
//    emit seq=1 slice=0 tokens=17 scored=1 finish=- stop_token=- prompt=2 output=1 cached=0
class EventLog {
 public:
  using Sink = std::function<void(const std::string& line)>;  // line has no newline at its end
  explicit EventLog(Sink sink) : sink_(std::move(sink)) {}

  void config(const Config& config);
  void submit(const Request& request);
  void admission(const Admission& admission);
  void cancel(SeqId id);
  void finish_at(SeqId id, int32_t output_len, Finish reason);
  void plan();
  void planned(const StepPlan& plan);
  void apply(const StepResult& result);
  void emitted(const Emission& emission);

 private:
  Sink sink_;
};

struct ReplayReport {
  int64_t events = 0;                       // input events replayed
  std::optional<int64_t> first_difference;  // index into the lines
  std::string recorded;                     // that line as recorded, and as replayed
  std::string replayed;
  bool same() const { return !first_difference; }
};

// Feeds the recorded input events to a fresh scheduler and compares what comes back, line by line.
// Throws octet::Error naming the line that does not parse.
ReplayReport replay(std::span<const std::string> lines);

}  // namespace octet::sched
