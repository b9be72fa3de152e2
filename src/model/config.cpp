#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/json.h"
#include "base/mapped_file.h"
#include "model/config_rope.h"
#include "model/families/families.h"
#include "model/gguf/checkpoint.h"
#include "model/quant_schema.h"

namespace octet::model {
namespace {

namespace fs = std::filesystem;

// Generous bounds: they keep products of sizes inside 64 bits, and typing errors out.
constexpr int64_t kMostLayers = 10'000;
constexpr int64_t kWidest = int64_t{1} << 22;  // of any dimension of a weight but the vocabulary
constexpr int64_t kMostHeads = int64_t{1} << 14;
constexpr int64_t kWidestHead = int64_t{1} << 14;
constexpr int64_t kLargestVocab = int64_t{1} << 26;
constexpr int64_t kMostPositions = int64_t{1} << 30;
constexpr int64_t kMostExperts = int64_t{1} << 16;

const FamilyRow& find_family(const JsonView& config, const std::string& architecture) {
  std::string known;
  for (const FamilyRow& row : families()) {
    for (const std::string_view name : row.architectures) {
      if (name == architecture) return row;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
    }
  }
  config.refuse("architectures", "Octet does not know this architecture", known);
}

std::string read_architecture(const JsonView& config) {
  const auto names = config.get<std::vector<std::string>>("architectures");
  if (names.empty()) config.refuse("architectures", "the config names no architecture", "one name");
  return names.front();
}

DType read_dtype(const JsonView& config) {
  const char* key = config.has("dtype") ? "dtype" : "torch_dtype";
  auto name = config.get<std::string>(key, "bfloat16");
  if (name.starts_with("torch.")) name.erase(0, 6);
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16" || name == "half") return DType::f16;
  if (name == "float32" || name == "float") return DType::f32;
  config.refuse(key, "unknown type of the weights", "bfloat16, float16, float32");
}

// An id, or a list of them; none if absent.
std::vector<int32_t> read_token_ids(const JsonView& config, std::string_view key) {
  if (!config.has(key)) return {};
  std::vector<int> ids;
  if (config.json()[std::string(key)].is_array()) {
    ids = config.get<std::vector<int>>(key);
  } else {
    ids.push_back(config.get<int>(key));
  }
  if (std::ranges::any_of(ids, [](int id) { return id < 0; })) {
    config.refuse(key, "a token id is negative", "0 or more, or null");
  }
  return {ids.begin(), ids.end()};
}

void merge_token_ids(const std::vector<int32_t>& from, std::vector<int32_t>& into) {
  for (const int32_t id : from) {
    if (std::ranges::find(into, id) == into.end()) into.push_back(id);
  }
}

// Features that change the numbers and that no family of Octet computes.
void refuse_unsupported(const JsonView& config, int64_t max_positions) {
  const auto act = config.get<std::string>("hidden_act", "silu");
  if (act != "silu" && act != "swish") {
    config.refuse("hidden_act", "this activation function is not supported", "silu");
  }
  // A window that no position leaves is no window.
  if (config.get<bool>("use_sliding_window", true) && config.has("sliding_window") &&
      config.get<int64_t>("sliding_window") < max_positions) {
    config.refuse("sliding_window", "sliding-window attention is not supported yet",
                  fmt::format("null, or at least max_position_embeddings ({})", max_positions));
  }
  for (const std::string& type : config.get<std::vector<std::string>>("layer_types", {})) {
    if (type == "full_attention") continue;
    config.refuse("layer_types", fmt::format("layers of type '{}' are not supported yet", type),
                  "full_attention");
  }
}

int64_t width(const JsonView& config, std::string_view key) {
  return config.integer(key, 1, kWidest);
}

// What a head rotates is rotated in pairs.
void require_even(const JsonView& config, std::string_view key, int64_t value) {
  if (value % 2 == 0) return;
  config.refuse(key, fmt::format("rotary positions need an even head size, not {}", value),
                "an even number");
}

void read_llama(const JsonView& config, ModelConfig& model) {
  Gqa attention;
  attention.heads = config.integer("num_attention_heads", 1, kMostHeads);
  attention.kv_heads = config.integer("num_key_value_heads", 1, kMostHeads, attention.heads);
  if (attention.heads % attention.kv_heads != 0) {
    config.refuse("num_key_value_heads", "the KV heads do not divide the heads",
                  fmt::format("a divisor of num_attention_heads, {}", attention.heads));
  }
  if (config.has("head_dim")) {
    attention.head_dim = config.integer("head_dim", 2, kWidestHead);
  } else if (model.hidden % attention.heads == 0) {
    attention.head_dim = model.hidden / attention.heads;
  } else {
    config.refuse("head_dim", "head_dim is absent and the heads do not divide hidden_size",
                  fmt::format("head_dim, or a divisor of {} as num_attention_heads", model.hidden));
  }
  require_even(config, "head_dim", attention.head_dim);
  attention.bias = config.get<bool>("attention_bias", false);
  model.attention = attention;
  model.ffn = DenseFfn{.intermediate = width(config, "intermediate_size"),
                       .bias = config.get<bool>("mlp_bias", false)};
  model.rope = read_rope(config, attention.head_dim, model.max_positions);
}

Mla read_mla(const JsonView& config) {
  Mla mla;
  mla.heads = config.integer("num_attention_heads", 1, kMostHeads);
  // null means that there is one q_proj; HF gives an absent key the width 1536, which is a guess.
  if (!config.json().contains("q_lora_rank")) {
    config.refuse("q_lora_rank", "a required field is missing", "a width, or null for one q_proj");
  }
  mla.q_lora = config.integer("q_lora_rank", 0, kWidest, 0);
  mla.kv_lora = width(config, "kv_lora_rank");
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

MoeFfn read_moe(const JsonView& config, bool v3) {
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
  moe.intermediate = width(config, "moe_intermediate_size");
  moe.shared = config.integer("n_shared_experts", 0, kMostExperts, 0);
  moe.dense_layers = config.integer("first_k_dense_replace", 0, kMostLayers, 0);
  moe.dense_intermediate = width(config, "intermediate_size");
  moe.layer_freq = config.integer("moe_layer_freq", 1, kMostLayers, 1);
  return moe;
}

void read_deepseek(const JsonView& config, ModelConfig& model) {
  const Mla mla = read_mla(config);
  model.attention = mla;
  if (config.has("n_routed_experts")) {
    model.ffn = read_moe(config, model.architecture == "DeepseekV3ForCausalLM");
  } else {
    model.ffn = DenseFfn{.intermediate = width(config, "intermediate_size")};
  }
  model.rope = read_rope(config, mla.rope, model.max_positions);
  model.rope.interleaved = config.get<bool>("rope_interleave", true);
  model.mtp_layers = config.integer("num_nextn_predict_layers", 0, kMostLayers, 0);
}

void read_common(const JsonView& config, ModelConfig& model) {
  model.model_type = config.get<std::string>("model_type", "");
  model.layers = config.integer("num_hidden_layers", 1, kMostLayers);
  model.hidden = width(config, "hidden_size");
  model.vocab = config.integer("vocab_size", 1, kLargestVocab);
  model.max_positions = config.integer("max_position_embeddings", 1, kMostPositions);
  model.norm_eps = config.get<float>("rms_norm_eps", 1e-6f);  // HF's default for every family here
  if (!(model.norm_eps > 0) || model.norm_eps > 1) {
    config.refuse("rms_norm_eps", "a field is out of range", "more than 0, at most 1");
  }
  model.tied_embeddings = config.get<bool>("tie_word_embeddings", false);
  model.dtype = read_dtype(config);
  if (const auto bos = read_token_ids(config, "bos_token_id"); !bos.empty())
    model.bos = bos.front();
  model.eos = read_token_ids(config, "eos_token_id");
}

// compression_config is what early compressed-tensors called it.
std::optional<QuantConfig> read_quantization(const JsonView& config) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (const auto found = config.find(key)) {
      return read_quant_config(found->json(), fmt::format("{}, {}", config.file(), key));
    }
  }
  return std::nullopt;
}

}  // namespace

bool ModelConfig::is_moe_layer(int64_t layer) const {
  const auto* moe = std::get_if<MoeFfn>(&ffn);
  return moe && layer >= moe->dense_layers && layer % moe->layer_freq == 0;
}

ModelConfig parse_config(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  const JsonView config(json, where);
  ModelConfig model;
  model.architecture = read_architecture(config);
  model.family = find_family(config, model.architecture).family;
  read_common(config, model);
  refuse_unsupported(config, model.max_positions);
  switch (model.family) {
    case Family::llama:
      read_llama(config, model);
      break;
    case Family::deepseek:
      read_deepseek(config, model);
      break;
  }
  model.quant = read_quantization(config);
  return model;
}

ModelConfig read_config(const std::string& path) {
  std::error_code ignored;
  if (is_gguf(path)) {
    return parse_config(gguf_config(path), path + " as config.json");
  }
  if (!fs::is_directory(path, ignored)) {
    if (fs::path(path).extension() != ".json") {
      throw Error({.what = "not a model",
                   .where = path,
                   .value = fs::exists(path, ignored) ? "a file" : "no such file or directory",
                   .accepted = "a directory with config.json, a .json file or a .gguf file"});
    }
    return parse_config(read_text(path), path);
  }
  const fs::path file = fs::path(path) / "config.json";
  if (!fs::exists(file, ignored)) {
    throw Error({.what = "the directory holds no model",
                 .where = path,
                 .value = "no config.json",
                 .accepted = "a directory in Hugging Face layout"});
  }
  ModelConfig model = parse_config(read_text(file), file.string());
  // generation_config.json may know more ids that end a turn: Llama 3 has <|eot_id|> only there.
  const fs::path generation = fs::path(path) / "generation_config.json";
  if (fs::exists(generation, ignored)) {
    const Json json = parse_json_file(generation);
    merge_token_ids(read_token_ids(JsonView(json, generation.string()), "eos_token_id"), model.eos);
  }
  return model;
}

}  // namespace octet::model
