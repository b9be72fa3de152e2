#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>

#include "base/json.h"
#include "base/mapped_file.h"
#include "model/config_overrides.h"
#include "model/config_read.h"
#include "model/families/families.h"
#include "model/gguf/checkpoint.h"
#include "model/quant_schema.h"
#include "model/recorded_calibration.h"

namespace octet::model {
namespace {

namespace fs = std::filesystem;

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
void refuse_unsupported(const JsonView& config) {
  const auto act = config.get<std::string>("hidden_act", "silu");
  if (act == "silu" || act == "swish") return;
  config.refuse("hidden_act", "this activation function is not supported", "silu");
}

void read_common(const JsonView& config, ModelConfig& model) {
  model.model_type = config.get<std::string>("model_type", "");
  model.layers = config.integer("num_hidden_layers", 1, kMostLayers);
  model.hidden = read_width(config, "hidden_size");
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

// One of `accepted`, or "" if it is absent.
std::string read_choice(const JsonView& object, std::string_view key,
                        std::initializer_list<std::string_view> accepted) {
  if (!object.has(key)) return "";
  auto value = object.get<std::string>(key);
  if (std::ranges::find(accepted, value) != accepted.end()) return value;
  object.refuse(key, "an unknown arithmetic is recorded",
                fmt::format("{}", fmt::join(accepted, ", ")));
}

RecordedArithmetic read_arithmetic(const JsonView& octet) {
  RecordedArithmetic recorded{
      .attention = read_choice(octet, "attention", {"fp8", "bf16"}),
      .kv_cache_dtype = read_choice(octet, "kv_cache_dtype",
                                    {"bf16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head",
                                     "int8_per_token_head", "int8_per_token_group"}),
      .weight_only = octet.get<std::vector<std::string>>("weight_only", {})};
  if (recorded.attention == "fp8" && !recorded.kv_cache_dtype.empty() &&
      !recorded.kv_cache_dtype.starts_with("fp8")) {
    octet.refuse("kv_cache_dtype", "FP8 attention reads an FP8 KV cache",
                 "fp8, fp8_e4m3, fp8_e5m2 or fp8_per_token_head beside \"attention\": \"fp8\"");
  }
  return recorded;
}

void read_recorded(const JsonView& config, ModelConfig& model) {
  const std::optional<JsonView> octet = config.find("octet");
  if (!octet) return;
  require_known(*octet, {"attention", "kv_cache_dtype", "weight_only", "calibration"});
  model.recorded = read_arithmetic(*octet);
  if (!model.recorded.weight_only.empty() && !model.quant) {
    octet->refuse("weight_only",
                  "no linear has codes for a weight: there is no quantization_config",
                  "a checkpoint with quantized weights, or no such list");
  }
  for (const std::string& name : model.recorded.weight_only) {
    if (name.empty()) octet->refuse("weight_only", "a name is empty", "names of linears, or globs");
  }
  read_calibration(*octet, model.rope.dim);  // a wrong one is refused by whoever reads this file
}

// Two names of two models: each has parts that the other's reader passes over. A model_type that no
// family has (a model that says it computes as another does) decides nothing.
void require_one_family(const JsonView& config, const ModelConfig& model) {
  for (const FamilyRow& row : families()) {
    const bool named =
        std::ranges::find(row.model_types, model.model_type) != row.model_types.end();
    if (row.family == model.family || !named) continue;
    config.refuse("model_type", "model_type and architectures name different models",
                  fmt::format("the model_type of {}, or the architecture of {}", model.architecture,
                              model.model_type));
  }
}

}  // namespace

bool ModelConfig::is_moe_layer(int64_t layer) const {
  const auto* moe = std::get_if<MoeFfn>(&ffn);
  return moe && moe->layers.at(static_cast<size_t>(layer));
}

int64_t ModelConfig::window(int64_t layer) const {
  return windows.empty() ? 0 : windows.at(static_cast<size_t>(layer));
}

ModelConfig parse_config(const std::string& text, const std::string& where,
                         const std::string& overrides) {
  Json json = parse_json(text, where);
  if (!overrides.empty()) override_config(json, overrides);
  const JsonView config(json, where);
  ModelConfig model;
  model.architecture = read_architecture(config);
  const FamilyRow& family = find_family(config, model.architecture);
  model.family = family.family;
  read_common(config, model);
  require_one_family(config, model);
  refuse_unsupported(config);
  family.read(config, model);
  model.quant = read_quantization(config);
  read_recorded(config, model);
  return model;
}

ModelConfig read_config(const std::string& path, const std::string& overrides) {
  std::error_code ignored, why;
  if (is_gguf(path)) {
    return parse_config(gguf_config(path), path + " as config.json", overrides);
  }
  if (!fs::is_directory(path, ignored)) {
    if (fs::path(path).extension() != ".json") {
      throw Error({.what = "not a model",
                   .where = path,
                   .value = fs::exists(path, ignored) ? "a file" : "no such file or directory",
                   .accepted = "a directory with config.json, a .json file or a .gguf file"});
    }
    return parse_config(read_text(path), path, overrides);
  }
  const fs::path file = fs::path(path) / "config.json";
  if (!fs::exists(file, why)) {
    // Of a link to itself, or a directory that may not be read, more than that it is not there.
    throw Error({.what = "the directory holds no model",
                 .where = path,
                 .value = why ? fmt::format("config.json cannot be read: {}", why.message())
                              : "no config.json",
                 .accepted = "a directory in Hugging Face layout"});
  }
  ModelConfig model = parse_config(read_text(file), file.string(), overrides);
  // ModelOpt's side file, where config.json does not say the same.
  const fs::path modelopt = fs::path(path) / "hf_quant_config.json";
  if (!model.quant && fs::exists(modelopt, ignored)) {
    model.quant = read_modelopt_file(parse_json_file(modelopt), modelopt.string());
  }
  // generation_config.json may know more ids that end a turn: Llama 3 has <|eot_id|> only there.
  const fs::path generation = fs::path(path) / "generation_config.json";
  if (fs::exists(generation, ignored)) {
    const Json json = parse_json_file(generation);
    merge_token_ids(read_token_ids(JsonView(json, generation.string()), "eos_token_id"), model.eos);
  }
  return model;
}

}  // namespace octet::model
