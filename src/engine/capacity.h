// Memory by arithmetic: what a configuration needs, before anything is allocated.
#pragma once

#include <cstdint>
#include <string>

#include "engine/batch_memory.h"
#include "model/kv_store.h"
#include "model/model.h"

namespace octet::engine {

// The bytes of a running engine, line by line. What `serve` prints at start. The last two lines are
// of devices with memory of their own.
struct Ledger {
  int64_t mapped_weights = 0;  // of the checkpoint, shared with the page cache
  int64_t owned_weights = 0;   // scales, norms, tables, weights quantized at load; all, on a GPU
  int64_t arena = 0;           // activations of one step
  int64_t steps = 0;           // inputs and results of a step
  int64_t kv = 0;
  int64_t kv_tokens = 0;  // tokens that the KV cache holds
  int64_t workspace = 0;
  int64_t reserve = 0;  // for kernels and graphs, which the driver loads as they come
  int64_t total() const {
    return mapped_weights + owned_weights + arena + steps + kv + workspace + reserve;
  }
};
std::string to_string(const Ledger& ledger);  // a few aligned lines

// Bytes of activations that one step within `limits` takes, measured by a dry run of the model.
size_t arena_bytes(const model::Model& model, const ops::KvLayout& layout,
                   const StepLimits& limits);

// All of a ledger but the KV cache, for an engine with these limits on this device.
Ledger ledger_of(const model::Model& model, const ops::BackendInfo& info,
                 const ops::KvLayout& layout, const StepLimits& limits, int32_t max_logprobs);

// How many blocks the KV cache gets.
struct KvDemand {
  const ops::KvLayout& layout;
  int64_t max_model_len = 0, max_num_seqs = 0;
  int64_t asked_bytes = 0;  // --kv-cache-memory; 0 = by arithmetic
  int64_t most_bytes = 0;   // that it may take by arithmetic; 0 = not known
};
// What was asked for, or else what max_num_seqs sequences of max_model_len tokens can use, but at
// most `most_bytes`, and at least one such sequence. Error if what was asked for holds no block.
int64_t kv_blocks(const KvDemand& demand);

// Bytes that the KV cache may take by arithmetic; 0 = not known.
// Host memory has other users too: a quarter of what is free. A device with memory of its own gives
// the share `utilization` of all of it, less what others have taken and what `rest` counts (all but
// the KV cache). Error if that leaves nothing.
int64_t kv_budget(const ops::BackendInfo& info, double utilization, const Ledger& rest);
// Error if a KV cache of `kv` bytes and `arena` bytes of activations are more than was free on the
// host when the backend was made. Nothing for a device with memory of its own.
void require_host_memory(const ops::BackendInfo& info, int64_t kv, int64_t arena);

// The cache's element type under --kv-cache-dtype, for attention in FP8 or not and activations of
// that type.
DType kv_dtype(model::KvType type, bool fp8_attention, DType activation);

// The cache of a model of that type and block size, with fixed scales where the checkpoint brings
// them. `unit_scale`: MLA's FP8 latent without scales, for comparison.
ops::KvLayout kv_layout_of(const model::Model& model, model::KvType type, int64_t block_tokens,
                           bool unit_scale = false);

// Weight bytes that are mapped rather than owned, where the device computes on the host's memory.
int64_t mapped_weight_bytes(const model::Model& model);

}  // namespace octet::engine
