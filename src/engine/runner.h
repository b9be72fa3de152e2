// Executes step plans: builds the batch, runs the model, samples on the device.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/batch_memory.h"
#include "engine/edit_memory.h"
#include "engine/step_bucket.h"
#include "engine/token_rules.h"
#include "model/kv_store.h"
#include "model/model.h"
#include "sched/step_plan.h"

namespace octet::engine {

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

// How a slice's tokens are chosen, and what is reported of them.
struct Draw {
  const Sampling& sampling;
  TokenRules* rules = nullptr;   // none: every token may be drawn
  int32_t prompt_logprobs = -1;  // best tokens to report for each prompt token that is scored
};

// What came of one slice.
struct SliceOutput {
  std::vector<SampledToken> scored;     // the slice's `scored`, in order
  std::optional<SampledToken> sampled;  // set where the slice sampled
  bool no_token = false;                // it should have, but no token was allowed
  // The model's logits for it are NaN or infinite; nothing else is set then.
  std::optional<Error> broken;
};

struct StepOutput {
  sched::StepResult result;  // no token of a slice with no_token, or that is broken
  std::vector<SliceOutput> slices;
};

// Device memory of a runner beside its arena: inputs and results of a step.
size_t step_bytes(const StepLimits& limits, int32_t max_logprobs, int64_t vocab);

class Runner {
 public:
  // `depth` steps may be in flight. The limits' logits_rows is the most slices that sample, and
  // prompt tokens that are scored.
  Runner(const model::Model& model, ops::Backend& backend, const model::KvStore& kv,
         const StepLimits& limits, int32_t max_logprobs, int depth);

  // On a backend with graphs: runs the usual decode steps (step_bucket.h) twice each, so that they
  // are captured, and what they take of memory is taken, before the first request. Before the first
  // launch; Fault if the device failed.
  void prepare();

  using DrawOf = FunctionRef<Draw(sched::SeqId)>;

  // Enqueues a step. Steps are waited for in the order of their launch.
  void launch(const sched::StepPlan& plan, DrawOf draw_of);
  // Waits for the oldest step in flight, and for no other. Fault if the device failed.
  StepOutput wait();

  // Where activations lie, if that is host memory; else nothing.
  std::span<std::byte> host_arena() const { return host_arena_; }

 private:
  // A step between launch and wait. Its results lie in `host`, packed (lay_out in runner.cpp).
  struct InFlight {
    Buffer host;
    sched::StepId step = 0;
    uint64_t point = 0;  // in the stream: its results are on the host
    int64_t rows = 0;    // of logits, padding included
    int32_t top = 0;     // log-probabilities a row
    struct Rows {
      int32_t sample = -1;  // of the token that is drawn; -1 = none is
      int32_t logprobs = -1;
      int32_t scored = 0, count = 0;  // of the prompt tokens that are scored: the first, how many
      int32_t prompt_logprobs = -1;
    };
    std::vector<Rows> rows_of;  // by slice
  };

  void enqueue(InFlight& slot, std::span<const SequenceTokens> parts,
               std::span<const ops::SampleRow> samples, std::span<const RowRules> rules,
               const std::optional<StepBucket>& bucket, int32_t top);
  void sample(const Tensor& logits, const Tensor& rows, std::span<const RowRules> rules,
              const ops::SampleResult& results);
  int32_t row_of(const sched::DeviceToken& token) const;
  // The bucket of a pure decode step, where steps are replayed; else nothing.
  std::optional<StepBucket> bucket(const sched::StepPlan& plan, int32_t top) const;

  const model::Model& model_;
  ops::Backend& backend_;
  const model::KvStore& kv_;
  StepLimits limits_;
  int32_t max_logprobs_;
  std::span<std::byte> host_arena_;
  Arena arena_;
  BatchMemory batch_;
  EditMemory edits_;
  Buffer results_;  // of the step that runs, on the device; the next one takes its tokens from here
  std::vector<InFlight> slots_;
  size_t next_slot_ = 0;
  std::deque<InFlight*> in_flight_;
};

}  // namespace octet::engine
