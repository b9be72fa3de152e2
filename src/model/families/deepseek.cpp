// DeepSeek V2, V2-Lite, V3 and R1: multi-head latent attention and a mixture of experts
// (models-numerics A.6, A.7; HF deepseek_v3/modular_deepseek_v3.py; DeepSeek-V3 README_WEIGHTS.md).
#include <fmt/format.h>

#include <cmath>

#include "model/families/families.h"

namespace octet::model {
namespace {

// HF builds the norms inside MLA with the class's default, whatever rms_norm_eps says.
constexpr float kLatentNormEps = 1e-6f;

MlaLayer bind_mla(Binder& binder, const std::string& prefix) {
  const int64_t hidden = binder.config().hidden;
  const Mla& s = std::get<Mla>(binder.config().attention);
  const int64_t q_dim = s.heads * (s.nope + s.rope);
  MlaLayer layer;
  layer.shape = s;
  if (s.q_lora == 0) {
    layer.q = binder.linear(prefix + ".q_proj", Role::attn_in, q_dim, hidden);
  } else {
    layer.q_a = binder.linear(prefix + ".q_a_proj", Role::attn_in, s.q_lora, hidden);
    layer.q_a_norm = binder.norm(prefix + ".q_a_layernorm.weight", s.q_lora, kLatentNormEps);
    layer.q_b = binder.linear(prefix + ".q_b_proj", Role::attn_in, q_dim, s.q_lora);
  }
  layer.kv_a =
      binder.linear(prefix + ".kv_a_proj_with_mqa", Role::attn_in, s.kv_lora + s.rope, hidden);
  layer.kv_a_norm = binder.norm(prefix + ".kv_a_layernorm.weight", s.kv_lora, kLatentNormEps);
  layer.kv_b =
      binder.linear(prefix + ".kv_b_proj", Role::attn_latent, s.heads * (s.nope + s.v), s.kv_lora);
  layer.o = binder.linear(prefix + ".o_proj", Role::attn_out, hidden, s.heads * s.v);
  return layer;
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

// 1 / sqrt(head dim), times YaRN's temperature squared where the config asks for it.
float attention_scale(const ModelConfig& config) {
  const Mla& s = std::get<Mla>(config.attention);
  double scale = 1.0 / std::sqrt(static_cast<double>(s.nope + s.rope));
  if (config.rope.kind == RopeConfig::Kind::yarn && config.rope.mscale_all_dim != 0.0) {
    const double mscale = yarn_mscale(config.rope.factor, config.rope.mscale_all_dim);
    scale *= mscale * mscale;
  }
  return static_cast<float>(scale);
}

}  // namespace

DecoderWeights bind_deepseek(Binder& binder) {
  const ModelConfig& config = binder.config();
  const auto* moe = std::get_if<MoeFfn>(&config.ffn);
  DecoderWeights weights;
  bind_ends(binder, weights);
  weights.attention_scale = attention_scale(config);
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}", i);
    DecoderLayer bound;
    bound.attention_norm =
        binder.norm(layer + ".input_layernorm.weight", config.hidden, config.norm_eps);
    bound.ffn_norm =
        binder.norm(layer + ".post_attention_layernorm.weight", config.hidden, config.norm_eps);
    bound.attention = bind_mla(binder, layer + ".self_attn");
    if (config.is_moe_layer(i)) {
      bound.ffn = bind_moe(binder, layer + ".mlp");
    } else {
      const int64_t width =
          moe ? moe->dense_intermediate : std::get<DenseFfn>(config.ffn).intermediate;
      bound.ffn =
          binder.gated_mlp(layer + ".mlp", Role::mlp_gate_up, Role::mlp_down, config.hidden, width);
    }
    weights.layers.push_back(std::move(bound));
  }
  if (config.mtp_layers > 0) {
    weights.notices.push_back(
        fmt::format("{} multi-token-prediction layer(s) after layer {} are not loaded",
                    config.mtp_layers, config.layers - 1));
  }
  return weights;
}

}  // namespace octet::model
