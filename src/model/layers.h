// The layers that decoders are made of. Each function reads weights and the norm of the residual
// stream, enqueues its ops, and gives what is to be added to the stream.
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

// The norms about a layer: that of its input, and the one that reads the stream after it.
struct LayerNorms {
  const ops::NormWeight &own, &next;
};

// The norm of the stream goes through the layer, whose result is added to the stream. Scratch goes
// back to the arena.
void run_attention(const LayerContext& context, const std::variant<GqaLayer, MlaLayer>& layer,
                   int64_t index, const LayerNorms& norms, ops::ResidualStream& stream);
void run_ffn(const LayerContext& context, const std::variant<ops::GatedMlp, MoeLayer>& layer,
             const LayerNorms& norms, ops::ResidualStream& stream);

}  // namespace octet::model
