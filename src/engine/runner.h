// Executes step plans: builds the batch, runs the model, samples on the device.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "engine/batch_memory.h"
#include "engine/step_bucket.h"
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
  // Penalties as models-numerics F.2 defines them: repetition over prompt and output, the others
  // over the output.
  float repetition_penalty = 1.0f, presence_penalty = 0.0f, frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;  // token, what is added to its logit
  std::vector<int32_t> allowed;                       // no other token is drawn; empty = any is
  std::vector<std::vector<int32_t>> bad_words;        // sequences of tokens that never appear
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

// Device memory of a runner beside its arena: inputs and results of a step.
size_t step_bytes(const StepLimits& limits, int32_t max_logprobs);

class Runner {
 public:
  // `depth` steps may be in flight. The limits' logits_rows is the most slices that sample.
  Runner(const model::Model& model, ops::Backend& backend, const model::KvStore& kv,
         const StepLimits& limits, int32_t max_logprobs, int depth);

  // On a backend with graphs: runs the usual decode steps (step_bucket.h) twice each, so that they
  // are captured, and what they take of memory is taken, before the first request. Before the first
  // launch; Fault if the device failed.
  void prepare();

  using SamplingOf = FunctionRef<const Sampling&(sched::SeqId)>;

  // Enqueues a step. Steps are waited for in the order of their launch.
  void launch(const sched::StepPlan& plan, SamplingOf sampling);
  // Waits for the oldest step in flight, and for no other. Fault if the device failed, Error if the
  // model's logits are NaN or infinite.
  StepOutput wait();

 private:
  // A step between launch and wait. Its results lie in `host`, packed (lay_out in runner.cpp).
  struct InFlight {
    Buffer host;
    sched::StepId step = 0;
    uint64_t point = 0;               // in the stream: its results are on the host
    int64_t rows = 0;                 // of logits, padding included
    int32_t top = 0;                  // log-probabilities a row
    std::vector<int32_t> sample_row;  // by slice; -1 = does not sample
    std::vector<int32_t> logprobs;    // by slice
  };

  void enqueue(InFlight& slot, std::span<const SequenceTokens> parts,
               std::span<const ops::SampleRow> samples, const std::optional<StepBucket>& bucket,
               int32_t top);
  int32_t row_of(const sched::DeviceToken& token) const;
  // The bucket of a pure decode step, where steps are replayed; else nothing.
  std::optional<StepBucket> bucket(const sched::StepPlan& plan, int32_t top) const;

  const model::Model& model_;
  ops::Backend& backend_;
  const model::KvStore& kv_;
  StepLimits limits_;
  int32_t max_logprobs_;
  Arena arena_;
  BatchMemory batch_;
  Buffer results_;  // of the step that runs, on the device; the next one takes its tokens from here
  std::vector<InFlight> slots_;
  size_t next_slot_ = 0;
  std::deque<InFlight*> in_flight_;
};

}  // namespace octet::engine
