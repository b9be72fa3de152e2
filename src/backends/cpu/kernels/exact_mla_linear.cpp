// MLA's two per-head products with kv_b: absorbing W_UK into the query, and expanding latents by
// W_UV. Weights may be quantized; activations stay plain.
#include <algorithm>
#include <vector>

#include "backends/cpu/kernels/exact_gemm.h"
#include "backends/cpu/kernels/exact_ops.h"

namespace octet::cpu {
namespace {

constexpr int64_t kRowChunk = 256;

}  // namespace

// The sum runs over rows of the weight, so that lanes lie along the latents: blocks of 128 rows,
// each summed in ascending order, block after block. Weights are dequantized first, since their
// scales change along the sum and across the outputs alike.
void mla_absorb(const KernelContext& context, const Tensor& q, const ops::Linear& kv_b,
                int64_t nope, const Tensor& out) {
  const int64_t heads = out.shape[1], lora = kv_b.in, per_head = kv_b.out / heads;
  const RowDecoder weights(kv_b.plain, kv_b.quant);
  const Heads q_heads(q), out_heads(out);
  const int64_t tokens = q.shape[0];
  context.threads.parallel_for(heads, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<float> w(static_cast<size_t>(nope * lora)), query(static_cast<size_t>(nope)),
        block(static_cast<size_t>(lora)), sum(static_cast<size_t>(lora));
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t n = 0; n < nope; ++n)
        weights.dequantize(head * per_head + n, w.data() + n * lora);
      for (int64_t token = 0; token < tokens; ++token) {
        load_floats(q.type, q_heads.at(token, head), nope, query.data());
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t n = 0; n < nope; n += kDotBlock) {
          weighted_sum(query.data() + n, w.data() + n * lora, lora, std::min(kDotBlock, nope - n),
                       lora, block.data());
          for (size_t c = 0; c < sum.size(); ++c) sum[c] += block[c];
        }
        store_floats(out.type, sum.data(), lora, out_heads.at(token, head));
      }
    }
  });
}

// One linear a head: the rows of the weight that make V.
void mla_expand(const KernelContext& context, const Tensor& o_latent, const ops::Linear& kv_b,
                int64_t nope, const Tensor& out) {
  const int64_t heads = out.shape[1], lora = kv_b.in, per_head = kv_b.out / heads;
  const int64_t v = per_head - nope;
  const RowDecoder weights(kv_b.plain, kv_b.quant);
  const Segments segments = segments_of(lora, weights.scale_step());
  const int64_t tokens = o_latent.shape[0], chunk = std::min(tokens, kRowChunk);
  const int64_t columns = chunk <= 4 ? 8 : 32;
  const int64_t x_floats = (chunk * segments.stride() + 15) / 16 * 16;
  const int64_t floats = x_floats + multiply_scratch(segments, columns);
  float* const scratch =
      context.scratch.take<float>(0, static_cast<size_t>(floats * context.threads.size()));
  const std::vector<float> ones(static_cast<size_t>(chunk), 1.0f);
  const Heads x_heads(o_latent), out_heads(out);
  context.threads.parallel_for(heads, 1, [&](int64_t begin, int64_t end, int thread) {
    float* const x = scratch + thread * floats;
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t first = 0; first < tokens; first += chunk) {
        const int64_t count = std::min(chunk, tokens - first);
        for (int64_t i = 0; i < count; ++i) {
          float* const row = x + i * segments.stride();
          std::fill(row, row + segments.stride(), 0.0f);
          // Segments without gaps lie as the row does; else the row is spread over them.
          const auto element = static_cast<int64_t>(size_of(o_latent.type));
          for (int64_t s = 0; s < segments.count; ++s) {
            const int64_t k = s * segments.length;
            load_floats(o_latent.type, x_heads.at(first + i, head) + k * element,
                        std::min(segments.length, lora - k), row + s * segments.padded);
          }
        }
        Tensor part(out_heads.at(first, head), out.type, {count, v});
        part.strides[0] = out.strides[0];
        const int64_t row = head * per_head + nope;
        multiply_range(segments, {x, nullptr, ones.data(), count}, weights, Tensor{}, row, row + v,
                       row, columns, x + x_floats, part);
      }
    }
  });
}

}  // namespace octet::cpu
