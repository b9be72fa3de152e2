// MLA attention: checks and the choice of kernels.
#include "backends/cuda/kernels/attention_mla.cuh"
#include "backends/cuda/kernels/ops.h"

namespace octet::cuda {

using bf16 = __nv_bfloat16;
// Compiled in mla_attention_f16.cu, mla_attention_bf16.cu and mla_attention_f32.cu.
extern template void launch_mla_split<__half, bf16, 1>(const KernelContext&, const MlaParams&);
extern template void launch_mla_chunk<__half, bf16, 1>(const KernelContext&, const MlaParams&);
extern template void launch_mla_split<bf16, bf16, 1>(const KernelContext&, const MlaParams&);
extern template void launch_mla_chunk<bf16, bf16, 1>(const KernelContext&, const MlaParams&);
extern template void launch_mla_split<bf16, bf16, 2>(const KernelContext&, const MlaParams&);
extern template void launch_mla_chunk<bf16, bf16, 2>(const KernelContext&, const MlaParams&);
extern template void launch_mla_split<float, float, 0>(const KernelContext&, const MlaParams&);
extern template void launch_mla_chunk<float, float, 0>(const KernelContext&, const MlaParams&);

namespace {

using MlaLaunch = void (*)(const KernelContext&, const MlaParams&);
struct MlaLaunches {
  MlaLaunch split, chunk;
};
template <typename T, typename R, int Width>
constexpr MlaLaunches kLaunches{&launch_mla_split<T, R, Width>, &launch_mla_chunk<T, R, Width>};

// By the operands of the products. FP32 takes whatever is left: it can round P in any way.
const MlaLaunches& launches_for(const Tensor& q_latent, const Tensor& q_pe,
                                const ops::MlaCache& cache, bool fp8) {
  const DType type = cache.latent.type;
  const bool rope = q_pe.type == DType::bf16 && cache.rope.type == DType::bf16;
  const bool short_q = fp8 || q_latent.type == DType::bf16;
  if (rope && is_fp8(type) && fp8) return kLaunches<__half, bf16, 1>;
  if (rope && is_fp8(type) && short_q) return kLaunches<bf16, bf16, 1>;
  if (rope && type == DType::bf16 && short_q) return kLaunches<bf16, bf16, 2>;
  return kLaunches<float, float, 0>;
}

bool is_scaled(const ops::MlaCache& cache) {
  return is_fp8(cache.latent.type) && cache.format.scale != ScaleType::unit;
}

const char* refuse_mla(const Tensor& q_latent, const Tensor& q_pe, const ops::MlaCache& cache) {
  const Tensor &latent = cache.latent, &rope = cache.rope;
  if (!latent || !rope || latent.shape.rank != 3 || rope.shape.rank != 3 || q_pe.shape.rank != 3 ||
      !latent.contiguous() || !rope.contiguous() || q_latent.shape[2] != latent.shape[2] ||
      q_pe.shape[0] != q_latent.shape[0] || q_pe.shape[1] != q_latent.shape[1] ||
      q_pe.shape[2] != rope.shape[2] || latent.shape[0] != rope.shape[0] ||
      latent.shape[1] != rope.shape[1]) {
    return "shapes do not fit";
  }
  const int64_t groups = (latent.shape[2] + kLatentGroup - 1) / kLatentGroup;
  const Tensor& scale = cache.latent_scale;
  if (!is_float_type(q_pe.type) || !is_float_type(rope.type) ||
      !(is_fp8(latent.type) || is_float_type(latent.type)) ||
      (is_scaled(cache) && (!scale || scale.type != DType::f32 || !scale.contiguous() ||
                            scale.count() != latent.shape[0] * latent.shape[1] * groups))) {
    return "unsupported types or scales";
  }
  if (latent.shape[2] > 512 || rope.shape[2] > kMaxRope) {
    return "latents beyond 512 and rope parts beyond 64 have no kernel";
  }
  return nullptr;
}

}  // namespace

void mla_attention(const KernelContext& context, const Tensor& q_latent, const Tensor& q_pe,
                   const ops::MlaCache& cache, const ops::Batch& batch,
                   const ops::AttentionSpec& spec, const Tensor& out, const Tensor& lse) {
  const char* wrong = refuse_rows(batch, q_latent, out, lse);
  if (!wrong) wrong = refuse_mla(q_latent, q_pe, cache);
  if (wrong) {
    unsupported("mla_attention", wrong,
                {{"q_latent", q_latent},
                 {"q_pe", q_pe},
                 {"latent", cache.latent},
                 {"latent_scale", cache.latent_scale},
                 {"rope", cache.rope},
                 {"spans", batch.spans},
                 {"block_table", batch.block_table},
                 {"out", out},
                 {"lse", lse}});
  }
  if (batch.rows == 0 || batch.sequences.empty()) return;

  MlaParams p;
  plan_rows(batch, spec, out, lse, 1, cache.latent.shape[0], cache.latent.shape[1], p);
  p.round = round_of(spec.fp8, q_latent.type, cache.latent.type);
  p.q_latent = HeadsView(q_latent);
  p.q_pe = HeadsView(q_pe);
  p.latent = cache.latent.as<const uint8_t>();
  p.rope = cache.rope.as<const uint8_t>();
  p.cache = cache.latent.type;
  p.rope_cache = cache.rope.type;
  p.rope_dim = static_cast<int>(q_pe.shape[2]);
  if (is_scaled(cache)) {
    p.latent_scale = cache.latent_scale.as<const float>();
    p.groups = (p.dim + kLatentGroup - 1) / kLatentGroup;
  }
  p.vectors = rows_aligned(cache.latent, 16) &&
              p.dim * static_cast<int64_t>(size_of(cache.latent.type)) % 16 == 0;
  p.rope_vectors = rows_aligned(cache.rope, 16) &&
                   p.rope_dim * static_cast<int64_t>(size_of(cache.rope.type)) % 16 == 0;
  const MlaLaunches& launches = launches_for(q_latent, q_pe, cache, spec.fp8);
  if (p.chunks) launches.chunk(context, p);
  while (next_range(context, p)) {
    launches.split(context, p);
    merge_splits(context, p);
  }
}

}  // namespace octet::cuda
