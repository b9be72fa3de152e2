// quant_method "fp8", which three writers share: DeepSeek (blocks, `weight_scale_inv`), AutoFP8
// (one scale a tensor, `ignored_layers`) and HF's fine-grained FP8 (`modules_to_not_convert`).
#include "model/quant/dialects.h"

namespace octet::model {
namespace {

Code read_fmt(const JsonView& view) {
  const auto fmt = view.get<std::string>("fmt", "e4m3");
  if (fmt == "e4m3" || fmt == "float8_e4m3fn") return Code::e4m3;
  if (fmt == "e5m2" || fmt == "float8_e5m2") return Code::e5m2;
  view.refuse("fmt", "unknown FP8 type", "e4m3, e5m2");
}

// AutoFP8 writes full names, HF short patterns under another key. Where both stand, the looser
// reading holds for both.
void read_ignored(const JsonView& view, QuantConfig& config) {
  config.ignored = read_names(view, "modules_to_not_convert");
  config.names = config.ignored.empty() && view.has("ignored_layers") ? QuantConfig::Names::full
                                                                      : QuantConfig::Names::parts;
  for (std::string& name : read_names(view, "ignored_layers")) {
    config.ignored.push_back(std::move(name));
  }
}

// Of activations: the weights' scales are stored, and are what they are.
ScaleType read_scale_fmt(const JsonView& view) {
  if (!view.has("scale_fmt")) return ScaleType::f32;
  if (view.get<std::string>("scale_fmt") != "ue8m0") {
    view.refuse("scale_fmt", "unknown scale format", "ue8m0, or no such key");
  }
  return ScaleType::e8m0;
}

}  // namespace

QuantConfig read_fp8_config(const JsonView& view) {
  QuantConfig config;
  config.schema = QuantConfig::Schema::fp8;
  read_ignored(view, config);
  const Code type = read_fmt(view);
  const auto activations = view.get<std::string>("activation_scheme", "dynamic");
  if (activations != "dynamic" && activations != "static") {
    view.refuse("activation_scheme", "unknown activation scheme", "dynamic, static");
  }
  if (view.has("kv_cache_scheme")) config.notes.emplace_back(kKvNote);

  LinearFormat& format = config.groups.emplace_back().format;
  if (view.has("weight_block_size")) {
    if (activations != "dynamic") {
      view.refuse("activation_scheme", "block scales of weights need dynamic scales of activations",
                  "dynamic");
    }
    const ScaleGrid block = read_block(view, "weight_block_size");
    config.scale_suffix = ".weight_scale_inv";
    format.weight = QuantFormat{type, block, ScaleType::f32};
    format.input = QuantFormat{Code::e4m3, {1, block.cols}, read_scale_fmt(view)};
    return config;
  }

  config.scale_suffix = ".weight_scale";
  format.weight = QuantFormat{type, grids::tensor, ScaleType::f32};
  if (activations == "static") {
    format.input = QuantFormat{Code::e4m3, grids::tensor, ScaleType::f32};
    format.when = InputScale::calibrated;
  } else {
    // One scale a token is finer than the one a tensor that the scheme asks for, and unlike it does
    // not depend on batch mates. vLLM does the same.
    format.input = QuantFormat{Code::e4m3, grids::row, ScaleType::f32};
  }
  return config;
}

}  // namespace octet::model
