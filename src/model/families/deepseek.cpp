// DeepSeek V2, V2-Lite, V3 and R1: multi-head latent attention and a mixture of experts
// (models-numerics A.6, A.7; HF deepseek_v3/modular_deepseek_v3.py; DeepSeek-V3 README_WEIGHTS.md).
#include <fmt/format.h>

#include <cmath>

#include "model/config_read.h"
#include "model/families/families.h"
#include "model/families/parts.h"
#include "model/kv_scales.h"

namespace octet::model {
namespace {

// HF builds the norms inside MLA with the class's default, whatever rms_norm_eps says.
constexpr float kLatentNormEps = 1e-6f;

Mla read_mla(const JsonView& config) {
  Mla mla;
  mla.heads = config.integer("num_attention_heads", 1, kMostHeads);
  // null means that there is one q_proj; HF gives an absent key the width 1536, which is a guess.
  if (!config.json().contains("q_lora_rank")) {
    config.refuse("q_lora_rank", "a required field is missing", "a width, or null for one q_proj");
  }
  mla.q_lora = config.integer("q_lora_rank", 0, kWidest, 0);
  mla.kv_lora = read_width(config, "kv_lora_rank");
  mla.nope = config.integer("qk_nope_head_dim", 1, kWidestHead);
  mla.rope = config.integer("qk_rope_head_dim", 2, kWidestHead);
  mla.v = config.integer("v_head_dim", 1, kWidestHead);
  // `head_dim`, if written, is qk_rope_head_dim (transformers 5) and says nothing about q, k or v.
  require_even(config, "qk_rope_head_dim", mla.rope);
  if (config.get<bool>("attention_bias", false)) {
    config.refuse("attention_bias", "biases in latent attention are not supported", "false");
  }
  return mla;
}

// DeepSeek-V3 has one router; its code refuses others. The fields of groups and weights are
// required: HF's defaults are those of one model.
void read_router_v3(const JsonView& config, ops::RouterSpec& router) {
  if (config.get<std::string>("scoring_func", "sigmoid") != "sigmoid") {
    config.refuse("scoring_func", "DeepSeek-V3 routes by sigmoid only", "sigmoid");
  }
  if (config.get<std::string>("topk_method", "noaux_tc") != "noaux_tc") {
    config.refuse("topk_method", "DeepSeek-V3 routes by noaux_tc only", "noaux_tc");
  }
  router.scoring = ops::RouterSpec::Scoring::sigmoid;
  router.method = ops::RouterSpec::Method::noaux_tc;
  router.groups = static_cast<int>(config.integer("n_group", 1, router.experts));
  router.top_groups = static_cast<int>(config.integer("topk_group", 1, router.groups));
  router.normalize = config.get<bool>("norm_topk_prob");
  router.scaling = config.get<float>("routed_scaling_factor");
}

void read_router_v2(const JsonView& config, ops::RouterSpec& router) {
  if (config.get<std::string>("scoring_func", "softmax") != "softmax") {
    config.refuse("scoring_func", "DeepSeek-V2 routes by softmax only", "softmax");
  }
  router.scoring = ops::RouterSpec::Scoring::softmax;
  const auto method = config.get<std::string>("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    router.method = ops::RouterSpec::Method::group_limited_greedy;
    router.groups = static_cast<int>(config.integer("n_group", 1, router.experts));
    router.top_groups = static_cast<int>(config.integer("topk_group", 1, router.groups));
  } else if (method == "greedy") {
    router.method = ops::RouterSpec::Method::greedy;  // n_group and topk_group have no effect
  } else {
    config.refuse("topk_method", "DeepSeek-V2 does not route this way",
                  "greedy, group_limited_greedy");
  }
  // DeepSeek's code normalises or scales, never both. (HF does not read norm_topk_prob here; every
  // published V2 has it false.)
  router.normalize = config.get<bool>("norm_topk_prob", false) && router.top_k > 1;
  router.scaling = router.normalize ? 1.0f : config.get<float>("routed_scaling_factor", 1.0f);
}

void check_router(const JsonView& config, const ops::RouterSpec& router) {
  if (router.experts % router.groups != 0) {
    config.refuse("n_group", "the groups do not divide the experts",
                  fmt::format("a divisor of n_routed_experts, {}", router.experts));
  }
  const int group = router.experts / router.groups;
  if (router.method == ops::RouterSpec::Method::noaux_tc && group < 2) {
    config.refuse("n_group", "a group counts by its two best experts", "groups of at least two");
  }
  if (router.top_k > router.top_groups * group) {
    config.refuse("num_experts_per_tok", "a token chooses more experts than its groups hold",
                  fmt::format("at most {}", router.top_groups * group));
  }
  if (!(router.scaling > 0)) {
    config.refuse("routed_scaling_factor", "a field is out of range", "a positive number");
  }
}

// Layer i is a mixture iff i >= first_k_dense_replace and moe_layer_freq divides i.
std::vector<bool> read_moe_layers(const JsonView& config, int64_t layers) {
  const int64_t dense = config.integer("first_k_dense_replace", 0, kMostLayers, 0);
  const int64_t step = config.integer("moe_layer_freq", 1, kMostLayers, 1);
  std::vector<bool> mixture;
  for (int64_t i = 0; i < layers; ++i) mixture.push_back(i >= dense && i % step == 0);
  return mixture;
}

MoeFfn read_moe(const JsonView& config, int64_t layers, bool v3) {
  MoeFfn moe;
  ops::RouterSpec& router = moe.router;
  router.experts = static_cast<int>(config.integer("n_routed_experts", 1, kMostExperts));
  router.top_k = static_cast<int>(config.integer("num_experts_per_tok", 1, router.experts));
  if (v3) {
    read_router_v3(config, router);
  } else {
    read_router_v2(config, router);
  }
  check_router(config, router);
  moe.router_bias = router.method == ops::RouterSpec::Method::noaux_tc;
  moe.intermediate = read_width(config, "moe_intermediate_size");
  moe.shared = config.integer("n_shared_experts", 0, kMostExperts, 0);
  moe.layers = read_moe_layers(config, layers);
  moe.dense_intermediate = read_width(config, "intermediate_size");
  return moe;
}

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

void read_deepseek(const JsonView& config, ModelConfig& model) {
  const Mla mla = read_mla(config);
  model.attention = mla;
  read_positions(config, mla.rope, model);
  model.rope.interleaved = config.get<bool>("rope_interleave", true);
  refuse_window(config, model);
  if (config.has("n_routed_experts")) {
    model.ffn = read_moe(config, model.layers, model.architecture == "DeepseekV3ForCausalLM");
  } else {
    model.ffn = DenseFfn{.intermediate = read_width(config, "intermediate_size")};
  }
  model.mtp_layers = config.integer("num_nextn_predict_layers", 0, kMostLayers, 0);
}

DecoderWeights bind_deepseek(Binder& binder) {
  const ModelConfig& config = binder.config();
  DecoderWeights weights;
  bind_ends(binder, weights);
  weights.attention_scale = attention_scale(config);
  KvScaleBinder kv_scales(binder);
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}", i);
    DecoderLayer bound;
    bound.attention_norm =
        binder.norm(layer + ".input_layernorm.weight", config.hidden, config.norm_eps);
    bound.ffn_norm =
        binder.norm(layer + ".post_attention_layernorm.weight", config.hidden, config.norm_eps);
    bound.attention = bind_mla(binder, layer + ".self_attn");
    bound.ffn = bind_ffn(binder, layer, i);
    weights.layers.push_back(std::move(bound));
    kv_scales.bind_latent(layer + ".self_attn", std::get<Mla>(config.attention).kv_lora);
  }
  weights.kv_scales = kv_scales.finish(weights.notices);
  if (config.mtp_layers > 0) {
    weights.notices.push_back(
        fmt::format("{} multi-token-prediction layer(s) after layer {} are not loaded",
                    config.mtp_layers, config.layers - 1));
  }
  return weights;
}

}  // namespace octet::model
