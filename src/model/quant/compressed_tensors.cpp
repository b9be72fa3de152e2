// compressed-tensors, read and written: its config_groups, QuantizationArgs and storage formats
// (compressed-tensors, quantization/quant_args.py, quant_scheme.py, config/base.py).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "model/name_pattern.h"
#include "model/packed_weights.h"
#include "model/quant/dialects.h"

namespace octet::model {
namespace {

// --- reading ------------------------------------------------------------------------------------

// QuantizationArgs, of weights or of activations.
struct Args {
  bool integer = false;
  int64_t bits = 8;
  bool symmetric = true;
  std::string strategy;
  int64_t group_size = 0;
  ScaleGrid block;
  bool dynamic = false;
  bool powers_of_two = false;  // scales are E8M0 bytes

  QuantFormat format(ScaleGrid grid) const {
    return {integer ? Code::i8 : Code::e4m3, grid,
            powers_of_two ? ScaleType::e8m0 : ScaleType::f32};
  }
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
  return {read_extent(args, key, format->grid.rows), read_extent(args, key, format->grid.cols)};
}

bool read_dynamic(const JsonView& args) {
  if (args.has("dynamic") && args.json()["dynamic"].is_string()) {
    args.refuse("dynamic", "this kind of dynamic scales is not supported", "true, false");
  }
  return args.get<bool>("dynamic", false);
}

void read_type(const JsonView& view, Args& args) {
  const auto type = view.get<std::string>("type", "int");
  if (type != "float" && type != "int") {
    view.refuse("type", "this type is not supported", "float, int");
  }
  args.integer = type == "int";
  args.bits = view.get<int64_t>("num_bits", 8);
  if (args.bits != 8 && !(args.integer && args.bits == 4)) {
    view.refuse("num_bits", "this width is not supported", "8, or 4 with the type int");
  }
  args.symmetric = view.get<bool>("symmetric", true);
  const auto scale = view.get<std::string>("scale_dtype", "");
  args.powers_of_two = scale == "torch.uint8" || scale == "uint8";
}

Args read_args(const JsonView& view) {
  check_arg_fields(view);
  Args args;
  read_type(view, args);
  if (view.has("actorder") && view.json()["actorder"] != false &&
      view.json()["actorder"] != "weight" && view.json()["actorder"] != "static") {
    view.refuse("actorder", "reordered channels are not supported", "null");
  }
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

void require_symmetric(const JsonView& view, const Args& args) {
  if (!args.symmetric) view.refuse("symmetric", "zero points are not supported", "true");
}

ScaleGrid weight_grid(const JsonView& view, const Args& args) {
  if (args.strategy == "tensor") return grids::tensor;
  if (args.strategy == "channel") return grids::row;
  if (args.strategy == "block") return args.block;
  if (args.strategy == "group") return {1, static_cast<int32_t>(args.group_size)};
  view.refuse("strategy", "this strategy of weights is not supported",
              "tensor, channel, group, block");
}

// Weights in words of 32 bits.
Packing packing_of(const JsonView& view, const Args& args) {
  if (!args.integer) view.refuse("type", "packed weights are integers", "int");
  if (args.bits == 8) require_symmetric(view, args);
  const ScaleGrid grid = weight_grid(view, args);
  if (grid.rows != 1) {
    view.refuse("strategy", "this strategy of packed weights is not supported", "channel, group");
  }
  return {.layout = Packing::Layout::compressed,
          .bits = static_cast<int>(args.bits),
          .group = grid.cols,
          .symmetric = args.symmetric};
}

void set_weights(const JsonView& view, const std::string& format, QuantGroup& group) {
  const Args args = read_args(view);
  if (args.dynamic) view.refuse("dynamic", "scales of weights are stored, not dynamic", "false");
  if (format == "pack-quantized") {
    group.packing = packing_of(view, args);
    group.format.weight = unpacked_format(*group.packing);
    return;
  }
  if (args.bits != 8) view.refuse("num_bits", "4-bit weights must be packed", "8");
  require_symmetric(view, args);
  group.format.weight = args.format(weight_grid(view, args));
  if (format == "mxfp8-quantized") group.format.weight->scale = ScaleType::e8m0;
}

void set_input(const JsonView& view, LinearFormat& format) {
  const Args args = read_args(view);
  if (args.bits != 8) view.refuse("num_bits", "activations of this width are not supported", "8");
  require_symmetric(view, args);
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
  format.input = args.format(grid);
  format.when = args.dynamic ? InputScale::dynamic : InputScale::calibrated;
}

// How codes and scales are stored. A group's own format stands above that of the config, which may
// then say "mixed-precision".
std::string read_format(const JsonView& view, const JsonView& group) {
  const bool own = group.has("format");
  const JsonView& from = own ? group : view;
  const auto format = from.get<std::string>("format", "float-quantized");
  for (const char* known : {"float-quantized", "naive-quantized", "int-quantized",
                            "mxfp8-quantized", "pack-quantized"}) {
    if (format == known) return format;
  }
  from.refuse("format", "this storage format of compressed-tensors is not supported",
              "float-quantized, int-quantized, mxfp8-quantized, pack-quantized");
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

std::vector<std::string> read_entries(const JsonView& view, std::string_view key) {
  std::vector<std::string> entries = read_names(view, key);
  for (const std::string& entry : entries) {
    if (!entry.starts_with("re:")) continue;
    if (const auto fault = regex_fault(entry.substr(3))) {
      view.refuse(key, fmt::format("'{}' is not a valid regular expression: {}", entry, *fault),
                  "names of modules or classes, and re: with a regular expression");
    }
  }
  return entries;
}

QuantGroup read_group(const JsonView& view, const std::string& name, const JsonView& config) {
  QuantGroup group{
      .name = name, .targets = read_entries(view, "targets"), .format = {}, .packing = {}};
  if (group.targets.empty()) {
    view.refuse("targets", "a group of modules has no targets",
                "\"Linear\", names of modules, or re: with a regular expression");
  }
  if (view.has("output_activations")) {
    view.refuse("output_activations", "quantized outputs are not supported", "null");
  }
  // Without weights it is of attention, whose cache has scales of its own.
  if (const auto weights = view.find("weights")) {
    set_weights(*weights, read_format(config, view), group);
    if (const auto input = view.find("input_activations")) set_input(*input, group.format);
  }
  return group;
}

// One target in two groups says two things of the same modules.
void refuse_shared_targets(const JsonView& view, const std::vector<QuantGroup>& groups) {
  std::map<std::string_view, const QuantGroup*> owners;
  for (const QuantGroup& group : groups) {
    for (const std::string& target : group.targets) {
      const QuantGroup& owner = *owners.emplace(target, &group).first->second;
      if (owner.format == group.format && owner.packing.has_value() == group.packing.has_value()) {
        continue;
      }
      view.refuse("config_groups",
                  fmt::format("{} and {} both have the target '{}', and different formats ({}; {})",
                              owner.name, group.name, target, to_string(owner.format),
                              to_string(group.format)),
                  "each target in one group");
    }
  }
}

std::vector<QuantGroup> read_groups(const JsonView& view) {
  const JsonView all = view.at("config_groups");
  std::vector<QuantGroup> groups;
  for (const auto& [name, group] : all.json().items()) {
    groups.push_back(read_group(all.at(name), name, view));
  }
  const auto has_weights = [](const QuantGroup& group) { return group.format.weight.has_value(); };
  if (std::ranges::none_of(groups, has_weights)) {
    view.refuse("config_groups", "no group of modules has quantized weights",
                "one group or more with \"targets\" and \"weights\"");
  }
  refuse_shared_targets(view, groups);
  return groups;
}

// --- writing ------------------------------------------------------------------------------------

[[noreturn]] void refuse_to_write(const QuantFormat& format, std::string_view what) {
  throw Error({.what = fmt::format("no checkpoint schema can say this format of {}", what),
               .value = to_string(format),
               .accepted = "e4m3 or i8 with f32 scales a tensor, row, group or (weights) block; "
                           "e4m3[1x32]e8m0"});
}

constexpr ScaleGrid kMxGrid{1, 32};

OrderedJson write_args(const QuantFormat& format, bool dynamic, bool input) {
  const std::string_view what = input ? "activations" : "weights";
  const bool mx = format.scale == ScaleType::e8m0;
  if (format.code == Code::e5m2 || format.scale == ScaleType::unit ||
      (mx && (format.grid != kMxGrid || format.code != Code::e4m3))) {
    refuse_to_write(format, what);
  }
  OrderedJson args = {
      {"num_bits", 8}, {"type", format.code == Code::i8 ? "int" : "float"}, {"symmetric", true}};
  const auto [rows, cols] = format.grid;
  if (format.grid == grids::tensor) {
    args["strategy"] = "tensor";
  } else if (format.grid == grids::row) {
    args["strategy"] = input ? "token" : "channel";
  } else if (rows == 1) {
    args["strategy"] = "group";
    args["group_size"] = cols;
  } else if (!input && rows > 1 && cols > 1) {
    args["strategy"] = "block";
    args["block_structure"] = {rows, cols};
  } else {
    refuse_to_write(format, what);
  }
  args["dynamic"] = dynamic;
  if (mx) args["scale_dtype"] = "torch.uint8";
  return args;
}

const char* storage_of(const QuantFormat& weight) {
  if (weight.code == Code::i8) return "int-quantized";
  return weight.scale == ScaleType::e8m0 ? "mxfp8-quantized" : "float-quantized";
}

}  // namespace

QuantConfig read_compressed_config(const JsonView& view) {
  refuse_other_compressions(view);
  QuantConfig config;
  config.schema = QuantConfig::Schema::compressed_tensors;
  config.names = QuantConfig::Names::targets;
  config.scale_suffix = ".weight_scale";
  config.groups = read_groups(view);
  config.ignored = read_entries(view, "ignore");
  if (view.has("kv_cache_scheme")) config.notes.emplace_back(kKvNote);
  return config;
}

OrderedJson write_compressed_config(const LinearFormat& format,
                                    const std::vector<std::string>& ignored) {
  OrderedJson group = {{"targets", {"Linear"}},
                       {"weights", write_args(*format.weight, false, false)}};
  group["input_activations"] =
      format.input ? write_args(*format.input, format.when == InputScale::dynamic, true)
                   : OrderedJson(nullptr);
  group["output_activations"] = nullptr;
  return {{"quant_method", "compressed-tensors"},
          {"format", storage_of(*format.weight)},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", group}}},
          {"ignore", ignored},
          {"kv_cache_scheme", nullptr}};
}

}  // namespace octet::model
