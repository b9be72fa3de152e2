// Writing latents and their rope parts into the paged cache of MLA (ops/kv_layout.h).
#include "backends/cuda/kernels/ops.h"
#include "backends/cuda/kernels/paged_write.cuh"
#include "numerics/attention_rule.h"

namespace octet::cuda {
namespace {

using namespace paged;

constexpr int kMostWarps = 8;

struct MlaPlane {
  uint8_t* latent;      // [blocks * block_tokens, lora] of `type`
  float* latent_scale;  // [blocks * block_tokens, groups], or null
  uint8_t* rope;        // [blocks * block_tokens, rope_dim] of `rope_type`
  DType type, rope_type;
  int element, rope_element;  // bytes
  int lora, rope_dim, groups;
  QuantFormat format;
};

// Block: a row. A warp for each group of 128 values of the latent, and one for the rope part.
template <typename T>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    mla_kv_write_kernel(Matrix<const T> latent, Matrix<const T> k_pe, MlaPlane cache, Pages pages) {
  constexpr int group = attention_rule::kLatentGroup, items = group / kWarp;
  allow_next();
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % kWarp;
  const int sequence = pages.row_sequence[row];
  int64_t slot = -1;
  if (sequence >= 0) {
    const Span span = pages.span(sequence);
    const int position = span.first_position + row - span.first_row;
    const int block = pages.block_of(sequence, position);
    if (block >= 0) slot = int64_t{block} * pages.block_tokens + position % pages.block_tokens;
  }
  wait_for_previous();
  if (slot < 0) return;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  for (int task = static_cast<int>(threadIdx.x) / kWarp; task <= cache.groups; task += warps) {
    if (task == cache.groups) {
      uint8_t* const to = cache.rope + slot * cache.rope_dim * cache.rope_element;
      with_put(cache.rope_type, 1.0f, [&](auto put) {
        for (int e = lane; e < cache.rope_dim; e += kWarp) put(to, e, to_float(k_pe.row(row)[e]));
      });
      continue;
    }
    const int first = task * group;
    float values[items];
    uint32_t absmax = 0;
#pragma unroll
    for (int i = 0; i < items; ++i) {
      const int e = first + i * kWarp + lane;
      values[i] = e < cache.lora ? to_float(latent.row(row)[e]) : 0.0f;
      absmax = max(absmax, finite_magnitude(values[i]));
    }
    float scale = 1.0f;
    if (cache.latent_scale) {
      scale = choose_scale(__uint_as_float(warp_max(absmax)), cache.format);
      if (lane == 0) cache.latent_scale[slot * cache.groups + task] = scale;
    }
    uint8_t* const to = cache.latent + slot * cache.lora * cache.element;
    with_put(cache.type, inverse_scale(scale), [&](auto put) {
#pragma unroll
      for (int i = 0; i < items; ++i) {
        const int e = first + i * kWarp + lane;
        if (e < cache.lora) put(to, e, values[i]);
      }
    });
  }
}

}  // namespace

void mla_kv_write(const KernelContext& context, const Tensor& latent, const Tensor& k_pe,
                  const ops::MlaCache& cache, const ops::Batch& batch) {
  constexpr int64_t group = attention_rule::kLatentGroup;
  const int64_t lora = cache.latent.cols(), rope_dim = cache.rope.cols();
  const int64_t groups = (lora + group - 1) / group;
  const bool fp8 = is_fp8(cache.latent.type);
  const bool scaled = fp8 && cache.format.scale != ScaleType::unit;
  if (!latent || !k_pe || latent.rows() != batch.rows || latent.cols() != lora ||
      k_pe.rows() != batch.rows || k_pe.cols() != rope_dim || latent.type != k_pe.type ||
      (latent.type != DType::f32 && latent.type != DType::bf16) || cache.latent.shape.rank != 3 ||
      !cache.latent.contiguous() || !cache.rope.contiguous() || !is_float_type(cache.rope.type) ||
      !(fp8 || is_float_type(cache.latent.type)) ||
      (fp8 && cache.latent.type != dtype_of(cache.format.code)) ||
      (scaled && (!cache.latent_scale || !cache.latent_scale.contiguous() ||
                  cache.latent_scale.cols() != groups || cache.latent_scale.type != DType::f32))) {
    unsupported("mla_kv_write", "shapes, types or scales do not fit",
                {{"latent", latent},
                 {"k_pe", k_pe},
                 {"cache", cache.latent},
                 {"scale", cache.latent_scale},
                 {"rope", cache.rope}});
  }
  if (batch.rows == 0) return;
  const MlaPlane plane{cache.latent.as<uint8_t>(),
                       scaled ? cache.latent_scale.as<float>() : nullptr,
                       cache.rope.as<uint8_t>(),
                       cache.latent.type,
                       cache.rope.type,
                       static_cast<int>(size_of(cache.latent.type)),
                       static_cast<int>(size_of(cache.rope.type)),
                       static_cast<int>(lora),
                       static_cast<int>(rope_dim),
                       static_cast<int>(groups),
                       cache.format};
  const Pages pages = pages_of(context, "mla_kv_write", batch, cache.latent);
  visit_activation_type(latent.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto warps = static_cast<unsigned>(std::min<int64_t>(groups + 1, kMostWarps));
    launch(context, mla_kv_write_kernel<T>, dim3(static_cast<unsigned>(batch.rows)),
           dim3(kWarp * warps), 0, Matrix<const T>{latent.as<const T>(), latent.row_stride()},
           Matrix<const T>{k_pe.as<const T>(), k_pe.row_stride()}, plane, pages);
  });
}

}  // namespace octet::cuda
