#include "model/config_rope.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>

namespace octet::model {
namespace {

using Kind = RopeConfig::Kind;

struct KindRow {
  std::string_view name;
  Kind kind;
};

constexpr KindRow kKinds[] = {
    {"default", Kind::plain}, {"linear", Kind::linear},
    {"ntk", Kind::ntk},       {"dynamic", Kind::dynamic},
    {"yarn", Kind::yarn},     {"deepseek_yarn", Kind::yarn},  // vLLM's name for it
    {"llama3", Kind::llama3}, {"longrope", Kind::longrope},
    {"su", Kind::longrope},  // Phi-3's first name for it
};
constexpr const char* kSupported = "default, linear, ntk, dynamic, yarn, llama3, longrope";

// What a scaling's dictionary may hold. Another key would be a part of the scaling that is passed
// over in silence.
constexpr std::string_view kKeys[] = {
    "rope_type",        "type",           "rope_theta",
    "factor",           "mscale",         "original_max_position_embeddings",
    "low_freq_factor",  "mscale_all_dim", "partial_rotary_factor",
    "high_freq_factor", "beta_fast",      "attention_factor",
    "short_factor",     "beta_slow",      "truncate",
    "long_factor",      "finetuned"};  // the last says how the model was made

Kind kind_named(const JsonView& scaling, const char* key) {
  const auto name = scaling.get<std::string>(key);
  for (const KindRow& row : kKinds) {
    if (row.name == name) return row.kind;
  }
  scaling.refuse(key, "unknown RoPE scaling", kSupported);
}

Kind read_kind(const JsonView& scaling) {
  const bool now = scaling.has("rope_type"), before = scaling.has("type");
  if (!now && !before) {
    if (!scaling.has("factor")) return Kind::plain;
    scaling.refuse("rope_type", "the RoPE scaling has a factor but no type", kSupported);
  }
  const Kind kind = kind_named(scaling, now ? "rope_type" : "type");
  if (now && before && kind_named(scaling, "type") != kind) {
    scaling.refuse("type", "rope_type and type name two different scalings",
                   scaling.get<std::string>("rope_type"));
  }
  return kind;
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

// A dictionary for each type of layer ("full_attention") instead of one: as good as one if all say
// the same. No family of Octet has layers that rotate differently.
JsonView of_all_layers(const JsonView& scaling) {
  const Json& all = scaling.json();
  if (std::ranges::none_of(all, &Json::is_object)) return scaling;
  for (const auto& [name, value] : all.items()) {
    if (!value.is_object()) {
      scaling.refuse(name, "RoPE parameters of single layers and of the model", "one of the two");
    }
    if (value != *all.begin()) {
      scaling.refuse(name, "RoPE parameters that differ by layer are not supported",
                     fmt::format("{}, as {}", dump_json(*all.begin()), all.begin().key()));
    }
  }
  return scaling.at(all.begin().key());
}

// The scaling's dictionary, if there is one.
std::optional<JsonView> find_scaling(const JsonView& config) {
  const auto now = config.find("rope_parameters"), before = config.find("rope_scaling");
  if (!now && !before) return std::nullopt;
  const JsonView scaling = of_all_layers(now ? *now : *before);
  if (now && before) {
    for (const auto& [name, value] : before->json().items()) {
      if (scaling.json().value(name, Json()) == value) continue;
      before->refuse(name, "rope_scaling and rope_parameters say different things", "one of them");
    }
  }
  for (const auto& [name, value] : scaling.json().items()) {
    if (std::ranges::find(kKeys, name) != std::end(kKeys)) continue;
    scaling.refuse(name, "Octet does not know this part of the RoPE scaling",
                   fmt::format("{}", fmt::join(kKeys, ", ")));
  }
  return scaling;
}

void read_factor(const JsonView& scaling, int64_t max_positions, RopeConfig& rope) {
  // HF derives it for these two from an original length, which must then be given.
  if ((rope.kind == Kind::yarn || rope.kind == Kind::longrope) && !scaling.has("factor") &&
      rope.original_positions != max_positions) {
    rope.factor = static_cast<double>(max_positions) / static_cast<double>(rope.original_positions);
  } else {
    rope.factor = scaling.get<double>("factor");
  }
  if (!(rope.factor >= 1.0) || rope.factor > 1e6) {
    scaling.refuse("factor", "the factor of the RoPE scaling is out of range", "1 to 1e6");
  }
}

void read_attention_factor(const JsonView& scaling, RopeConfig& rope) {
  if (!scaling.has("attention_factor")) return;
  rope.attention_factor = positive(scaling, "attention_factor", 1);
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
  read_attention_factor(scaling, rope);
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    if (scaling.get<double>(key, 0) < 0) {
      scaling.refuse(key, "a field is out of range", "0 or more");
    }
  }
}

std::vector<double> read_factors(const JsonView& scaling, const char* key, int64_t pairs) {
  auto factors = scaling.get<std::vector<double>>(key);
  if (static_cast<int64_t>(factors.size()) != pairs) {
    scaling.refuse(key, fmt::format("{} factors for {} pairs", factors.size(), pairs),
                   "one for each pair of rotated dimensions");
  }
  if (std::ranges::any_of(factors, [](double f) { return !(f >= 1e-3 && f <= 1e6); })) {
    scaling.refuse(key, "a factor is out of range", "numbers from 0.001 to 1e6");
  }
  return factors;
}

void read_longrope(const JsonView& scaling, RopeConfig& rope) {
  rope.short_factor = read_factors(scaling, "short_factor", rope.dim / 2);
  rope.long_factor = read_factors(scaling, "long_factor", rope.dim / 2);
  read_attention_factor(scaling, rope);
  if (rope.original_positions < 2) {
    scaling.refuse("original_max_position_embeddings", "a field is out of range", "2 or more");
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

std::string_view name_of(Kind kind) {
  return std::ranges::find(kKinds, kind, &KindRow::kind)->name;
}

RopeConfig read_rope(const JsonView& config, int64_t dim, int64_t max_positions) {
  constexpr int64_t kMostOriginal = int64_t{1} << 31;
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
  if (dim < 4 && (rope.kind == Kind::ntk || rope.kind == Kind::dynamic)) {
    scaling->refuse(scaling->has("rope_type") ? "rope_type" : "type",
                    fmt::format("heads that rotate {} dimensions have one frequency", dim),
                    "a scaling that does not stretch the base");
  }

  // HF lets the outer field win (modeling_rope_utils.py, standardize_rope_params).
  constexpr const char* original = "original_max_position_embeddings";
  const JsonView& holder = config.has(original) ? config : *scaling;
  rope.original_positions = holder.integer(original, 1, kMostOriginal, max_positions);
  rope.original_given = holder.has(original);
  read_factor(*scaling, max_positions, rope);
  if (rope.kind == Kind::dynamic && rope.original_positions != max_positions) {
    holder.refuse(original, "dynamic scaling starts from max_position_embeddings",
                  fmt::format("{}, or none", max_positions));
  }
  if (rope.kind == Kind::yarn) read_yarn(*scaling, rope);
  if (rope.kind == Kind::longrope) read_longrope(*scaling, rope);
  if (rope.kind == Kind::llama3) {
    if (!holder.has(original)) {
      scaling->refuse(original, "a required field is missing", "the length before the scaling");
    }
    read_llama3(*scaling, rope);
  }
  return rope;
}

OrderedJson position_members(const OrderedJson& config) {
  OrderedJson members = OrderedJson::object();
  for (const char* key : {"max_position_embeddings", "rope_theta", "rope_parameters",
                          "rope_scaling", "original_max_position_embeddings"}) {
    if (config.contains(key) && !config[key].is_null()) members[key] = config[key];
  }
  return members;
}

}  // namespace octet::model
