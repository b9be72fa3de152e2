#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "base/json.h"
#include "model/quant/dialects.h"
#include "model/quant/ignore_list.h"
#include "model/quant_schema.h"

namespace octet::model {
namespace {

constexpr const char* kOrigin = "quantization_config";

// Whether one group holds every linear, which needs no look at names.
bool holds_all(const QuantConfig& config) {
  const std::vector<std::string>& targets = config.groups.front().targets;
  return config.groups.size() == 1 &&
         (targets.empty() || std::ranges::find(targets, "Linear") != targets.end());
}

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

const QuantGroup* group_of(const QuantConfig& config, std::string_view module) {
  if (holds_all(config)) return &config.groups.front();
  const QuantGroup* found = nullptr;
  TargetMatch best;
  for (const QuantGroup& group : config.groups) {
    for (const std::string& target : group.targets) {
      const TargetMatch match = match_target(target, module);
      if (match < best) found = &group, best = match;
    }
  }
  return found;
}

std::vector<std::string> unmatched_targets(const QuantConfig& config,
                                           const std::vector<std::string>& modules) {
  std::vector<std::string> unmatched;
  for (const QuantGroup& group : config.groups) {
    if (!group.format.weight) continue;
    for (const std::string& target : group.targets) {
      const auto matches = [&](const std::string& module) {
        return match_target(target, module) < TargetMatch{};
      };
      if (std::ranges::any_of(modules, matches)) continue;
      unmatched.push_back(fmt::format("{}'s target '{}'", group.name, target));
    }
  }
  return unmatched;
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

std::vector<PolicyRow> policy_rows(const QuantConfig& config,
                                   const std::vector<std::string>& weight_only) {
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
  const auto shared = std::make_shared<const QuantConfig>(config);
  for (size_t i = 0; i < config.groups.size(); ++i) {
    const QuantGroup& group = config.groups[i];
    if (!group.format.weight) continue;
    const std::string reason = config.groups.size() == 1
                                   ? "as the checkpoint stores it"
                                   : fmt::format("as the checkpoint's {} stores it", group.name);
    std::function<bool(std::string_view)> holds;
    if (!holds_all(config)) {
      holds = [shared, i](std::string_view module) {
        return group_of(*shared, module) == &shared->groups[i];
      };
    }
    for (const std::string& name : weight_only) {
      rows.push_back({.role = std::nullopt,
                      .name = name,
                      .format = {.weight = group.format.weight, .input = std::nullopt},
                      .reason = reason + "; its input is recorded to stay 16-bit",
                      .origin = "octet.weight_only of config.json",
                      .holds = holds});
    }
    // The default's exception for kv_b_proj holds for every checkpoint: its weight is stored as the
    // checkpoint says, but absorbed attention never multiplies a quantized activation by it.
    rows.push_back({.role = Role::attn_latent,
                    .name = "",
                    .format = {.weight = group.format.weight, .input = std::nullopt},
                    .reason = reason + "; input 16-bit: the latent that it multiplies is already "
                                       "FP8 in the cache",
                    .origin = kOrigin,
                    .holds = holds});
    rows.push_back({.role = std::nullopt,
                    .name = "",
                    .format = group.format,
                    .reason = reason,
                    .origin = kOrigin,
                    .holds = holds});
  }
  return rows;
}

}  // namespace octet::model
