#include "model/binder.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <utility>

#include "model/quant_schema.h"
#include "model/unused_tensors.h"
#include "numerics/half.h"

namespace octet::model {
namespace {

template <typename T, typename Convert>
void convert(const Tensor& tensor, std::vector<float>& out, Convert to_f32) {
  const auto* bytes = static_cast<const std::byte*>(tensor.data);
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));  // mapped files align to one byte
    out[i] = to_f32(value);
  }
}

}  // namespace

std::vector<float> to_float(const Tensor& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.count()));
  switch (tensor.type) {
    case DType::f32:
      convert<float>(tensor, out, [](float v) { return v; });
      break;
    case DType::bf16:
      convert<bf16>(tensor, out, [](bf16 v) { return to_float(v); });
      break;
    case DType::f16:
      convert<fp16>(tensor, out, [](fp16 v) { return to_float(v); });
      break;
    default:
      throw Fault(fmt::format("no conversion of {} to FP32", to_string(tensor)));
  }
  return out;
}

Tensor WeightMemory::take(ops::Backend& backend, DType type, Shape shape, const std::string& what) {
  // A GPU gives memory in pages of 2 MiB; a CPU's pages are as good as free of waste.
  const bool on_cpu = backend.info().device.kind == DeviceKind::cpu;
  const size_t page = on_cpu ? 1 : size_t{2} << 20;
  const size_t block_bytes = on_cpu ? size_t{1} << 20 : size_t{64} << 20;
  const size_t bytes = static_cast<size_t>(shape.count()) * size_of(type);
  if (bytes > block_bytes / 4) {
    buffers_.push_back(backend.alloc((bytes + page - 1) / page * page, what));
    return buffers_.back().tensor(type, shape);
  }
  if (!block_ || used_ + bytes > block_bytes) {
    buffers_.push_back(backend.alloc(block_bytes, "small weights and scales"));
    block_ = buffers_.size() - 1;
    used_ = 0;
  }
  const size_t offset = std::exchange(used_, aligned(used_ + bytes));
  return buffers_[*block_].tensor(type, shape, offset);
}

int64_t WeightMemory::bytes() const {
  int64_t total = 0;
  for (const Buffer& buffer : buffers_) total += static_cast<int64_t>(buffer.bytes());
  return total;
}

Policy effective_policy(const ModelConfig& config, const LoadOptions& options) {
  // Without FP8 arithmetic nothing is quantized by default; FP8 weights of a checkpoint stay FP8.
  Policy policy = default_policy(options.compute == Compute::fp8 && !config.quant ? options.online
                                                                                  : LinearFormat{});
  std::vector<PolicyRow> rows = options.policy;
  if (config.quant) {
    for (PolicyRow& row : policy_rows(*config.quant, config.recorded.weight_only)) {
      if (options.compute != Compute::fp8) row.format.input.reset();
      rows.push_back(std::move(row));
    }
  }
  policy.rows.insert(policy.rows.begin(), rows.begin(), rows.end());
  return policy;
}

Binder::Binder(const ModelConfig& config, std::shared_ptr<const WeightSource> source,
               ops::Backend& backend, const LoadOptions& options)
    : config_(config),
      source_(std::move(source)),
      backend_(backend),
      options_(options),
      policy_(effective_policy(config, options)),
      activation_(options.compute == Compute::fp32 ? DType::f32 : DType::bf16),
      memory_(source_) {}

const Tensor* Binder::find(const std::string& name, const Shape& shape) const {
  const Tensor* found = source_->find(name, shape);
  if (found) used_.insert(name);
  return found;
}

bool Binder::has(const std::string& name, const Shape& shape) const {
  return find(name, shape) != nullptr;
}

const Tensor& Binder::require_any(const std::string& name, const Shape& shape) const {
  if (const Tensor* found = find(name, shape)) return *found;
  throw Error({.what = "the checkpoint lacks a tensor that the model needs",
               .where = fmt::format("tensor '{}' of {}", name, config_.architecture),
               .value = "no tensor of that name",
               .accepted = fmt::format("a tensor of shape {}", to_string(shape)),
               .fix = "check that all shards are there and that config.json belongs to them"});
}

const Tensor& Binder::require(const std::string& name, const Shape& shape) const {
  const Tensor& found = require_any(name, shape);
  if (found.shape == shape) return found;
  throw Error({.what = "a tensor has the wrong shape",
               .where = fmt::format("tensor '{}' in {}", name, source_->locate(name)),
               .value = to_string(found.shape),
               .accepted = to_string(shape),
               .fix = "check that config.json belongs to this checkpoint"});
}

// For host memory that goes when the caller returns.
Tensor Binder::copy_to_device(const Tensor& host, const std::string& what) {
  Tensor device = memory_.take(backend_, host.type, host.shape, what);
  backend_.copy(host, device);
  backend_.sync();
  return device;
}

// On a CPU what the source holds is the weight; elsewhere it is copied over once.
Tensor Binder::to_device(const std::string& name, const Tensor& found) {
  if (!options_.read_weights) return found;
  const Tensor host = source_->read(name, found);
  if (backend_.info().device == host.device) return host;
  Tensor device = copy_to_device(host, "weights");
  source_->release(name);
  return device;
}

std::vector<float> Binder::read_float(const std::string& name, const Tensor& found) const {
  std::vector<float> values = to_float(source_->read(name, found));
  source_->release(name);
  return values;
}

Tensor Binder::plain(const std::string& name, Shape shape, Role role) {
  const Tensor stored = require(name, shape);
  if (!is_float(stored.type)) {
    throw Error(
        {.what = fmt::format("the {} is stored in a type that it must not have", name_of(role)),
         .where = fmt::format("tensor '{}' in {}", name, source_->locate(name)),
         .value = std::string(safetensors_name(stored.type)),
         .accepted = std::string(kFloatTypes),
         .fix = fmt::format("take '{}' from the 16-bit checkpoint, or quantize that one with "
                            "`octet quantize`, which leaves it in 16 bits",
                            name)});
  }
  return to_device(name, stored);
}

Tensor Binder::fp32(const std::string& name, Shape shape) {
  const Tensor stored = require(name, shape);
  if (!is_float(stored.type)) {
    throw Error({.what = "a tensor that must be a float is not",
                 .where = fmt::format("tensor '{}' in {}", name, source_->locate(name)),
                 .value = std::string(safetensors_name(stored.type)),
                 .accepted = std::string(kFloatTypes)});
  }
  std::vector<float> values = read_float(name, stored);
  return copy_to_device(Tensor(values.data(), DType::f32, shape), "weights");
}

Tensor Binder::fp32_broadcast(const std::string& name, int64_t count) {
  return device_values(host_values(name, count));
}

Tensor Binder::device_values(std::vector<float> values) {
  const auto count = static_cast<int64_t>(values.size());
  return copy_to_device(Tensor(values.data(), DType::f32, {count}), "scales");
}

std::vector<float> Binder::host_values(const std::string& name, int64_t count) const {
  const Tensor& found = require_any(name, {count});
  if (!is_float(found.type) || (found.count() != 1 && found.count() != count)) {
    throw Error(
        {.what = "a scale has the wrong shape or type",
         .where = fmt::format("tensor '{}' in {}", name, source_->locate(name)),
         .value = fmt::format("{} {}", safetensors_name(found.type), to_string(found.shape)),
         .accepted = fmt::format("{}, one value or {}", kFloatTypes, count)});
  }
  std::vector<float> values = read_float(name, found);
  if (values.size() == 1) values.resize(static_cast<size_t>(count), values[0]);
  return values;
}

void Binder::report(std::vector<std::string>& notices) const {
  report_high_linears(notices);
  report_unused(config_, *source_, used_, notices);
  if (!quantized_head_.empty()) {
    notices.push_back(
        fmt::format("the head is stored as {} and computed in 16 bits, to which it was expanded",
                    quantized_head_));
  }
  if (expanded_ > 0) {
    notices.push_back(fmt::format(
        "{} packed weights were expanded to 16 bits, as they have {}: '{}' is the first", expanded_,
        why_expanded_, first_expanded_));
  }
  if (extreme_scales_ == 0) return;
  notices.push_back(fmt::format(
      "{} scales of weights are outside {:.3g} .. {:.3g}, where products keep FP32's precision and "
      "range: {} is the first",
      extreme_scales_, kLeastScale, kMostScale, first_extreme_));
}

void Binder::report_high_linears(std::vector<std::string>& notices) const {
  if (high_linears_ == 0) return;
  const std::string tensor = first_high_ + ".weight";
  if (quantized_linears_ == 0) {
    throw Error(
        {.what = "config.json says that the checkpoint is quantized, and no weight of it is",
         .where =
             fmt::format("quantization_config; tensor '{}' in {}", tensor, source_->locate(tensor)),
         .value = std::string(safetensors_name(source_->find(tensor, {})->type)),
         .accepted = "quantized weights with their scales, or no quantization_config",
         .fix = "take quantization_config out of config.json, or make an FP8 checkpoint "
                "with `octet quantize`"});
  }
  notices.push_back(
      fmt::format("{} of {} linears that quantization_config calls quantized are stored in 16 bits "
                  "and stay so: "
                  "'{}' is the first",
                  high_linears_, high_linears_ + quantized_linears_, first_high_));
}

ops::NormWeight Binder::norm(const std::string& name, int64_t dim, float eps) {
  return {.weight = fp32(name, {dim}), .eps = eps};
}

ops::GatedMlp Binder::gated_mlp(const std::string& prefix, Role gate_up, Role down, int64_t hidden,
                                int64_t intermediate, bool bias) {
  return {.gate = linear(prefix + ".gate_proj", gate_up, intermediate, hidden, bias),
          .up = linear(prefix + ".up_proj", gate_up, intermediate, hidden, bias),
          .down = linear(prefix + ".down_proj", down, hidden, intermediate, bias)};
}

}  // namespace octet::model
