#include "model/quant_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "base/json.h"
#include "model/name_pattern.h"

namespace octet::model {
namespace {

using Schema = QuantConfig::Schema;

constexpr const char* kOrigin = "quantization_config";
constexpr int32_t kLargestBlock = 1 << 20;

int32_t block_extent(const JsonView& view, std::string_view key, int64_t value) {
  if (value < 1 || value > kLargestBlock) {
    view.refuse(key, "a block size is out of range", fmt::format("1 to {}", kLargestBlock));
  }
  return static_cast<int32_t>(value);
}

// [128, 128]
ScaleGrid read_block(const JsonView& view, std::string_view key) {
  const auto extents = view.get<std::vector<int64_t>>(key);
  if (extents.size() != 2) {
    view.refuse(key, "a block size needs rows and columns", "two integers, such as [128, 128]");
  }
  return {block_extent(view, key, extents[0]), block_extent(view, key, extents[1])};
}

std::vector<std::string> read_names(const JsonView& view, std::string_view key) {
  return view.get<std::vector<std::string>>(key, {});
}

// --- `fp8`: DeepSeek, AutoFP8 and HF's fine-grained FP8 -----------------------------------------

Fp8 read_fmt(const JsonView& view) {
  const auto fmt = view.get<std::string>("fmt", "e4m3");
  if (fmt == "e4m3" || fmt == "float8_e4m3fn") return Fp8::e4m3;
  if (fmt == "e5m2" || fmt == "float8_e5m2") return Fp8::e5m2;
  view.refuse("fmt", "unknown FP8 type", "e4m3, e5m2");
}

QuantConfig read_fp8(const JsonView& view) {
  QuantConfig config;
  config.schema = Schema::deepseek_block;
  // HF writes short patterns under one name, AutoFP8 full names under the other.
  config.ignored = read_names(view, "modules_to_not_convert");
  for (std::string& name : read_names(view, "ignored_layers")) {
    config.ignored.push_back(std::move(name));
  }
  const Fp8 type = read_fmt(view);
  const auto activations = view.get<std::string>("activation_scheme", "dynamic");
  if (activations != "dynamic" && activations != "static") {
    view.refuse("activation_scheme", "unknown activation scheme", "dynamic, static");
  }

  if (view.has("weight_block_size")) {
    if (activations != "dynamic") {
      view.refuse("activation_scheme", "block scales of weights need dynamic scales of activations",
                  "dynamic");
    }
    const ScaleGrid block = read_block(view, "weight_block_size");
    ScaleType input_scale = ScaleType::f32;
    if (view.has("scale_fmt")) {
      // Of activations: the weights' scales are stored, and are what they are.
      if (view.get<std::string>("scale_fmt") != "ue8m0") {
        view.refuse("scale_fmt", "unknown scale format", "ue8m0, or no such key");
      }
      input_scale = ScaleType::e8m0;
    }
    config.scale_suffix = ".weight_scale_inv";
    config.format.weight = QuantFormat{type, block, ScaleType::f32};
    config.format.input = QuantFormat{Fp8::e4m3, {1, block.cols}, input_scale};
    return config;
  }

  config.scale_suffix = ".weight_scale";
  config.format.weight = QuantFormat{type, grids::tensor, ScaleType::f32};
  if (activations == "static") {
    config.format.input = QuantFormat{Fp8::e4m3, grids::tensor, ScaleType::f32};
    config.format.when = InputScale::calibrated;
  } else {
    // One scale a token is finer than the one a tensor that the scheme asks for, and unlike it does
    // not depend on batch mates. vLLM does the same.
    config.format.input = QuantFormat{Fp8::e4m3, grids::row, ScaleType::f32};
  }
  if (view.has("kv_cache_scheme")) {
    config.notes.emplace_back(
        "kv_cache_scheme: stored k_scale and v_scale are used where they exist");
  }
  return config;
}

// --- compressed-tensors -------------------------------------------------------------------------

// QuantizationArgs of compressed-tensors, quantization/quant_args.py, of which only float 8 exists.
struct Args {
  std::string strategy;
  int64_t group_size = 0;
  ScaleGrid block;
  bool dynamic = false;
};

constexpr std::string_view kArgFields =
    "num_bits, type, symmetric, strategy, group_size, block_structure, dynamic, actorder, "
    "scale_dtype, zp_dtype, observer, observer_kwargs";

void check_arg_fields(const JsonView& args) {
  static constexpr std::array known = {
      "num_bits", "type",     "symmetric",   "strategy", "group_size", "block_structure",
      "dynamic",  "actorder", "scale_dtype", "zp_dtype", "observer",   "observer_kwargs"};
  for (const auto& [key, value] : args.json().items()) {
    if (std::ranges::find(known, key) == known.end()) {
      // compressed-tensors forbids them too: a field that is not understood may change the numbers.
      args.refuse(key, "unknown field of quantization arguments", std::string(kArgFields));
    }
  }
}

// "128x128" is an older spelling of [128, 128].
ScaleGrid read_block_structure(const JsonView& args) {
  constexpr const char* key = "block_structure";
  if (!args.has(key) || !args.json()[key].is_string()) return read_block(args, key);
  const auto text = args.get<std::string>(key);
  const auto format = parse_quant_format(fmt::format("e4m3[{}]f32", text));
  if (!format || format->grid.rows == 0 || format->grid.cols == 0) {
    args.refuse(key, "malformed block size", "[128, 128] or \"128x128\"");
  }
  return {block_extent(args, key, format->grid.rows), block_extent(args, key, format->grid.cols)};
}

bool read_dynamic(const JsonView& args) {
  if (args.has("dynamic") && args.json()["dynamic"].is_string()) {
    args.refuse("dynamic", "this kind of dynamic scales is not supported", "true, false");
  }
  return args.get<bool>("dynamic", false);
}

Args read_args(const JsonView& view) {
  check_arg_fields(view);
  if (view.get<int64_t>("num_bits", 8) != 8) {
    view.refuse("num_bits", "this width is not supported", "8");
  }
  if (view.get<std::string>("type", "int") != "float") {
    view.refuse("type", "this type is not supported", "float");
  }
  if (!view.get<bool>("symmetric", true)) {
    view.refuse("symmetric", "zero points are not supported", "true");
  }
  if (view.has("actorder") && view.json()["actorder"] != false &&
      view.json()["actorder"] != "weight" && view.json()["actorder"] != "static") {
    view.refuse("actorder", "reordered channels are not supported", "null");
  }
  Args args;
  args.dynamic = read_dynamic(view);
  args.group_size = view.integer("group_size", -1, kLargestBlock, 0);
  if (args.group_size == -1) args.group_size = 0;  // "no groups"
  // compressed-tensors infers a strategy that is not written.
  const char* inferred = args.group_size > 0                                           ? "group"
                         : view.has("group_size") && view.integer("group_size", -1, 0) ? "channel"
                                                                                       : "tensor";
  args.strategy = view.get<std::string>("strategy", inferred);
  if (args.strategy == "block") args.block = read_block_structure(view);
  if (args.strategy == "group" && args.group_size == 0) {
    view.refuse("group_size", "the strategy 'group' needs a group size", "a positive integer");
  }
  return args;
}

QuantFormat weight_format(const JsonView& view) {
  const Args args = read_args(view);
  if (args.dynamic) view.refuse("dynamic", "scales of weights are stored, not dynamic", "false");
  if (args.strategy == "tensor") return {Fp8::e4m3, grids::tensor, ScaleType::f32};
  if (args.strategy == "channel") return {Fp8::e4m3, grids::row, ScaleType::f32};
  if (args.strategy == "block") return {Fp8::e4m3, args.block, ScaleType::f32};
  view.refuse("strategy", "this strategy of weights is not supported", "tensor, channel, block");
}

void set_input_format(const JsonView& view, LinearFormat& format) {
  const Args args = read_args(view);
  ScaleGrid grid;
  if (args.strategy == "tensor") {
    grid = grids::tensor;
  } else if (args.strategy == "token") {
    grid = grids::row;
  } else if (args.strategy == "group") {
    grid = {1, static_cast<int32_t>(args.group_size)};
  } else {
    view.refuse("strategy", "this strategy of activations is not supported",
                "tensor, token, group");
  }
  if (!args.dynamic && args.strategy != "tensor") {
    view.refuse("dynamic", "only one scale a tensor can be stored for activations",
                "true, or the strategy 'tensor'");
  }
  format.input = QuantFormat{Fp8::e4m3, grid, ScaleType::f32};
  format.when = args.dynamic ? InputScale::dynamic : InputScale::calibrated;
}

void check_format(const JsonView& view) {
  const auto format = view.get<std::string>("format", "float-quantized");
  if (format == "float-quantized" || format == "naive-quantized") return;
  view.refuse("format", "this storage format of compressed-tensors is not supported",
              "float-quantized");
}

// What else a compressed-tensors config can say that changes what the weights mean.
void refuse_other_compressions(const JsonView& view) {
  if (const auto sparsity = view.find("sparsity_config")) {
    if (sparsity->get<std::string>("format", "dense") != "dense") {
      sparsity->refuse("format", "sparse weights are not supported", "dense");
    }
  }
  if (const auto transform = view.find("transform_config")) {
    const auto groups = transform->find("config_groups");
    if (groups && !groups->json().empty()) {
      transform->refuse("config_groups", "rotated weights (transforms) are not supported", "none");
    }
  }
}

// A config has one group, or its modules would have different formats.
JsonView the_group(const JsonView& groups, const JsonView& config) {
  if (groups.json().size() != 1) {
    config.refuse("config_groups", "Octet supports one group of modules, all alike",
                  "one group with the target \"Linear\"");
  }
  return groups.at(groups.json().begin().key());
}

QuantConfig read_compressed(const JsonView& view) {
  check_format(view);
  refuse_other_compressions(view);
  const JsonView group = the_group(view.at("config_groups"), view);
  check_format(group);
  const auto targets = group.get<std::vector<std::string>>("targets");
  if (std::ranges::find(targets, "Linear") == targets.end()) {
    group.refuse("targets", "Octet supports only groups that hold every linear layer",
                 "[\"Linear\"], with the exceptions in \"ignore\"");
  }
  if (group.has("output_activations")) {
    group.refuse("output_activations", "quantized outputs are not supported", "null");
  }

  QuantConfig config;
  config.schema = Schema::compressed_tensors;
  config.scale_suffix = ".weight_scale";
  config.format.weight = weight_format(group.at("weights"));
  if (const auto input = group.find("input_activations")) set_input_format(*input, config.format);
  config.ignored = read_names(view, "ignore");
  for (const std::string& entry : config.ignored) {
    if (!entry.starts_with("re:")) continue;
    if (const auto fault = regex_fault(entry.substr(3))) {
      view.refuse("ignore",
                  fmt::format("'{}' is not a valid regular expression: {}", entry, *fault),
                  "module names, and re: with a regular expression");
    }
  }
  if (view.has("kv_cache_scheme")) {
    config.notes.emplace_back(
        "kv_cache_scheme: stored k_scale and v_scale are used where they exist");
  }
  return config;
}

// --- writing ------------------------------------------------------------------------------------

[[noreturn]] void refuse_to_write(const QuantFormat& format, std::string_view what) {
  throw Error({.what = fmt::format("no checkpoint schema can say this format of {}", what),
               .value = to_string(format),
               .accepted = "weights e4m3[*x*]f32, e4m3[1x*]f32 or e4m3[RxC]f32; inputs one scale a "
                           "tensor, token or group"});
}

OrderedJson write_args(const QuantFormat& format, bool dynamic, bool input) {
  const std::string_view what = input ? "activations" : "weights";
  if (format.fp8 != Fp8::e4m3 || format.scale == ScaleType::unit) refuse_to_write(format, what);
  OrderedJson args = {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}};
  const auto [rows, cols] = format.grid;
  if (format.grid == grids::tensor) {
    args["strategy"] = "tensor";
  } else if (format.grid == grids::row) {
    args["strategy"] = input ? "token" : "channel";
  } else if (input && rows == 1) {
    args["strategy"] = "group";
    args["group_size"] = cols;
  } else if (!input && rows > 1 && cols > 1) {
    args["strategy"] = "block";
    args["block_structure"] = {rows, cols};
  } else {
    refuse_to_write(format, what);
  }
  args["dynamic"] = dynamic;
  return args;
}

bool fits_deepseek(const LinearFormat& format) {
  const QuantFormat& weight = *format.weight;
  return weight.fp8 == Fp8::e4m3 && weight.scale != ScaleType::unit && weight.grid.rows > 1 &&
         weight.grid.cols > 1 && format.input && format.input->fp8 == Fp8::e4m3 &&
         format.input->scale != ScaleType::unit && format.when == InputScale::dynamic &&
         format.input->grid == ScaleGrid{1, weight.grid.cols};
}

}  // namespace

QuantConfig read_quant_config(const Json& object, const std::string& where) {
  const JsonView view(object, where);
  const auto method = view.get<std::string>("quant_method");
  if (method == "fp8") return read_fp8(view);
  if (method == "compressed-tensors") return read_compressed(view);
  view.refuse("quant_method", "this quantization method is not supported",
              "fp8 (DeepSeek, AutoFP8), compressed-tensors (float-quantized)");
}

OrderedJson write_quant_config(const LinearFormat& format,
                               const std::vector<std::string>& ignored) {
  invariant(format.weight.has_value(), "write_quant_config is for quantized weights");
  if (fits_deepseek(format)) {
    OrderedJson config = {
        {"quant_method", "fp8"},
        {"fmt", "e4m3"},
        {"activation_scheme", "dynamic"},
        {"weight_block_size", {format.weight->grid.rows, format.weight->grid.cols}}};
    if (format.input->scale == ScaleType::e8m0) config["scale_fmt"] = "ue8m0";
    if (!ignored.empty()) config["modules_to_not_convert"] = ignored;
    return config;
  }
  if (format.input && format.input->scale == ScaleType::e8m0) {
    refuse_to_write(*format.input, "activations");
  }
  OrderedJson group = {{"targets", {"Linear"}},
                       {"weights", write_args(*format.weight, false, false)}};
  group["input_activations"] =
      format.input ? write_args(*format.input, format.when == InputScale::dynamic, true)
                   : OrderedJson(nullptr);
  group["output_activations"] = nullptr;
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", group}}},
          {"ignore", ignored},
          {"kv_cache_scheme", nullptr}};
}

namespace {

bool entry_matches(Schema schema, const std::string& entry, std::string_view module) {
  if (schema == Schema::deepseek_block) return contains_components(module, entry);
  if (entry.starts_with("re:")) return regex_matches_start(entry.substr(3), module);
  return entry == module || entry == "Linear";
}

}  // namespace

bool ignores(const QuantConfig& config, std::string_view module) {
  return std::ranges::any_of(config.ignored, [&](const std::string& entry) {
    return entry_matches(config.schema, entry, module);
  });
}

std::vector<std::string> unmatched_ignores(const QuantConfig& config,
                                           const std::vector<std::string>& modules) {
  std::vector<std::string> unmatched;
  for (const std::string& entry : config.ignored) {
    const auto matches = [&](const std::string& module) {
      return entry_matches(config.schema, entry, module);
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
    const bool is_regex = config.schema == Schema::compressed_tensors && entry.starts_with("re:");
    const auto glob = is_regex ? regex_glob(entry.substr(3)) : std::optional(entry);
    // A pattern that no glob can say gets no row. The rows are what people read; the loader asks
    // ignores().
    if (!glob) continue;
    rows.push_back({.role = std::nullopt,
                    .name = *glob,
                    .format = {},
                    .reason = fmt::format("on the checkpoint's ignore list as '{}'", entry),
                    .origin = kOrigin});
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
