// MLA attention in absorbed form over the paged latent cache with AVX-512 or AMX: the fast rows of
// the table. To the driver it is one KV head, whose K is latent and rope part and whose V is the
// latent.
#include <fmt/format.h>

#include <algorithm>

#include "backends/cpu/kernels/fast_attention_driver.h"

namespace octet::cpu {
namespace {

using attention::Problem;

template <bool Amx>
void attend(const KernelContext& context, const Tensor& q_latent, const Tensor& q_pe,
            const ops::MlaCache& cache, const ops::Batch& batch, const ops::AttentionSpec& spec,
            const Tensor& out, const Tensor& lse) {
  const int64_t lora = q_latent.shape[2], rope = q_pe.shape[2];
  const bool fits = q_latent.shape.rank == 3 && q_pe.shape.rank == 3 &&
                    cache.latent.shape.rank == 3 && cache.latent.shape[2] == lora &&
                    cache.rope.shape[2] == rope && cache.rope.shape[1] == cache.latent.shape[1] &&
                    out.shape == q_latent.shape;
  if (!fits) {
    throw Fault(
        fmt::format("mla_attention: q {} and {}, cache {} and {}, out {} do not fit together",
                    to_string(q_latent), to_string(q_pe), to_string(cache.latent),
                    to_string(cache.rope), to_string(out)));
  }
  Problem problem;
  attention::TileShape& shape = problem.shape;
  shape.mla = true;
  shape.k_dims = shape.v_dims = static_cast<int>(lora);
  shape.rope_dims = static_cast<int>(rope);
  shape.group_dims = static_cast<int>(std::min(lora, attention_rule::kLatentGroup));
  shape.groups = static_cast<int>((lora - 1) / attention_rule::kLatentGroup + 1);
  shape.wide = cache.latent.type == DType::f32;
  shape.codes = is_fp8(cache.latent.type);
  shape.wide_rope = cache.rope.type == DType::f32;
  shape.amx = Amx && !shape.wide_rope;  // which a description does not tell, but a model does
  problem.math.scale = spec.scale * attention_rule::kLog2e;
  problem.math.window = spec.window;
  problem.math.round = attention::round_of(spec, q_latent.type, cache.latent.type);
  problem.quantize_q = spec.fp8;
  problem.group = q_latent.shape[1];
  problem.q = q_latent;
  problem.q_pe = q_pe;
  problem.out = out;
  problem.lse = lse;
  problem.batch = &batch;
  problem.blocks = cache.latent.shape[0];

  const auto element = static_cast<int64_t>(size_of(cache.latent.type));
  const auto rope_element = static_cast<int64_t>(size_of(cache.rope.type));
  attention::TileSource& source = problem.source;
  source.type = cache.latent.type;
  source.rope_type = cache.rope.type;
  source.block_tokens = cache.latent.shape[1];
  source.k = cache.latent.as<const std::byte>();
  source.k_block = cache.latent.strides[0] * element;
  source.k_token = cache.latent.strides[1] * element;
  source.rope = cache.rope.as<const std::byte>();
  source.rope_block = cache.rope.strides[0] * rope_element;
  source.rope_token = cache.rope.strides[1] * rope_element;
  if (cache.latent_scale) {
    source.k_scale = source.v_scale = cache.latent_scale.as<const float>();
    source.k_scale_block = source.v_scale_block = cache.latent_scale.strides[0];
    source.scale_token = cache.latent_scale.strides[1];
  }
  attention::run(context, problem);
}

constexpr MlaAttentionRow kRows[] = {
    {"avx512", "attention_tiles", attention::refuses, attention::estimate_us, attend<false>},
    {"amx", "attention_tiles_pairs", attention::amx_refuses, attention::amx_estimate_us,
     attend<true>},
};

}  // namespace

std::span<const MlaAttentionRow> fast_mla_attention_rows() {
  return kRows;
}

}  // namespace octet::cpu
