// The layers that decoders are made of. Each function reads weights and a normed input, enqueues
// its ops, and returns a tensor in the arena that the caller adds to the residual.
#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "model/model.h"

namespace octet::model {

struct GqaLayer {
  ops::Linear q, k, v, o;
  ops::NormWeight q_norm, k_norm;  // [head_dim], of every head; absent without shape.qk_norm
  Gqa shape;
  int64_t window = 0;  // ModelConfig::window
};

struct MlaLayer {
  ops::Linear q;  // q_proj; absent when q_a and q_b are there
  ops::Linear q_a, q_b, kv_a, kv_b, o;
  ops::NormWeight q_a_norm, kv_a_norm;
  Mla shape;
};

struct MoeLayer {
  ops::Linear router;  // FP32 logits
  Tensor router_bias;  // f32 [experts], or absent
  ops::RouterSpec spec;
  std::vector<ops::GatedMlp> experts;
  std::optional<ops::GatedMlp> shared;
};

struct DecoderLayer {
  ops::NormWeight attention_norm, ffn_norm;
  std::variant<GqaLayer, MlaLayer> attention;
  std::variant<ops::GatedMlp, MoeLayer> ffn;
};

// What all layers of a step share.
struct LayerContext {
  const Exec& exec;
  DType activation;
  const ops::RopeTable& rope;
  ops::AttentionSpec attention;
};

// An activation [rows, cols] for these consumers: quantized if one of them wants FP8 with scales
// found at run time, and plain as well if one does not (or wants another format).
ops::Activation take_activation(const LayerContext& context, int64_t rows, int64_t cols,
                                std::span<const ops::Linear* const> consumers);

// The linears that read the input of an attention layer or of an FFN, for take_activation.
std::vector<const ops::Linear*> input_consumers(const std::variant<GqaLayer, MlaLayer>& attention);
std::vector<const ops::Linear*> input_consumers(const std::variant<ops::GatedMlp, MoeLayer>& ffn);

// out [T, hidden] receives the layer's result; scratch is given back to the arena.
void run_attention(const LayerContext& context, const std::variant<GqaLayer, MlaLayer>& layer,
                   int64_t index, const ops::Activation& x, const Tensor& out);
void run_ffn(const LayerContext& context, const std::variant<ops::GatedMlp, MoeLayer>& layer,
             const ops::Activation& x, const Tensor& out);

}  // namespace octet::model
