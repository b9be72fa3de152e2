#include "model/config_rope.h"

#include <fmt/format.h>

#include <optional>

namespace octet::model {
namespace {

using Kind = RopeConfig::Kind;

struct KindRow {
  std::string_view name;
  Kind kind;
  bool supported;
};

constexpr KindRow kKinds[] = {
    {"default", Kind::plain, true},
    {"linear", Kind::linear, true},
    {"ntk", Kind::ntk, true},
    {"yarn", Kind::yarn, true},
    {"deepseek_yarn", Kind::yarn, true},  // vLLM's name for it
    {"llama3", Kind::llama3, true},
    // Their frequencies depend on the length of each sequence, and cached keys with them.
    {"dynamic", Kind::dynamic, false},
    {"longrope", Kind::longrope, false},
    {"su", Kind::longrope, false},  // Phi-3's first name for it
};
constexpr const char* kSupported = "default, linear, ntk, yarn, llama3";

Kind read_kind(const JsonView& scaling) {
  const char* key = scaling.has("rope_type") ? "rope_type" : "type";
  if (!scaling.has(key)) {
    if (!scaling.has("factor")) return Kind::plain;
    scaling.refuse("rope_type", "the RoPE scaling has a factor but no type", kSupported);
  }
  const auto name = scaling.get<std::string>(key);
  for (const KindRow& row : kKinds) {
    if (row.name != name) continue;
    if (!row.supported) {
      scaling.refuse(key, "this RoPE scaling is not supported yet", kSupported);
    }
    return row.kind;
  }
  scaling.refuse(key, "unknown RoPE scaling", kSupported);
}

double positive(const JsonView& view, std::string_view key, double fallback) {
  const auto value = view.get<double>(key, fallback);
  if (!(value > 0)) view.refuse(key, "a field is out of range", "a positive number");
  return value;
}

// A wrong base gives fluent nonsense, so it is never guessed. `scaling` may hold it (transformers
// 5), or the config itself.
double read_theta(const JsonView& config, const std::optional<JsonView>& scaling) {
  constexpr const char* key = "rope_theta";
  const bool inside = scaling && scaling->has(key);
  if (!inside && !config.has(key)) {
    throw Error({.what = "rope_theta is missing",
                 .where = config.file(),
                 .value = "neither $.rope_theta nor $.rope_parameters.rope_theta",
                 .accepted = "the base that the model was trained with",
                 .fix = "add \"rope_theta\" to config.json; Llama 1 and 2 have 10000.0"});
  }
  const JsonView& holder = inside ? *scaling : config;
  const auto theta = holder.get<double>(key);
  if (inside && config.has(key) && config.get<double>(key) != theta) {
    config.refuse(key, "rope_theta is given twice, with different values",
                  fmt::format("{}, as in {}", theta, scaling->path()));
  }
  if (!(theta > 1.0) || theta > 1e15) {
    holder.refuse(key, "a field is out of range", "more than 1, at most 1e15");
  }
  return theta;
}

// The scaling's dictionary, if there is one.
std::optional<JsonView> find_scaling(const JsonView& config) {
  const char* key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  auto scaling = config.find(key);
  if (!scaling) return std::nullopt;
  for (const auto& [name, value] : scaling->json().items()) {
    if (value.is_object()) {
      scaling->refuse(name, "RoPE parameters that differ by layer are not supported yet",
                      "one set for all layers");
    }
  }
  return scaling;
}

void read_factor(const JsonView& scaling, int64_t max_positions, RopeConfig& rope) {
  if (rope.kind == Kind::yarn && !scaling.has("factor")) {
    rope.factor = static_cast<double>(max_positions) / static_cast<double>(rope.original_positions);
  } else {
    rope.factor = scaling.get<double>("factor");
  }
  if (!(rope.factor >= 1.0) || rope.factor > 1e6) {
    scaling.refuse("factor", "the factor of the RoPE scaling is out of range", "1 to 1e6");
  }
}

void read_yarn(const JsonView& scaling, RopeConfig& rope) {
  rope.beta_fast = positive(scaling, "beta_fast", 32);
  rope.beta_slow = positive(scaling, "beta_slow", 1);
  if (rope.beta_fast < rope.beta_slow) {
    scaling.refuse("beta_fast", "beta_fast is less than beta_slow",
                   fmt::format("at least {}", rope.beta_slow));
  }
  rope.mscale = scaling.get<double>("mscale", 0);
  rope.mscale_all_dim = scaling.get<double>("mscale_all_dim", 0);
  rope.truncate = scaling.get<bool>("truncate", true);
  if (scaling.has("attention_factor")) {
    rope.attention_factor = positive(scaling, "attention_factor", 1);
  }
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    if (scaling.get<double>(key, 0) < 0) {
      scaling.refuse(key, "a field is out of range", "0 or more");
    }
  }
}

void read_llama3(const JsonView& scaling, RopeConfig& rope) {
  // HF requires both: published values differ.
  rope.low_freq_factor = scaling.get<double>("low_freq_factor");
  rope.high_freq_factor = scaling.get<double>("high_freq_factor");
  if (!(rope.low_freq_factor > 0)) {
    scaling.refuse("low_freq_factor", "a field is out of range", "a positive number");
  }
  if (!(rope.high_freq_factor > rope.low_freq_factor)) {
    scaling.refuse("high_freq_factor", "a field is out of range",
                   fmt::format("more than low_freq_factor, {}", rope.low_freq_factor));
  }
}

}  // namespace

RopeConfig read_rope(const JsonView& config, int64_t dim, int64_t max_positions) {
  constexpr int64_t kMostPositions = int64_t{1} << 31;
  RopeConfig rope;
  rope.dim = dim;
  const auto scaling = find_scaling(config);
  rope.theta = read_theta(config, scaling);
  for (const JsonView* view : {&config, scaling ? &*scaling : nullptr}) {
    if (view && view->get<double>("partial_rotary_factor", 1.0) != 1.0) {
      view->refuse("partial_rotary_factor", "rotating a part of a head is not supported", "1");
    }
  }
  if (scaling) rope.kind = read_kind(*scaling);
  rope.original_positions = max_positions;
  if (rope.kind == Kind::plain) return rope;

  // HF lets the outer field win (modeling_rope_utils.py, standardize_rope_params).
  constexpr const char* original = "original_max_position_embeddings";
  const JsonView& holder = config.has(original) ? config : *scaling;
  rope.original_positions = holder.integer(original, 1, kMostPositions, max_positions);
  read_factor(*scaling, max_positions, rope);
  if (rope.kind == Kind::yarn) read_yarn(*scaling, rope);
  if (rope.kind == Kind::llama3) {
    if (!holder.has(original)) {
      scaling->refuse(original, "a required field is missing", "the length before the scaling");
    }
    read_llama3(*scaling, rope);
  }
  return rope;
}

}  // namespace octet::model
