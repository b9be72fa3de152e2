// Causal GQA attention over the paged cache with AVX-512 or AMX: the fast rows of the table.
#include <fmt/format.h>

#include "backends/cpu/kernels/fast_attention_driver.h"

namespace octet::cpu {
namespace {

using attention::Problem;

template <bool Amx>
void attend(const KernelContext& context, const Tensor& q, const ops::GqaCache& cache,
            const ops::Batch& batch, const ops::AttentionSpec& spec, const Tensor& out,
            const Tensor& lse) {
  const int64_t heads = q.shape[1], dim = q.shape[2], kv_heads = cache.k.shape[2];
  const bool fits = q.shape.rank == 3 && cache.k.shape.rank == 4 &&
                    cache.k.shape == cache.v.shape && cache.k.type == cache.v.type &&
                    cache.k.shape[3] == dim && heads % kv_heads == 0 && out.shape == q.shape;
  if (!fits) {
    throw Fault(fmt::format("attention: q {}, K {}, V {}, out {} do not fit together", to_string(q),
                            to_string(cache.k), to_string(cache.v), to_string(out)));
  }
  Problem problem;
  problem.shape.k_dims = problem.shape.v_dims = problem.shape.group_dims = static_cast<int>(dim);
  problem.shape.wide = cache.k.type == DType::f32;
  problem.shape.codes = is_fp8(cache.k.type);
  problem.shape.amx = Amx;
  problem.math.scale = spec.scale * attention_rule::kLog2e;
  problem.math.window = spec.window;
  problem.math.round = attention::round_of(spec, q.type, cache.k.type);
  problem.quantize_q = spec.fp8;
  problem.kv_heads = kv_heads;
  problem.group = heads / kv_heads;
  problem.q = q;
  problem.out = out;
  problem.lse = lse;
  problem.batch = &batch;
  problem.blocks = cache.k.shape[0];

  const auto element = static_cast<int64_t>(size_of(cache.k.type));
  attention::TileSource& source = problem.source;
  source.type = cache.k.type;
  source.block_tokens = cache.k.shape[1];
  source.k = cache.k.as<const std::byte>();
  source.k_block = cache.k.strides[0] * element;
  source.k_token = cache.k.strides[1] * element;
  source.k_head = cache.k.strides[2] * element;
  source.v = cache.v.as<const std::byte>();
  source.v_block = cache.v.strides[0] * element;
  source.v_token = cache.v.strides[1] * element;
  source.v_head = cache.v.strides[2] * element;
  if (is_fp8(cache.k.type)) {
    source.k_scale = cache.k_scale.as<const float>();
    source.v_scale = cache.v_scale.as<const float>();
    source.k_scale_block = cache.k_scale.strides[0];
    source.v_scale_block = cache.v_scale.strides[0];
    source.scale_head = 1;
    if (cache.token_heads()) source.scale_token = cache.k_scale.strides[1];
  }
  attention::run(context, problem);
}

constexpr AttentionRow kRows[] = {
    {"avx512", "attention_tiles", attention::refuses, attention::estimate_us, attend<false>},
    {"amx", "attention_tiles_pairs", attention::amx_refuses, attention::amx_estimate_us,
     attend<true>},
};

}  // namespace

std::span<const AttentionRow> fast_attention_rows() {
  return kRows;
}

}  // namespace octet::cpu
