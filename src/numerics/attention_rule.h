// The one rule by which attention is computed: what is grouped, scaled, rounded and summed, and in
// which order. The exact and the fast kernels of the CPU and the kernels of CUDA all follow it, so
// they differ by FP32 rounding alone. GQA and MLA (absorbed) are one rule: GQA has one value group
// and no rope part.
//
// Everything lies at absolute positions, so that chunks, prefix hits, batch mates and threads
// cannot change a bit:
//
//   position  0      64     128            1024                       2048
//             | tile | tile | ... 16 ...   | tile | tile | ...        |
//             |<------- split 0 ---------->|<------- split 1 -------->|
//
// A row is one (token, head). It sees the positions visible(position, window); a tile or split of
// which it sees nothing leaves it untouched. Bytes and scales of positions that it does not see may
// be anything, NaN included: they are selected away, never multiplied by zero.
//
// For every row, split by split, and in each tile by tile, ascending:
//
//   1. score  x[t] = ((sum over groups g of k_scale[t,g] * (q_g . k_g)) * q_scale + q_pe . k_pe) *
//   c
//             c = spec.scale * log2(e), so that powers of two replace powers of e.
//             FP8 mode: q (for MLA the latent query) is E4M3 codes with one scale a row, by
//             numerics/quantize.h. Otherwise q is taken as it is and q_scale = 1. K enters as
//             stored, codes by their exact values. k_scale: GQA one group, the scale of the block
//             of t; MLA a group for every 128 latents; 1 where the cache has none.
//             q_pe and k_pe are never quantized: they enter as stored.
//   2. max    M' = max(M, ceil(max x[t])), an integer: M starts at kNoMax in every split. Whole
//             powers of two make every rescaling below exact, and the rounding of P does not depend
//             on how the maximum developed (its subnormals excepted).
//   3. p[t]   = exp2(x[t] - M'), in (0, 1]; 0 where masked
//   4. sum    l = l * 2^(M - M') + sum p[t], FP32, p not rounded
//   5. P      for every value group g, with S = value_scale over the positions of the tile that the
//             row sees: P[t] = round(p[t] * (v_scale[t,g] / S)), where round is
//               FP8 mode: E4M3 of 256 times the value (nearest, ties to even)
//               activations bf16 (and K, V not f32): BF16
//               else: none
//             GQA's scales are equal within a tile, or differ by powers of two, so that the ratio
//             is exact (nearly always 1). MLA's scale of each token and group cannot leave the sum;
//             S is rounded up to a power of two there, which makes both the ratio and step 6 exact.
//   6. value  O = O * 2^(M - M') + (sum P[t] * v[t]) * (S / 256, or S outside FP8 mode)
//             the inner sum is FP32 and starts from zero in every tile: that is also where an FP8
//             tensor core must hand over to FP32 registers.
//
// After the last tile of a split it is merged into the row's total (merge_factors): exact scaling,
// one FP32 addition. In the end out = O / l, rounded once, and lse = M ln 2 + ln l. l = 0: out = 0,
// lse = -Inf.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "numerics/e8m0.h"
#include "numerics/fp8.h"
#include "numerics/quantize.h"

namespace octet::attention_rule {

inline constexpr int64_t kTileTokens = 64;
inline constexpr int64_t kSplitTokens = 1024;  // a multiple of the tile
inline constexpr int64_t kLatentGroup = 128;   // MLA: latents that share a scale
inline constexpr float kPScale = 256.0f;       // the largest power of two that E4M3 holds
inline constexpr float kNoMax = -0x1p100f;     // M of a row that has seen nothing: finite, so that
                                               // no Inf - Inf can arise
inline constexpr float kLog2e = 0x1.715476p0f;
inline constexpr QuantFormat kQueryFormat{Code::e4m3, grids::row, ScaleType::f32};

// Positions [begin, end) that a query at `position` sees.
struct Visible {
  int64_t begin, end;
};
constexpr Visible visible(int64_t position, int64_t window) {
  return {window > 0 && position + 1 > window ? position + 1 - window : 0, position + 1};
}

// S of step 5, from the largest v_scale that the row sees in the tile.
constexpr float value_scale(float max_scale, bool mla) {
  return mla ? ceil_pow2(max_scale) : max_scale;
}

// 2^x for x <= 0, at most 2 units in the last place off; 0 below -126 (nothing that small counts
// next to the maximum), NaN for NaN. x = n + r with |r| <= 1/2, then the polynomial of exact::exp
// at r ln 2.
constexpr float exp2(float x) {
  constexpr float to_integer = 0x1.8p23f;
  const float a = x < -127.0f ? -127.0f : x;
  const float shifted = a + to_integer;
  const float n = shifted - to_integer;
  const float t = (a - n) * 0x1.62e43p-1f;
  float q = 0x1.6a23bap-10f;
  q = q * t + 0x1.123a22p-7f;
  q = q * t + 0x1.5558f4p-5f;
  q = q * t + 0x1.55549p-3f;
  q = q * t + 0x1.fffffcp-2f;
  const float e = 1.0f + (t + (t * t) * q);
  const uint32_t k = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(to_integer);
  const float result = e * std::bit_cast<float>((k + 127u) << 23);
  return x < -126.0f ? 0.0f : result;
}

// 2^(from - to) for integers from <= to: exact; 0 when it would not be a normal number (or one).
constexpr float pow2_factor(float from, float to) {
  const float difference = from - to;
  if (!(difference >= -126.0f)) return 0.0f;
  return std::bit_cast<float>(static_cast<uint32_t>(127 + static_cast<int32_t>(difference)) << 23);
}

// The E4M3 value nearest to 256 p, for P in FP8 mode.
constexpr float round_p_e4m3(float p) {
  return fp8_decode<Code::e4m3>(fp8_encode<Code::e4m3>(p * kPScale));
}

// A split (M_s, l_s, O_s) joins the total (M_t, l_t, O_t), in ascending order of the splits:
//   M = max(M_t, M_s),   l = l_t * total + l_s * split,   O likewise.
// An untouched total is replaced, an untouched split skipped: then no addition happens at all.
struct MergeFactors {
  float max, total, split;
};
constexpr MergeFactors merge_factors(float total_max, float split_max) {
  const float max = total_max < split_max ? split_max : total_max;
  return {max, pow2_factor(total_max, max), pow2_factor(split_max, max)};
}

}  // namespace octet::attention_rule
