// How a Binder makes a linear of what a checkpoint stores: codes with scales, packed words, or a
// 16- or 32-bit matrix that is quantized here.
#include <fmt/format.h>

#include <algorithm>

#include "model/binder.h"
#include "model/finite_weights.h"
#include "model/packed_weights.h"
#include "model/quant_schema.h"
#include "numerics/e8m0.h"
#include "numerics/half.h"

namespace octet::model {
namespace {

// Scales in any type that writers use: floats, and powers of two as E8M0 (a byte, by some called
// U8). Empty for another type.
std::vector<float> scales_of(const Tensor& stored, const QuantFormat& format) {
  if (is_float(stored.type)) return to_float(stored);
  const bool bytes = stored.type == DType::u8 && format.scale == ScaleType::e8m0;
  if (stored.type != DType::e8m0 && !bytes) return {};
  std::vector<float> scales(static_cast<size_t>(stored.count()));
  const auto* codes = static_cast<const uint8_t*>(stored.data);
  std::ranges::transform(codes, codes + scales.size(), scales.begin(), e8m0_decode);
  return scales;
}

// Whether scales of this shape are those of `cells`, in one of the shapes that writers use: one for
// the tensor as a scalar, [1] or [1, 1]; one a channel as [out] or [out, 1]; and ModelOpt's blocks
// as [rows, 1, cols, 1].
bool fits_cells(const Shape& shape, const ScaleShape& cells) {
  if (shape == Shape{cells.rows, cells.cols}) return true;
  if (cells.count() == 1) return shape.count() == 1;
  if (cells.cols == 1 && shape == Shape{cells.rows}) return true;
  return shape == Shape{cells.rows, 1, cells.cols, 1};
}

}  // namespace

std::vector<float> Binder::stored_scales(const std::string& module, const QuantFormat& format,
                                         int64_t out, int64_t in) {
  const ScaleShape cells = scale_shape(format.grid, out, in);
  std::string name = module + std::string(scale_suffix(*config_.quant));
  const Tensor* found = find(name, {cells.rows, cells.cols});
  // The two names mean the same, and not every writer keeps to the one of its dialect.
  for (const char* suffix : {".weight_scale", ".weight_scale_inv"}) {
    if (found) break;
    found = find(module + suffix, {cells.rows, cells.cols});
    if (found) name = module + suffix;
  }
  if (!found) {
    throw Error(
        {.what = "a quantized weight has no scale",
         .where =
             fmt::format("tensor '{}.weight' in {}", module, source_->locate(module + ".weight")),
         .value = fmt::format("no tensor '{}'", name),
         .accepted = fmt::format("scales of shape [{}, {}] for {}", cells.rows, cells.cols,
                                 to_string(format)),
         .fix = "check that all shards are there, or quantize the 16-bit checkpoint again"});
  }
  const std::string where = fmt::format("tensor '{}' in {}", name, source_->locate(name));
  if (!fits_cells(found->shape, cells)) {
    throw Error({.what = "the scales of a weight have the wrong shape",
                 .where = where,
                 .value = to_string(found->shape),
                 .accepted = fmt::format("[{}, {}]: {} of a [{}, {}] weight", cells.rows,
                                         cells.cols, to_string(format), out, in),
                 .fix = "check weight_block_size or strategy in quantization_config"});
  }
  std::vector<float> scales = scales_of(*found, format);
  if (scales.empty() && cells.count() > 0) {
    throw Error({.what = "the scales of a weight have a type that Octet does not read",
                 .where = where,
                 .value = std::string(safetensors_name(found->type)),
                 .accepted = fmt::format("{}, or F8_E8M0", kFloatTypes)});
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    if (scales[i] >= kLeastScale && scales[i] <= kMostScale) continue;
    if (scales[i] > 0.0f && scales[i] < std::numeric_limits<float>::infinity()) {
      if (++extreme_scales_ == 1) first_extreme_ = fmt::format("{} in '{}'", scales[i], name);
      continue;
    }
    throw Error({.what = "a scale is not a positive number",
                 .where = fmt::format("{}, element {}", where, i),
                 .value = fmt::format("{}", scales[i]),
                 .accepted = "finite numbers above 0",
                 .fix = "quantize the 16-bit checkpoint again: a zero block gets the scale 1"});
  }
  return scales;
}

Tensor Binder::head(const std::string& module, int64_t out, int64_t in) {
  const std::string name = module + ".weight";
  const FindPart find_part = [&](const std::string& part) { return find(part, {}); };
  const QuantGroup* group = config_.quant ? group_of(*config_.quant, module) : nullptr;
  if (group && group->packing && has(module + std::string(packed_suffix(*group->packing)), {})) {
    const UnpackedWeight weight =
        unpack_weight(*group->packing, module, out, in, find_part, *source_);
    find_part(module + ".weight_shape");
    std::vector<std::byte> values = expand(weight, out, in);
    quantized_head_ = to_string(*group->format.weight);
    return copy_to_device(Tensor(values.data(), weight.scale_type, {out, in}), "weights");
  }
  const Tensor& stored = require(name, {out, in});
  if (!is_code(stored.type)) return plain(name, {out, in}, Role::lm_head);
  const QuantFormat format = require_codes(module, stored);
  const std::vector<float> scales = stored_scales(module, format, out, in);
  const auto count = static_cast<size_t>(out * in);
  std::vector<float> values(count);
  dequantize({static_cast<const uint8_t*>(stored.data), count}, out, in, format, scales, values);
  std::vector<bf16> rounded(count);
  std::ranges::transform(values, rounded.begin(), [](float x) { return to_bf16(x); });
  quantized_head_ = to_string(format);
  return copy_to_device(Tensor(rounded.data(), DType::bf16, {out, in}), "weights");
}

QuantFormat Binder::require_codes(const std::string& module, const Tensor& codes) const {
  const std::string name = module + ".weight";
  const auto fail = [&](std::string what, std::string accepted, std::string fix) {
    throw Error({.what = std::move(what),
                 .where = fmt::format("tensor '{}' in {}", name, source_->locate(name)),
                 .value = std::string(safetensors_name(codes.type)),
                 .accepted = std::move(accepted),
                 .fix = std::move(fix)});
  };
  if (!config_.quant) {
    fail(is_fp8(codes.type) ? "FP8 weights without a quantization_config"
                            : "INT8 weights without a quantization_config",
         "config.json with a quantization_config that says how they are scaled", "");
  }
  if (ignores(*config_.quant, module)) {
    fail(fmt::format("a module on the ignore list is stored in {}",
                     is_fp8(codes.type) ? "FP8" : "INT8"),
         std::string(kFloatTypes),
         fmt::format("take '{}' from the 16-bit checkpoint, or quantize that one again with the "
                     "module left out; off the list, the module runs as it is stored",
                     name));
  }
  const QuantGroup* group = group_of(*config_.quant, module);
  if (!group || !group->format.weight) {
    fail(fmt::format("a weight is stored in {}, and {} of quantization_config says its format",
                     is_fp8(codes.type) ? "FP8" : "INT8",
                     group ? fmt::format("no \"weights\" of {}", group->name) : "no group"),
         std::string(kFloatTypes),
         fmt::format("add '{}' to the \"targets\" of the group that it was quantized by", module));
  }
  const DType wanted = dtype_of(group->format.weight->code);
  if (codes.type != wanted) {
    fail("a weight is stored in another type than quantization_config says",
         std::string(safetensors_name(wanted)),
         "check \"fmt\" of quantization_config, which is e4m3 where it is absent, or \"type\"");
  }
  return *group->format.weight;
}

void Binder::bind_codes(ops::Linear& linear, const Tensor& codes) {
  const QuantFormat format = require_codes(linear.name, codes);
  std::vector<float> scales = stored_scales(linear.name, format, linear.out, linear.in);
  const ScaleShape cells = scale_shape(format.grid, linear.out, linear.in);
  linear.quant = {
      to_device(linear.name + ".weight", codes),
      copy_to_device(Tensor(scales.data(), DType::f32, {cells.rows, cells.cols}), "weight scales"),
      format};
  if (!linear.input || linear.when != InputScale::calibrated) return;
  // [1] or a scalar, by who wrote it; required, or the static scale would be a guess. HF calls it
  // activation_scale.
  const bool renamed =
      !has(linear.name + ".input_scale", {1}) && has(linear.name + ".activation_scale", {1});
  const std::string name = linear.name + (renamed ? ".activation_scale" : ".input_scale");
  linear.input_scale = fp32_broadcast(name, 1);
  const float scale = to_float(*find(name, {1}))[0];
  if (scale >= kLeastScale && scale <= kMostScale) return;
  throw Error({.what = "the scale of a linear's input is not a positive number of FP32's range",
               .where = fmt::format("tensor '{}' in {}", name, source_->locate(name)),
               .value = fmt::format("{}", scale),
               .accepted = fmt::format("{:.3g} to {:.3g}", kLeastScale, kMostScale),
               .fix = "calibrate the checkpoint again"});
}

bool Binder::bind_packed(ops::Linear& linear, bool bias) {
  const QuantGroup* group = config_.quant ? group_of(*config_.quant, linear.name) : nullptr;
  if (!group || !group->packing) return false;
  const Packing& packing = *group->packing;
  const std::string& module = linear.name;
  if (!has(module + std::string(packed_suffix(packing)), {})) return false;
  const FindPart find_part = [&](const std::string& name) { return find(name, {}); };
  const UnpackedWeight weight =
      unpack_weight(packing, module, linear.out, linear.in, find_part, *source_);
  find_part(module + ".weight_shape");
  // GPTQ's tools store a bias of zeros beside every weight.
  const Tensor* extra = bias ? nullptr : find_part(module + ".bias");
  if (extra && is_float(extra->type) &&
      !std::ranges::all_of(to_float(*extra), [](float x) { return x == 0.0f; })) {
    throw Error({.what = "a linear that has no bias in this architecture has one that is not zero",
                 .where = fmt::format("tensor '{0}.bias' in {1}", module,
                                      source_->locate(module + ".bias")),
                 .fix = "check that config.json belongs to this checkpoint"});
  }
  const char* why = !weight.group_of.empty() ? "inputs in reordered groups (act-order)"
                    : !backend_.info().int8  ? "a device that multiplies no integers"
                    : packing.group != 0 && packing.group != 128
                        ? "groups of another size than 128, for which no fast kernel is"
                        : nullptr;
  if (why) {
    std::vector<std::byte> values = expand(weight, linear.out, linear.in);
    linear.plain = copy_to_device(Tensor(values.data(), weight.scale_type, {linear.out, linear.in}),
                                  "weights");
    if (++expanded_ == 1) first_expanded_ = module, why_expanded_ = why;
    return true;
  }
  auto* codes = const_cast<uint8_t*>(weight.codes.data());
  auto* scales = const_cast<float*>(weight.scales.data());
  linear.quant = {
      copy_to_device(Tensor(codes, DType::i8, {linear.out, linear.in}), "weights"),
      copy_to_device(Tensor(scales, DType::f32, {linear.out, weight.groups}), "weight scales"),
      unpacked_format(packing)};
  return true;
}

QuantizedWeight quantize_weight(const Tensor& stored, const QuantFormat& format) {
  const std::vector<float> values = to_float(stored);
  QuantizedWeight weight;
  weight.codes.resize(values.size());
  weight.scales.resize(
      static_cast<size_t>(scale_shape(format.grid, stored.rows(), stored.cols()).count()));
  weight.stats =
      quantize(values, stored.rows(), stored.cols(), format, weight.codes, weight.scales);
  return weight;
}

void Binder::quantize_online(ops::Linear& linear, const Tensor& stored, const QuantFormat& format) {
  if (linear.input && linear.when == InputScale::calibrated) {
    throw Error({.what = "calibrated scales of inputs come with a checkpoint, not at load",
                 .where = fmt::format("linear '{}'", linear.name),
                 .value = to_string(*linear.input) + " calibrated",
                 .accepted = "a scheme whose inputs are quantized dynamically, or not at all",
                 .fix = "choose another scheme, such as fp8_channel"});
  }
  const std::string name = linear.name + ".weight";
  QuantizedWeight weight = quantize_weight(source_->read(name, stored), format);
  source_->release(name);
  require_finite(weight.stats, name, *source_,
                 "mend the checkpoint: `octet inspect MODEL --scan` lists all such tensors");
  const ScaleShape cells = scale_shape(format.grid, linear.out, linear.in);
  const Tensor codes(weight.codes.data(), dtype_of(format.code), {linear.out, linear.in});
  const Tensor scales(weight.scales.data(), DType::f32, {cells.rows, cells.cols});
  linear.quant = {copy_to_device(codes, "weights"), copy_to_device(scales, "weight scales"),
                  format};
}

// compressed-tensors names every module that it leaves alone; the others leave it to the types.
void Binder::require_ignored(const ops::Linear& linear, const Tensor& stored,
                             const QuantGroup& group) const {
  if (config_.quant->schema != QuantConfig::Schema::compressed_tensors) return;
  const std::string name = linear.name + ".weight";
  if (!group.format.weight) {
    throw Error({.what = "a group of linears has no quantized weights",
                 .where = fmt::format("quantization_config, '{}', which holds '{}'", group.name,
                                      linear.name),
                 .value = "\"weights\" is null",
                 .accepted = "weights, or targets that are no linears",
                 .fix = "put the module on the ignore list: it is then computed in 16 bits"});
  }
  throw Error({.what = "a module that is not on the ignore list is stored in 16 bits",
               .where = fmt::format("tensor '{}' in {}", name, source_->locate(name)),
               .value = std::string(safetensors_name(stored.type)),
               .accepted = fmt::format("{} with its scales",
                                       safetensors_name(dtype_of(group.format.weight->code))),
               .fix = "add the module to the ignore list of quantization_config"});
}

void Binder::bind_plain(ops::Linear& linear, const Tensor& stored) {
  linear.plain = to_device(linear.name + ".weight", stored);
  if (!config_.quant) return;
  linear.input.reset();  // kept high by the checkpoint, its input as well
  if (!is_quantizable(linear.role) || may_ignore(*config_.quant, linear.name)) return;
  const QuantGroup* group = group_of(*config_.quant, linear.name);
  if (!group) return;
  require_ignored(linear, stored, *group);
  if (++high_linears_ == 1) first_high_ = linear.name;
}

ops::Linear Binder::linear(const std::string& module, Role role, int64_t out, int64_t in,
                           bool bias) {
  ops::Linear linear;
  linear.name = module;
  linear.role = role;
  linear.out = out;
  linear.in = in;
  const LinearFormat& format = resolve(policy_, role, module).format;
  linear.input = format.input;
  linear.when = format.when;

  if (bind_packed(linear, bias)) {
    ++quantized_linears_;
  } else {
    const Tensor stored = require(module + ".weight", {out, in});
    if (is_code(stored.type)) {
      bind_codes(linear, stored);
      ++quantized_linears_;
    } else if (!is_float(stored.type)) {
      throw Error({.what = "a weight has a type that Octet does not read",
                   .where = fmt::format("tensor '{}.weight' in {}", module,
                                        source_->locate(module + ".weight")),
                   .value = std::string(safetensors_name(stored.type)),
                   .accepted = fmt::format("{}, F8_E4M3, F8_E5M2 or I8", kFloatTypes)});
    } else if (format.weight && !config_.quant) {
      quantize_online(linear, stored, *format.weight);
    } else {
      bind_plain(linear, stored);
    }
  }
  refuse_integers(linear);
  if (bias) linear.bias = fp32(module + ".bias", {out});
  return linear;
}

void Binder::refuse_integers(const ops::Linear& linear) const {
  const bool weight = linear.quant && linear.quant.format.code == Code::i8;
  const bool input = linear.input && linear.input->code == Code::i8;
  if (backend_.info().int8 || (!weight && !input)) return;
  throw Error({.what = "this device has no kernel that multiplies integer codes",
               .where = fmt::format("linear '{}' on {}", linear.name, backend_.info().name),
               .value = to_string(weight ? linear.quant.format : *linear.input),
               .accepted = "FP8 or 16-bit weights and inputs",
               .fix = "run it with --device cpu, or make an FP8 checkpoint of the 16-bit one with "
                      "`octet quantize`"});
}

}  // namespace octet::model
