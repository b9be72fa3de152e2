#include "model/families/parts.h"

#include <fmt/format.h>

#include <cmath>

#include "model/kv_scales.h"

namespace octet::model {

GqaLayer bind_gqa(Binder& binder, const std::string& prefix, int64_t layer) {
  const ModelConfig& config = binder.config();
  const auto& shape = std::get<Gqa>(config.attention);
  const int64_t q_dim = shape.heads * shape.head_dim, kv_dim = shape.kv_heads * shape.head_dim;
  const auto project = [&](const char* name, int64_t width) {
    return binder.linear(prefix + name, Role::attn_in, width, config.hidden, shape.qkv_bias);
  };
  GqaLayer bound;
  bound.shape = shape;
  bound.window = config.window(layer);
  bound.q = project(".q_proj", q_dim);
  bound.k = project(".k_proj", kv_dim);
  bound.v = project(".v_proj", kv_dim);
  bound.o = binder.linear(prefix + ".o_proj", Role::attn_out, config.hidden, q_dim, shape.o_bias);
  if (shape.qk_norm) {
    bound.q_norm = binder.norm(prefix + ".q_norm.weight", shape.head_dim, config.norm_eps);
    bound.k_norm = binder.norm(prefix + ".k_norm.weight", shape.head_dim, config.norm_eps);
  }
  return bound;
}

MoeLayer bind_moe(Binder& binder, const std::string& prefix) {
  const int64_t hidden = binder.config().hidden;
  const auto& ffn = std::get<MoeFfn>(binder.config().ffn);
  MoeLayer layer;
  layer.spec = ffn.router;
  layer.router = binder.linear(prefix + ".gate", Role::router, ffn.router.experts, hidden);
  if (ffn.router_bias) {
    layer.router_bias = binder.fp32(prefix + ".gate.e_score_correction_bias", {ffn.router.experts});
  }
  layer.experts.reserve(static_cast<size_t>(ffn.router.experts));
  for (int64_t e = 0; e < ffn.router.experts; ++e) {
    layer.experts.push_back(binder.gated_mlp(fmt::format("{}.experts.{}", prefix, e),
                                             Role::expert_gate_up, Role::expert_down, hidden,
                                             ffn.intermediate));
  }
  if (ffn.shared > 0) {
    layer.shared = binder.gated_mlp(prefix + ".shared_experts", Role::shared_gate_up,
                                    Role::shared_down, hidden, ffn.shared * ffn.intermediate);
  }
  return layer;
}

Ffn bind_ffn(Binder& binder, const std::string& layer, int64_t index) {
  const ModelConfig& config = binder.config();
  if (config.is_moe_layer(index)) return bind_moe(binder, layer + ".mlp");
  const auto* moe = std::get_if<MoeFfn>(&config.ffn);
  const DenseFfn dense =
      moe ? DenseFfn{.intermediate = moe->dense_intermediate} : std::get<DenseFfn>(config.ffn);
  return binder.gated_mlp(layer + ".mlp", Role::mlp_gate_up, Role::mlp_down, config.hidden,
                          dense.intermediate, dense.bias);
}

DecoderWeights bind_gqa_decoder(Binder& binder, Ffn (*ffn)(Binder&, const std::string&, int64_t)) {
  const ModelConfig& config = binder.config();
  DecoderWeights weights;
  bind_ends(binder, weights);
  const auto& shape = std::get<Gqa>(config.attention);
  weights.attention_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  KvScaleBinder kv_scales(binder);
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}", i);
    const std::string attention = layer + ".self_attn";
    weights.layers.push_back({
        .attention_norm =
            binder.norm(layer + ".input_layernorm.weight", config.hidden, config.norm_eps),
        .ffn_norm =
            binder.norm(layer + ".post_attention_layernorm.weight", config.hidden, config.norm_eps),
        .attention = bind_gqa(binder, attention, i),
        .ffn = ffn(binder, layer, i),
    });
    kv_scales.bind(attention, shape.kv_heads, shape.head_dim);
  }
  weights.kv_scales = kv_scales.finish(weights.notices);
  return weights;
}

}  // namespace octet::model
