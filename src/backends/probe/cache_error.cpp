#include "backends/probe/cache_error.h"

#include <cmath>
#include <functional>

#include "base/error.h"
#include "numerics/attention_rule.h"
#include "numerics/fp8.h"
#include "numerics/half.h"

namespace octet::probe {
namespace {

float value_at(const Tensor& tensor, int64_t offset) {
  switch (tensor.type) {
    case DType::bf16:
      return to_float(tensor.as<bf16>()[offset]);
    case DType::e4m3:
      return fp8_decode<Code::e4m3>(tensor.as<uint8_t>()[offset]);
    case DType::e5m2:
      return fp8_decode<Code::e5m2>(tensor.as<uint8_t>()[offset]);
    case DType::i8:
      return tensor.as<int8_t>()[offset];
    default:
      invariant(tensor.type == DType::f32, "a cache and what is written to it hold numbers");
      return tensor.as<float>()[offset];
  }
}

struct Sums {
  double error = 0, energy = 0;
};

// What was written, x [rows, heads, dim], beside the cache's codes [blocks, block_tokens, heads,
// dim] times `scale_of(block, slot, head, i)`.
Sums compare(const Tensor& x, const Tensor& codes, const ops::Batch& batch,
             const std::function<float(int64_t, int64_t, int64_t, int64_t)>& scale_of) {
  invariant(batch.sequences.size() == 1, "the error of a cache is measured on one sequence");
  const int64_t block_tokens = codes.shape[1];
  const bool headed = x.shape.rank == 3;
  const int64_t heads = headed ? x.shape[1] : 1, dim = x.shape[x.shape.rank - 1];
  Sums sums;
  for (int64_t row = 0; row < batch.rows; ++row) {
    const int64_t position = batch.sequences[0].first_position + row;
    const int64_t block = batch.block_table.as<int32_t>()[position / block_tokens];
    const int64_t slot = position % block_tokens;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t from = row * x.strides[0] + (headed ? head * x.strides[1] : 0);
      const int64_t to = block * codes.strides[0] + slot * codes.strides[1] +
                         (headed ? head * codes.strides[2] : 0);
      for (int64_t i = 0; i < dim; ++i) {
        const double value = value_at(x, from + i);
        const double back = value_at(codes, to + i) * scale_of(block, slot, head, i);
        sums.error += (back - value) * (back - value);
        sums.energy += value * value;
      }
    }
  }
  return sums;
}

}  // namespace

CacheErrorBackend::CacheErrorBackend(ops::Backend& inner) : ForwardingBackend(inner) {
  invariant(inner.info().device.kind == DeviceKind::cpu, "a cache is read back on the host");
}

double CacheErrorBackend::relative_error() const {
  return energy_ == 0 ? 0 : std::sqrt(error_ / energy_);
}

void CacheErrorBackend::kv_write(const Tensor& k, const Tensor& v, const ops::GqaCache& cache,
                                 const ops::Batch& batch) {
  inner().kv_write(k, v, cache, batch);
  inner().sync();
  const auto add = [&](const Tensor& x, const Tensor& codes, const Tensor& scales) {
    const auto scale_of = [&](int64_t block, int64_t slot, int64_t head, int64_t) {
      if (!scales) return 1.0f;
      const int64_t cell = cache.token_heads() ? block * scales.shape[1] + slot : block;
      return scales.as<float>()[cell * scales.cols() + head];
    };
    const Sums sums = compare(x, codes, batch, scale_of);
    error_ += sums.error;
    energy_ += sums.energy;
  };
  add(k, cache.k, cache.k_scale);
  add(v, cache.v, cache.v_scale);
}

void CacheErrorBackend::mla_kv_write(const Tensor& latent, const Tensor& k_pe,
                                     const ops::MlaCache& cache, const ops::Batch& batch) {
  inner().mla_kv_write(latent, k_pe, cache, batch);
  inner().sync();
  const Tensor& scales = cache.latent_scale;
  const Sums sums =
      compare(latent, cache.latent, batch, [&](int64_t block, int64_t slot, int64_t, int64_t i) {
        if (!scales) return 1.0f;
        return scales.as<float>()[(block * scales.shape[1] + slot) * scales.shape[2] +
                                  i / attention_rule::kLatentGroup];
      });
  error_ += sums.error;
  energy_ += sums.energy;
}

}  // namespace octet::probe
