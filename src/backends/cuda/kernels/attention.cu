// GQA attention: checks and the choice of kernels.
#include "backends/cuda/kernels/attention_gqa_launch.cuh"
#include "backends/cuda/kernels/ops.h"

namespace octet::cuda {

// Compiled in attention_f16.cu, attention_bf16.cu and attention_f32.cu.
extern template void launch_gqa_split<__half, 1>(const KernelContext&, const GqaParams&);
extern template void launch_gqa_chunk<__half, 1>(const KernelContext&, const GqaParams&);
extern template void launch_gqa_split<__nv_bfloat16, 1>(const KernelContext&, const GqaParams&);
extern template void launch_gqa_chunk<__nv_bfloat16, 1>(const KernelContext&, const GqaParams&);
extern template void launch_gqa_split<__nv_bfloat16, 2>(const KernelContext&, const GqaParams&);
extern template void launch_gqa_chunk<__nv_bfloat16, 2>(const KernelContext&, const GqaParams&);
extern template void launch_gqa_split<float, 0>(const KernelContext&, const GqaParams&);
extern template void launch_gqa_chunk<float, 0>(const KernelContext&, const GqaParams&);

namespace {

using GqaLaunch = void (*)(const KernelContext&, const GqaParams&);
struct GqaLaunches {
  GqaLaunch split, chunk;
};
template <typename T, int Width>
constexpr GqaLaunches kLaunches{&launch_gqa_split<T, Width>, &launch_gqa_chunk<T, Width>};

// By the operands of the products; see attention_tile.cuh.
const GqaLaunches& launches_for(const Tensor& q, DType cache, bool fp8) {
  if (is_fp8(cache) && fp8) return kLaunches<__half, 1>;
  if (is_fp8(cache) && q.type == DType::bf16) return kLaunches<__nv_bfloat16, 1>;
  if (cache == DType::bf16 && (fp8 || q.type == DType::bf16)) return kLaunches<__nv_bfloat16, 2>;
  return kLaunches<float, 0>;
}

bool cache_fits(const ops::GqaCache& cache, const Tensor& q) {
  const Tensor& k = cache.k;
  return k && cache.v && k.shape.rank == 4 && cache.v.shape == k.shape && k.contiguous() &&
         cache.v.contiguous() && q.shape[2] == k.shape[3] && k.shape[2] > 0 &&
         q.shape[1] % k.shape[2] == 0;
}
bool cache_types_fit(const ops::GqaCache& cache) {
  const auto scale_fits = [&](const Tensor& scale) {
    return scale && scale.type == DType::f32 && scale.contiguous() &&
           scale.count() == cache.k.shape[0] * cache.k.shape[2];
  };
  const DType type = cache.k.type;
  return cache.v.type == type &&
         (is_fp8(type) ? scale_fits(cache.k_scale) && scale_fits(cache.v_scale)
                       : is_float_type(type));
}

GqaParams params_of(const Tensor& q, const ops::GqaCache& cache, const ops::Batch& batch,
                    const ops::AttentionSpec& spec, const Tensor& out, const Tensor& lse) {
  const char* wrong = refuse_rows(batch, q, out, lse);
  if (!wrong && !cache_fits(cache, q)) wrong = "shapes do not fit";
  if (!wrong && !cache_types_fit(cache)) wrong = "unsupported types or scales";
  if (!wrong && q.shape[2] > 256) wrong = "head dimensions beyond 256 have no kernel";
  if (wrong) {
    unsupported("attention", wrong,
                {{"q", q},
                 {"k", cache.k},
                 {"v", cache.v},
                 {"k_scale", cache.k_scale},
                 {"v_scale", cache.v_scale},
                 {"spans", batch.spans},
                 {"block_table", batch.block_table},
                 {"out", out},
                 {"lse", lse}});
  }
  GqaParams p;
  plan_rows(batch, spec, out, lse, cache.k.shape[2], cache.k.shape[0], cache.k.shape[1], p);
  p.round = round_of(spec.fp8, q.type, cache.k.type);
  p.q = HeadsView(q);
  p.k = cache.k.as<const uint8_t>();
  p.v = cache.v.as<const uint8_t>();
  if (is_fp8(cache.k.type)) {
    p.k_scale = cache.k_scale.as<const float>();
    p.v_scale = cache.v_scale.as<const float>();
  }
  p.cache = cache.k.type;
  p.vectors = rows_aligned(cache.k, 16) && rows_aligned(cache.v, 16) &&
              q.shape[2] * static_cast<int64_t>(size_of(cache.k.type)) % 16 == 0;
  return p;
}

}  // namespace

void attention(const KernelContext& context, const Tensor& q, const ops::GqaCache& cache,
               const ops::Batch& batch, const ops::AttentionSpec& spec, const Tensor& out,
               const Tensor& lse) {
  GqaParams p = params_of(q, cache, batch, spec, out, lse);
  if (batch.rows == 0 || batch.sequences.empty()) return;
  const GqaLaunches& launches = launches_for(q, cache.k.type, spec.fp8);
  if (p.chunks) launches.chunk(context, p);
  while (next_range(context, p)) {
    launches.split(context, p);
    merge_splits(context, p);
  }
}

bool rope_kv_attention(const KernelContext& context, const Tensor& q, const Tensor& k,
                       const Tensor& v, const ops::RopeTable& table, const ops::GqaCache& cache,
                       const ops::Batch& batch, const ops::AttentionSpec& spec, const Tensor& out,
                       const Tensor& lse) {
  const int64_t dim = q.cols();
  const DType type = cache.k.type;
  const auto fits = [](const Tensor& x) {
    return x.type == DType::bf16 && x.shape.rank == 3 && HeadsView(x).vectors;
  };
  if (batch.rows == 0 || batch.sequences.empty() || !fits(q) || !fits(k) || !fits(v) ||
      (dim != 64 && dim != 128 && dim != 256) || !(is_fp8(type) || type == DType::bf16) ||
      cache.v.type != type || table.interleaved || table.cos.cols() * 2 != dim ||
      !rows_aligned(table.cos, 16) || !rows_aligned(table.sin, 16)) {
    return false;
  }
  GqaParams p = params_of(q, cache, batch, spec, out, lse);
  // One launch must do for all sequences, or the second would find what the first wrote.
  if (p.chunks || p.packs != 1 || !p.vectors || !next_range(context, p) || p.range != p.sequences ||
      !splits_in_clusters(context, p)) {
    return false;
  }
  const char* const op = "rope_kv_attention";
  const int64_t group = cache.group_tokens;
  p.fresh.here = true;
  p.fresh.planes = {{paged::plane_of<__nv_bfloat16>(op, k, cache.k, cache.k_scale, cache.k_absmax,
                                                    cache.fixed_k_scale, group, batch.rows),
                     paged::plane_of<__nv_bfloat16>(op, v, cache.v, cache.v_scale, cache.v_absmax,
                                                    cache.fixed_v_scale, group, batch.rows)}};
  p.fresh.shape = {p.kv_heads, p.dim, static_cast<int>(std::max<int64_t>(group, 1))};
  p.fresh.pages = paged::pages_of(context, op, batch, cache.k);
  p.fresh.angles = paged::angles_of(table);
  launches_for(q, type, spec.fp8).split(context, p);
  merge_splits(context, p);
  return true;
}

}  // namespace octet::cuda
