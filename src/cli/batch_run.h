// Runs one batch of sequences by hand through the engine's Runner, as the engine itself would:
// steps in flight, tokens sampled on the device and taken from there, decode steps replayed as
// graphs. For benchmarks.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/hash.h"
#include "engine/capacity.h"
#include "engine/runner.h"

namespace octet::cli {

struct BatchRunOptions {
  int64_t sequences = 1;
  int64_t max_tokens = 0;  // of each sequence
  int64_t chunk = 512;     // most prompt tokens of one step
  int64_t block_tokens = 16;
  model::KvType kv_type = model::KvType::automatic;
  bool unit_kv_scale = false;
};

class BatchRun {
 public:
  BatchRun(const model::Model& model, ops::Backend& backend, const BatchRunOptions& options);

  // Forgets all tokens.
  void reset();
  // Forgets every sequence's tokens from `tokens` on, which all of them have.
  void rewind(int64_t tokens);
  // Computes the prompt in `count` sequences from `first` on, which are empty, and samples the
  // first token of each, greedily. Returns when all is done.
  void prefill(int64_t first, int64_t count, std::span<const int32_t> prompt);
  // One token for every sequence, `steps` times. Appends the time between the ends of steps, in
  // microseconds. Returns when all is done.
  void decode(int64_t steps, std::vector<double>& step_us);

  int64_t tokens(int64_t sequence) const { return lengths_[static_cast<size_t>(sequence)]; }
  // Of all tokens sampled since the last reset, with their log-probabilities.
  uint64_t hash() const { return hash_.value(); }
  // Bytes of the KV cache that a decode step reads now.
  double kv_step_bytes() const;
  const engine::Ledger& ledger() const { return ledger_; }

 private:
  sched::Slice slice(int64_t sequence, std::span<const int32_t> tokens, bool sample) const;
  void launch(sched::StepPlan plan);
  void wait();

  BatchRunOptions options_;
  int64_t blocks_per_sequence_;
  engine::StepLimits limits_;
  model::KvStore kv_;
  engine::Runner runner_;
  engine::Ledger ledger_;
  int depth_;
  engine::Sampling greedy_;
  std::vector<int64_t> lengths_;  // tokens in the cache, steps in flight included
  std::vector<int32_t> last_;     // the newest token of each sequence that the host knows
  std::deque<sched::StepPlan> in_flight_;
  sched::StepId next_step_ = 1;
  Hash64 hash_;
};

}  // namespace octet::cli
