// Llama 2, 3 and 3.x, and what is built like them (models-numerics A.3; HF
// llama/modeling_llama.py).
#include <fmt/format.h>

#include <cmath>

#include "model/families/families.h"

namespace octet::model {
namespace {

// The calibrated KV scales of a layer, if the checkpoint has both.
void bind_kv_scales(Binder& binder, const std::string& attention, KvScales& scales) {
  const std::string k = attention + ".k_scale", v = attention + ".v_scale";
  if (!binder.has(k, {1}) || !binder.has(v, {1})) return;
  const int64_t heads = std::get<Gqa>(binder.config().attention).kv_heads;
  scales.k.push_back(binder.fp32_broadcast(k, heads));
  scales.v.push_back(binder.fp32_broadcast(v, heads));
}

}  // namespace

DecoderWeights bind_llama(Binder& binder) {
  const ModelConfig& config = binder.config();
  const auto& shape = std::get<Gqa>(config.attention);
  const auto& ffn = std::get<DenseFfn>(config.ffn);
  const int64_t q_dim = shape.heads * shape.head_dim, kv_dim = shape.kv_heads * shape.head_dim;

  DecoderWeights weights;
  bind_ends(binder, weights);
  weights.attention_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}", i);
    const std::string attention = layer + ".self_attn";
    weights.layers.push_back({
        .attention_norm =
            binder.norm(layer + ".input_layernorm.weight", config.hidden, config.norm_eps),
        .ffn_norm =
            binder.norm(layer + ".post_attention_layernorm.weight", config.hidden, config.norm_eps),
        .attention = GqaLayer{.q = binder.linear(attention + ".q_proj", Role::attn_in, q_dim,
                                                 config.hidden, shape.bias),
                              .k = binder.linear(attention + ".k_proj", Role::attn_in, kv_dim,
                                                 config.hidden, shape.bias),
                              .v = binder.linear(attention + ".v_proj", Role::attn_in, kv_dim,
                                                 config.hidden, shape.bias),
                              .o = binder.linear(attention + ".o_proj", Role::attn_out,
                                                 config.hidden, q_dim, shape.bias),
                              .shape = shape},
        .ffn = binder.gated_mlp(layer + ".mlp", Role::mlp_gate_up, Role::mlp_down, config.hidden,
                                ffn.intermediate, ffn.bias),
    });
    bind_kv_scales(binder, attention, weights.kv_scales);
  }
  // Scales for some layers only would be worse than none: a wrong scale is silent.
  if (static_cast<int64_t>(weights.kv_scales.k.size()) != config.layers) {
    if (!weights.kv_scales.k.empty()) {
      weights.notices.push_back(fmt::format(
          "KV scales are stored for {} of {} layers: ignored, block groups choose the scales",
          weights.kv_scales.k.size(), config.layers));
    }
    weights.kv_scales = {};
  }
  return weights;
}

}  // namespace octet::model
