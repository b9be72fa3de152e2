// What the families' readers of config.json share: bounds, and the parts that several have.
#pragma once

#include <initializer_list>
#include <string_view>

#include "base/json.h"
#include "model/config.h"

namespace octet::model {

// Generous bounds: they keep products of sizes inside 64 bits, and typing errors out.
inline constexpr int64_t kMostLayers = 10'000;
inline constexpr int64_t kWidest = int64_t{1} << 22;  // of any dimension but the vocabulary
inline constexpr int64_t kMostHeads = int64_t{1} << 14;
inline constexpr int64_t kWidestHead = int64_t{1} << 14;
inline constexpr int64_t kLargestVocab = int64_t{1} << 26;
inline constexpr int64_t kMostPositions = int64_t{1} << 30;
inline constexpr int64_t kMostExperts = int64_t{1} << 16;

// Error for a member of `object` that is not among `known`: what Octet itself recorded, in a
// version that knew more.
void require_known(const JsonView& object, std::initializer_list<std::string_view> known);

// A dimension of a weight.
int64_t read_width(const JsonView& config, std::string_view key);

// What a head rotates is rotated in pairs.
void require_even(const JsonView& config, std::string_view key, int64_t value);

// Heads, KV heads and head_dim of grouped-query attention, and its RoPE. The biases and the norms
// are the family's affair.
Gqa& read_gqa(const JsonView& config, ModelConfig& model);

// model.rope for heads that rotate `dim`; raises model.max_positions to what the scaling reaches.
void read_positions(const JsonView& config, int64_t dim, ModelConfig& model);

// --- sliding windows: model.windows from `sliding_window` and its companions ---------------------

// Of families that have none: Error where config.json asks for one that would be felt.
void refuse_window(const JsonView& config, const ModelConfig& model);
// One window for all layers; absent or null = none.
void read_window(const JsonView& config, ModelConfig& model);
// The same, but only with `use_sliding_window` (HF qwen3_moe/modeling_qwen3_moe.py).
void read_window_if_used(const JsonView& config, ModelConfig& model);
// Only with `use_sliding_window`, in the layers that `layer_types` names, or else from
// `max_window_layers` on (HF qwen2/configuration_qwen2.py).
void read_window_by_layer(const JsonView& config, ModelConfig& model);

// --- mixtures of experts -------------------------------------------------------------------------

// A router of softmax and greedy top k: `experts_key` and num_experts_per_tok.
ops::RouterSpec read_softmax_router(const JsonView& config, std::string_view experts_key);

}  // namespace octet::model
