// NVIDIA ModelOpt, in its two forms (conventions.md A(4)):
//
//   hf_quant_config.json   {"producer": {..}, "quantization": {"quant_algo", "kv_cache_quant_algo",
//                           "exclude_modules"}}
//   config.json            {"quant_method": "modelopt", "quant_algo", "ignore", "kv_cache_scheme"}
#include <algorithm>
#include <cctype>

#include "model/quant/dialects.h"

namespace octet::model {
namespace {

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

// Weights per block alone (`_PB_WO`): what multiplies them is not said to be quantized, and stays
// in 16 bits.
LinearFormat read_algorithm(const JsonView& view) {
  const QuantFormat tensor{Code::e4m3, grids::tensor, ScaleType::f32};
  const QuantFormat row{Code::e4m3, grids::row, ScaleType::f32};
  const QuantFormat mx{Code::e4m3, {1, 32}, ScaleType::e8m0};
  const std::string algorithm = upper(view.get<std::string>("quant_algo"));
  if (algorithm == "FP8") return {tensor, tensor, InputScale::calibrated};
  if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN") return {row, row, InputScale::dynamic};
  if (algorithm == "FP8_PB_WO") {
    return {QuantFormat{Code::e4m3, grids::block128, ScaleType::f32}, std::nullopt};
  }
  if (algorithm == "MXFP8") return {mx, mx, InputScale::dynamic};
  view.refuse("quant_algo", "this algorithm of ModelOpt is not supported",
              "FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, MXFP8");
}

// "FP8", or an object like that of compressed-tensors.
void read_cache(const JsonView& view, std::string_view key, QuantConfig& config) {
  if (!view.has(key)) return;
  const Json& value = view.json()[std::string(key)];
  bool fp8 = false;
  if (value.is_object()) {
    const JsonView scheme = view.at(key);
    fp8 = scheme.get<int64_t>("num_bits", 8) == 8 &&
          scheme.get<std::string>("type", "float") == "float";
  } else {
    fp8 = upper(view.get<std::string>(key)) == "FP8";
  }
  config.notes.emplace_back(fp8 ? kKvNote
                                : "the KV cache is asked for in a type that Octet does not have: "
                                  "--kv-cache-dtype chooses another");
}

}  // namespace

QuantConfig read_modelopt_config(const JsonView& whole) {
  const auto nested = whole.find("quantization");
  const JsonView& view = nested ? *nested : whole;
  QuantConfig config;
  config.schema = QuantConfig::Schema::modelopt;
  config.names = QuantConfig::Names::wildcards;
  config.groups.push_back({.format = read_algorithm(view)});
  config.scale_suffix = ".weight_scale";
  for (const char* key : {"exclude_modules", "ignore"}) {
    for (std::string& name : read_names(view, key)) config.ignored.push_back(std::move(name));
  }
  for (const char* key : {"kv_cache_quant_algo", "kv_cache_scheme"}) read_cache(view, key, config);
  return config;
}

}  // namespace octet::model
