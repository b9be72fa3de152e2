#include "model/config_overrides.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace octet::model {
namespace {

constexpr const char* kFlag = "--hf-overrides";

// Keys that a config.json may lack and that are read where they are there.
constexpr std::string_view kOptional[] = {"rope_parameters",
                                          "rope_scaling",
                                          "rope_theta",
                                          "head_dim",
                                          "max_window_layers",
                                          "original_max_position_embeddings",
                                          "layer_types",
                                          "num_key_value_heads",
                                          "partial_rotary_factor",
                                          "sliding_window",
                                          "tie_word_embeddings",
                                          "use_sliding_window",
                                          "bos_token_id",
                                          "eos_token_id",
                                          "quantization_config",
                                          "octet"};

Json parse_object(const std::string& text, const char* flag) {
  Json json = parse_json(text, flag);
  if (json.is_object()) return json;
  throw Error({.what = "not a JSON object",
               .where = flag,
               .value = text,
               .accepted = R"(an object such as {"rope_theta": 1000000})"});
}

void set_once(Json& overrides, const char* key, Json value, const char* flag) {
  if (overrides.contains(key)) {
    throw Error({.what = fmt::format("{} is given twice", key),
                 .where = fmt::format("{} and {}", kFlag, flag),
                 .value = dump_json(value),
                 .fix = "leave one of the two out"});
  }
  overrides[key] = std::move(value);
}

bool is_object(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_object();
}

// rope_parameters as rope_theta and rope_scaling, so that either can be replaced alone.
void to_old_dialect(Json& config) {
  if (!is_object(config, "rope_parameters")) return;
  Json scaling = std::move(config["rope_parameters"]);
  config.erase("rope_parameters");
  if (scaling.contains("rope_theta")) {
    config["rope_theta"] = scaling["rope_theta"];
    scaling.erase("rope_theta");
  }
  config["rope_scaling"] = std::move(scaling);
}

void prepare_rope(Json& config, const Json& overrides) {
  if (overrides.contains("rope_parameters")) {
    if (is_object(config, "rope_parameters") && config["rope_parameters"].contains("rope_theta")) {
      config["rope_theta"] = config["rope_parameters"]["rope_theta"];
    }
    config.erase("rope_scaling");
    if (is_object(overrides, "rope_parameters") &&
        overrides["rope_parameters"].contains("rope_theta")) {
      config.erase("rope_theta");
    }
    return;
  }
  if (!overrides.contains("rope_scaling") && !overrides.contains("rope_theta")) return;
  to_old_dialect(config);
  if (overrides.contains("rope_theta") && is_object(config, "rope_scaling")) {
    config["rope_scaling"].erase("rope_theta");  // some files have it in both places
  }
}

}  // namespace

std::string merge_overrides(const std::string& hf_overrides, const std::string& rope_scaling,
                            double rope_theta) {
  Json overrides = hf_overrides.empty() ? Json::object() : parse_object(hf_overrides, kFlag);
  if (!rope_scaling.empty()) {
    set_once(overrides, "rope_scaling", parse_object(rope_scaling, "--rope-scaling"),
             "--rope-scaling");
  }
  if (rope_theta != 0) set_once(overrides, "rope_theta", rope_theta, "--rope-theta");
  return overrides.empty() ? "" : dump_json(overrides);
}

void override_config(Json& config, const std::string& overrides) {
  const Json changes = parse_object(overrides, kFlag);
  if (!config.is_object()) return;  // whoever reads it says so
  for (const auto& [key, value] : changes.items()) {
    if (config.contains(key) || std::ranges::find(kOptional, key) != std::end(kOptional)) continue;
    throw Error({.what = "config.json has no such key, so it would change nothing",
                 .where = kFlag,
                 .value = key,
                 .accepted = "keys of config.json, and those of RoPE and of sliding windows"});
  }
  prepare_rope(config, changes);
  config.update(changes);
}

}  // namespace octet::model
