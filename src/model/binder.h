// Turns names into weights: looks a tensor up, checks its shape, resolves its precision and gives
// the family a Linear, a NormWeight or a Tensor that lies on the backend's device.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/model.h"
#include "numerics/quantize.h"

namespace octet::model {

// Owns what the weights of a model point into.
class WeightMemory {
 public:
  explicit WeightMemory(std::shared_ptr<const WeightSource> source) : source_(std::move(source)) {}

  // Memory for one tensor. Small ones share blocks: a large model has 50,000 scales and norms, and
  // an allocation of its own costs each a page and one of the maps that a process may have.
  Tensor take(ops::Backend& backend, DType type, Shape shape, const std::string& what);

  int64_t bytes() const;  // of all allocations
  size_t allocations() const { return buffers_.size(); }

 private:
  std::shared_ptr<const WeightSource> source_;  // keeps the maps alive
  std::vector<Buffer> buffers_;
  std::optional<size_t> block_;  // the buffer that small tensors are taken from
  size_t used_ = 0;              // of it
};

// A scale below is subnormal and has lost precision; 448 times one above is infinite.
inline constexpr float kLeastScale = std::numeric_limits<float>::min();
inline constexpr float kMostScale = std::numeric_limits<float>::max() / 448.0f;

class Binder {
 public:
  Binder(const ModelConfig& config, std::shared_ptr<const WeightSource> source,
         ops::Backend& backend, const LoadOptions& options);

  // `module`.weight [out, in] with its scales if it is stored as codes, or the words that it is
  // packed in; and `module`.bias if wanted.
  ops::Linear linear(const std::string& module, Role role, int64_t out, int64_t in,
                     bool bias = false);
  // `name` [dim], as FP32.
  ops::NormWeight norm(const std::string& name, int64_t dim, float eps);
  // `name` in 16 or 32 bits, as stored.
  Tensor plain(const std::string& name, Shape shape, Role role);
  // `module`.weight [out, in] of the head, which is computed in 16 or 32 bits: as stored, or where
  // the checkpoint quantizes it, its values, rounded once to 16 bits, with a notice.
  Tensor head(const std::string& module, int64_t out, int64_t in);
  // `name` converted to FP32.
  Tensor fp32(const std::string& name, Shape shape);
  // `name`, one value or `count` of them (whatever the shape), as FP32 [count].
  Tensor fp32_broadcast(const std::string& name, int64_t count);
  // The two halves of it: the values on the host, and as FP32 on the device.
  std::vector<float> host_values(const std::string& name, int64_t count) const;
  Tensor device_values(std::vector<float> values);
  bool has(const std::string& name, const Shape& shape) const;
  std::string locate(const std::string& name) const { return source_->locate(name); }

  // Experts' and dense MLPs' three linears, in the naming of DeepSeek and Llama.
  ops::GatedMlp gated_mlp(const std::string& prefix, Role gate_up, Role down, int64_t hidden,
                          int64_t intermediate, bool bias = false);

  const ModelConfig& config() const { return config_; }
  DType activation() const { return activation_; }
  ops::Backend& backend() { return backend_; }
  const LoadOptions& options() const { return options_; }
  const Policy& policy() const { return policy_; }
  // To call when all is bound: what a user should know. Throws Error for tensors that nobody reads
  // (model/unused_tensors.h), and for a quantization_config over a checkpoint that has nothing in
  // FP8: its FP8 inputs would be dropped without a word.
  void report(std::vector<std::string>& notices) const;
  WeightMemory take_memory() { return std::move(memory_); }

 private:
  const Tensor* find(const std::string& name, const Shape& shape) const;
  // The stored tensor. Error if there is none; `shape` is what the error asks for.
  const Tensor& require_any(const std::string& name, const Shape& shape) const;
  // The same, and Error if it has another shape.
  const Tensor& require(const std::string& name, const Shape& shape) const;
  Tensor to_device(const std::string& name, const Tensor& found);
  // The values of a stored tensor as FP32.
  std::vector<float> read_float(const std::string& name, const Tensor& found) const;
  Tensor copy_to_device(const Tensor& host, const std::string& what);
  std::vector<float> stored_scales(const std::string& module, const QuantFormat& format,
                                   int64_t out, int64_t in);
  // Error where the device multiplies no INT8 codes and this linear has some.
  void refuse_integers(const ops::Linear& linear) const;
  void report_high_linears(std::vector<std::string>& notices) const;
  // Error for codes without a quantization_config, of a module that it leaves out, or of another
  // type than it says; else the format of the codes.
  QuantFormat require_codes(const std::string& module, const Tensor& codes) const;
  void bind_codes(ops::Linear& linear, const Tensor& codes);
  bool bind_packed(ops::Linear& linear, bool bias);
  void bind_plain(ops::Linear& linear, const Tensor& stored);
  void require_ignored(const ops::Linear& linear, const Tensor& stored,
                       const QuantGroup& group) const;
  void quantize_online(ops::Linear& linear, const Tensor& stored, const QuantFormat& format);

  ModelConfig config_;
  std::shared_ptr<const WeightSource> source_;
  ops::Backend& backend_;
  LoadOptions options_;
  Policy policy_;
  DType activation_;
  WeightMemory memory_;
  mutable std::set<std::string, std::less<>> used_;
  int64_t quantized_linears_ = 0,
          high_linears_ = 0;  // of those that a quantization_config speaks of
  std::string first_high_;
  int64_t extreme_scales_ = 0;
  std::string first_extreme_;
  int64_t expanded_ = 0;  // packed weights that became 16-bit ones
  std::string first_expanded_, why_expanded_;
  std::string quantized_head_;  // its format, if it was stored in one
};

constexpr bool is_float(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16;
}
inline constexpr std::string_view kFloatTypes = "BF16, F16 or F32";

// The policy in force: --policy rows, then the checkpoint's own, then the defaults.
Policy effective_policy(const ModelConfig& config, const LoadOptions& options);

// A 16- or 32-bit weight [out, in] in `format`. Loading with --scheme and `octet quantize` both
// call this, so that they give the same bytes.
struct QuantizedWeight {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  QuantStats stats;
};
QuantizedWeight quantize_weight(const Tensor& stored, const QuantFormat& format);

// `count` elements of any float type, at any alignment, as FP32.
std::vector<float> to_float(const Tensor& tensor);

}  // namespace octet::model
