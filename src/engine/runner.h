// Executes step plans: builds the batch, runs the model, samples on the device.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "engine/batch_memory.h"
#include "model/kv_store.h"
#include "model/model.h"
#include "sched/step_plan.h"

namespace octet::engine {

// How the tokens of one request are drawn.
struct Sampling {
  float temperature = 0.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  uint64_t seed = 0;
  int32_t logprobs = -1;  // best tokens to report a step; -1 = no log-probabilities at all
};

struct TopToken {
  int32_t token = 0;
  float logprob = 0;
};

// One sampled token with what is known about it. The log-probabilities are of the raw logits.
struct SampledToken {
  int32_t token = 0;
  float logprob = 0;
  int32_t rank = 0;
  std::vector<TopToken> top;
};

struct StepOutput {
  sched::StepResult result;
  std::vector<std::optional<SampledToken>> sampled;  // by slice; set where the slice sampled
};

class Runner {
 public:
  // `depth` steps may be in flight. The limits' logits_rows is the most slices that sample.
  Runner(const model::Model& model, ops::Backend& backend, const model::KvStore& kv,
         const StepLimits& limits, int32_t max_logprobs, int depth);

  using SamplingOf = FunctionRef<const Sampling&(sched::SeqId)>;

  // Enqueues a step. Steps are waited for in the order of their launch.
  void launch(const sched::StepPlan& plan, SamplingOf sampling);
  // Waits for the oldest step in flight. Fault if the device failed or a logit row was all NaN.
  StepOutput wait();

  size_t arena_bytes() const { return arena_bytes_; }

 private:
  struct InFlight {
    BatchMemory batch;
    Buffer buffer;  // the sampling results on the device
    ops::SampleResult device;
    ops::SampleResult host;  // the same tensors where the host can read them
    Buffer host_buffer;
    sched::StepId step = 0;
    std::vector<int32_t> sample_row;  // by slice; -1 = does not sample
    std::vector<int32_t> logprobs;    // by slice
  };

  InFlight make_slot(const StepLimits& limits, int32_t max_logprobs);
  InFlight& slot_of(sched::StepId step);

  const model::Model& model_;
  ops::Backend& backend_;
  const model::KvStore& kv_;
  size_t arena_bytes_;
  Arena arena_;
  std::vector<std::unique_ptr<InFlight>> slots_;
  size_t next_slot_ = 0;
  std::deque<InFlight*> in_flight_;
};

}  // namespace octet::engine
