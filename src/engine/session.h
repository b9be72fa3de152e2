// Runs sequences by hand, without scheduler or thread: what evaluation, benchmarks and golden tests
// use. The model and the operations are those of the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/batch_memory.h"
#include "model/kv_store.h"
#include "model/model.h"

namespace octet::engine {

struct SessionOptions {
  int64_t sequences = 1;
  int64_t max_tokens = 2048;  // of each sequence
  int64_t chunk = 256;        // most tokens of one step; longer inputs are cut
  int64_t logits_rows = 0;    // most rows of logits of one step; 0 = chunk
  int64_t block_tokens = 16;
  model::KvType kv_type = model::KvType::automatic;
  bool unit_kv_scale = false;              // MLA: FP8 latent without scales
  std::vector<model::KvType> kv_by_layer;  // one a layer, for measurements; empty = kv_type in all
};

class Session {
 public:
  Session(const model::Model& model, ops::Backend& backend, const SessionOptions& options);

  // Forgets all tokens; memory stays, and is not cleared.
  void reset();
  // Forgets all tokens of one sequence but its first `length`, of at most as many as it has.
  void truncate(int64_t sequence, int64_t length);
  int64_t length(int64_t sequence) const { return lengths_[static_cast<size_t>(sequence)]; }

  // Appends `tokens` to one sequence, chunk by chunk. With Wanted::all, `visit(first, logits)` is
  // called for each chunk: logits f32 [rows, vocab] of the tokens first.. on the host, valid during
  // the call. With Wanted::last only the last row of the last chunk is visited.
  void extend(int64_t sequence, std::span<const int32_t> tokens, Wanted wanted,
              FunctionRef<void(int64_t first, const Tensor& logits)> visit);
  // The same for Wanted::nothing.
  void extend(int64_t sequence, std::span<const int32_t> tokens);

  // One token for every sequence: logits f32 [sequences, vocab] on the host, valid until the next
  // call.
  Tensor decode(std::span<const int32_t> tokens);

  // From now on told what enters every layer; an empty one ends that.
  void observe(model::LayerObserver observer) { observer_ = std::move(observer); }

  const model::KvStore& kv() const { return kv_; }
  size_t arena_bytes() const { return arena_bytes_; }

 private:
  Tensor run(std::span<const SequenceTokens> parts);
  std::span<const int32_t> blocks(int64_t sequence) const;

  const model::Model& model_;
  ops::Backend& backend_;
  SessionOptions options_;
  int64_t blocks_per_sequence_;
  StepLimits limits_;
  model::KvStore kv_;
  size_t arena_bytes_;
  Arena arena_;
  BatchMemory batch_;
  Buffer host_logits_;  // on devices that the host cannot read
  std::vector<int32_t> block_ids_;
  std::vector<int64_t> lengths_;
  model::LayerObserver observer_;
};

}  // namespace octet::engine
