// Weights for runs of a shape alone (--random-weights): every tensor that the model asks for, at
// the shape that it asks for, with values that keep activations sane. No file is read.
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint.h"
#include "model/config.h"
#include "tensor/buffer.h"

namespace octet::model {

struct RandomOptions {
  uint64_t seed = 0;
  // Tensors of one kind are views of one buffer, not memory of their own. For devices that copy the
  // weights anyway: a model of 671e9 weights then needs a few GB of the host and no time to fill.
  // Not for measuring on a CPU, whose caches would profit.
  bool shared = false;
};

// `config` with the quantization_config that the quantizer would write for `format`, so that the
// binder asks for FP8 weights and their scales.
ModelConfig with_scheme(ModelConfig config, const LinearFormat& format);

// Linears have the deviation 1 / sqrt(in), so that outputs are as large as inputs; they are E4M3
// codes with F32 scales where `config.quant` says so, and BF16 elsewhere. A tensor's values depend
// on its name, its shape and the seed. Not thread-safe.
class RandomWeights final : public WeightSource {
 public:
  explicit RandomWeights(const ModelConfig& config, RandomOptions options = {});

  // nullptr for the scales of a KV cache: they are optional, and random ones would be wrong.
  const Tensor* find(std::string_view name, const Shape& expected) const override;
  std::vector<std::string> names() const override;  // of the tensors made so far
  std::string locate(std::string_view name) const override;
  int64_t bytes() const { return bytes_; }  // of the tensors made so far

  // Shared memory comes from `allocate` from now on: pinned memory, say, which a GPU copies from
  // ten times as fast.
  void allocate_shared_by(std::function<Buffer(size_t)> allocate) {
    allocate_shared_ = std::move(allocate);
  }

 private:
  // The distribution of a tensor's values: normal, cut at four deviations. Codes of FP8 have
  // deviation kCodeDeviation, whatever the weight's.
  struct Kind {
    DType type = DType::bf16;
    float mean = 0, deviation = 0;
    friend auto operator<=>(const Kind&, const Kind&) = default;
  };
  struct Slab {
    Buffer buffer;
    size_t used = 0;
  };

  std::optional<Kind> kind_of(std::string_view name, const Shape& shape) const;
  bool is_quantized(std::string_view name) const;
  const std::vector<std::byte>& table(const Kind& kind) const;
  void fill(const Kind& kind, uint64_t stream, std::span<std::byte> out) const;
  std::byte* own_memory(size_t bytes) const;
  std::byte* shared_memory(const Kind& kind, uint64_t stream, size_t bytes) const;

  std::optional<QuantConfig> quant_;
  bool tied_embeddings_;
  RandomOptions options_;
  std::function<Buffer(size_t)> allocate_shared_ = host_buffer;
  std::vector<float> normal_;  // what all tables are made from
  mutable std::map<Kind, std::vector<std::byte>> tables_;
  mutable std::vector<Slab> slabs_;
  mutable std::map<Kind, Slab> shared_;
  mutable std::map<std::string, Tensor, std::less<>> tensors_;
  mutable int64_t bytes_ = 0;
};

}  // namespace octet::model
