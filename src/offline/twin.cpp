#include "offline/twin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/binder.h"
#include "model/quant_schema.h"
#include "numerics/quantize.h"

namespace octet::offline {
namespace {

std::vector<float> twin_of(const ops::Linear& linear, const model::WeightSource& twin) {
  const std::string name = linear.name + ".weight";
  const Shape shape{linear.out, linear.in};
  const Tensor* found = twin.find(name, shape);
  if (found && found->shape == shape && model::is_float(found->type)) {
    std::vector<float> values = model::to_float(twin.read(name, *found));
    twin.release(name);
    return values;
  }
  throw Error({.what = "the 16-bit twin does not fit this checkpoint",
               .where = found ? fmt::format("tensor '{}' in {}", name, twin.locate(name))
                              : fmt::format("tensor '{}'", name),
               .value = found ? to_string(*found) : "no such tensor",
               .accepted = fmt::format("{} {}", model::kFloatTypes, to_string(shape)),
               .fix = "name the checkpoint that this one was quantized from"});
}

std::vector<float> values_of(const ops::Linear& linear) {
  if (!linear.quant) return model::to_float(linear.plain);
  const QuantTensor& q = linear.quant;
  std::vector<float> values(static_cast<size_t>(linear.out * linear.in));
  const auto* codes = static_cast<const uint8_t*>(q.codes.data);
  const auto* scales = static_cast<const float*>(q.scales.data);
  dequantize({codes, values.size()}, linear.out, linear.in, q.format,
             {scales, static_cast<size_t>(q.scales.count())}, values);
  return values;
}

TwinError error_of(const ops::Linear& linear, const std::vector<float>& theirs) {
  const std::vector<float> ours = values_of(linear);
  double error = 0, signal = 0, energy = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double x = ours[i], y = theirs[i];
    error += (x - y) * (x - y);
    signal += y * y;
    energy += x * x;
  }
  const auto ratio = [&](double part) {
    if (part == 0.0) return 0.0;
    return std::sqrt(part / signal);
  };
  return {linear.name, ratio(error), signal == 0.0 && energy == 0.0 ? 1.0 : ratio(energy)};
}

}  // namespace

std::vector<TwinError> compare_with_twin(const model::Model& model,
                                         const model::WeightSource& twin) {
  std::vector<TwinError> errors;
  const auto& quant = model.config().quant;
  for (const model::LinearUse& use : model.linears()) {
    const ops::Linear& linear = *use.linear;
    // Packed weights may have been expanded.
    const model::QuantGroup* group = quant ? model::group_of(*quant, linear.name) : nullptr;
    const bool packed = group && group->packing && is_quantizable(linear.role);
    if (linear.quant || packed) errors.push_back(error_of(linear, twin_of(linear, twin)));
  }
  return errors;
}

double most_error(const model::ModelConfig& config, std::string_view module) {
  const model::QuantGroup* group = config.quant ? model::group_of(*config.quant, module) : nullptr;
  if (!group) return 0.0;
  // E4M3 has 2.6 %, E5M2 5.2 %, INT8 less; 4 bits in groups of 128 have 12 %.
  if (group->packing && group->packing->bits == 4) return 0.25;
  return 0.12;
}

}  // namespace octet::offline
