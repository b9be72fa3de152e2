#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "model/quant/dialects.h"
#include "model/quant/ignore_list.h"
#include "model/quant_schema.h"

namespace octet::model {
namespace {

constexpr const char* kOrigin = "quantization_config";

bool fits_deepseek(const LinearFormat& format) {
  const QuantFormat& weight = *format.weight;
  return weight.code == Code::e4m3 && weight.scale == ScaleType::f32 && weight.grid.rows > 1 &&
         weight.grid.cols > 1 && format.input && format.input->code == Code::e4m3 &&
         format.input->scale != ScaleType::unit && format.when == InputScale::dynamic &&
         format.input->grid == ScaleGrid{1, weight.grid.cols};
}

}  // namespace

int32_t read_extent(const JsonView& view, std::string_view key, int64_t value) {
  if (value < 1 || value > kLargestBlock) {
    view.refuse(key, "a block size is out of range", fmt::format("1 to {}", kLargestBlock));
  }
  return static_cast<int32_t>(value);
}

ScaleGrid read_block(const JsonView& view, std::string_view key) {
  const auto extents = view.get<std::vector<int64_t>>(key);
  if (extents.size() != 2) {
    view.refuse(key, "a block size needs rows and columns", "two integers, such as [128, 128]");
  }
  return {read_extent(view, key, extents[0]), read_extent(view, key, extents[1])};
}

std::vector<std::string> read_names(const JsonView& view, std::string_view key) {
  return view.get<std::vector<std::string>>(key, {});
}

QuantConfig read_quant_config(const Json& object, const std::string& where) {
  const JsonView view(object, where);
  const auto method = view.get<std::string>("quant_method");
  if (method == "fp8") return read_fp8_config(view);
  if (method == "compressed-tensors") return read_compressed_config(view);
  if (method == "modelopt") return read_modelopt_config(view);
  if (method == "awq") return read_awq_config(view);
  if (method == "gptq") return read_gptq_config(view);
  view.refuse("quant_method", "this quantization method is not supported",
              "fp8 (DeepSeek, AutoFP8, HF), compressed-tensors, modelopt, awq, gptq");
}

QuantConfig read_modelopt_file(const Json& object, const std::string& where) {
  return read_modelopt_config(JsonView(object, where));
}

OrderedJson write_quant_config(const LinearFormat& format,
                               const std::vector<std::string>& ignored) {
  invariant(format.weight.has_value(), "write_quant_config is for quantized weights");
  if (!fits_deepseek(format)) return write_compressed_config(format, ignored);
  OrderedJson config = {
      {"quant_method", "fp8"},
      {"fmt", "e4m3"},
      {"activation_scheme", "dynamic"},
      {"weight_block_size", {format.weight->grid.rows, format.weight->grid.cols}}};
  if (format.input->scale == ScaleType::e8m0) config["scale_fmt"] = "ue8m0";
  if (!ignored.empty()) config["modules_to_not_convert"] = ignored;
  return config;
}

bool ignores(const QuantConfig& config, std::string_view module) {
  return std::ranges::any_of(config.ignored, [&](const std::string& entry) {
    return match_entry(config.names, entry, module) == Match::sure;
  });
}

bool may_ignore(const QuantConfig& config, std::string_view module) {
  return std::ranges::any_of(config.ignored, [&](const std::string& entry) {
    return match_entry(config.names, entry, module) != Match::none;
  });
}

std::vector<std::string> unmatched_ignores(const QuantConfig& config,
                                           const std::vector<std::string>& modules) {
  std::vector<std::string> unmatched;
  for (const std::string& entry : config.ignored) {
    const auto matches = [&](const std::string& module) {
      return match_entry(config.names, entry, module) != Match::none;
    };
    if (std::ranges::none_of(modules, matches)) unmatched.push_back(entry);
  }
  return unmatched;
}

std::string_view scale_suffix(const QuantConfig& config) {
  return config.scale_suffix;
}

std::vector<PolicyRow> policy_rows(const QuantConfig& config) {
  std::vector<PolicyRow> rows;
  for (const std::string& entry : config.ignored) {
    for (const std::string& glob : globs_of(config.names, entry)) {
      rows.push_back({.role = std::nullopt,
                      .name = glob,
                      .format = {},
                      .reason = fmt::format("on the checkpoint's ignore list as '{}'", entry),
                      .origin = kOrigin});
    }
  }
  // The default's exception for kv_b_proj holds for every checkpoint: its weight is stored as the
  // checkpoint says, but absorbed attention never multiplies a quantized activation by it.
  rows.push_back({.role = Role::attn_latent,
                  .name = "",
                  .format = {.weight = config.format.weight, .input = std::nullopt},
                  .reason = "as the checkpoint stores it; input 16-bit: the latent that it "
                            "multiplies is already FP8 in the cache",
                  .origin = kOrigin});
  rows.push_back({.role = std::nullopt,
                  .name = "",
                  .format = config.format,
                  .reason = "as the checkpoint stores it",
                  .origin = kOrigin});
  return rows;
}

}  // namespace octet::model
