// The steps of attention_rule.h that go row by row, whatever multiplies: softmax, and P. Needs
// AVX-512.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cpu/kernels/fast_attention_core.h"
#include "backends/cpu/kernels/fast_attention_simd.h"

namespace octet::cpu::attention {

// Slots [begin, end) of the tile that a row sees.
struct Seen {
  int begin, end;
  uint64_t mask() const {
    if (begin >= end) return 0;
    const uint64_t upto = end == kTile ? ~uint64_t{0} : (uint64_t{1} << end) - 1;
    return upto & ~((uint64_t{1} << begin) - 1);
  }
};
inline Seen seen_slots(int64_t position, int64_t window, int64_t first) {
  const attention_rule::Visible visible = attention_rule::visible(position, window);
  const auto clamp = [&](int64_t p) {
    return static_cast<int>(std::clamp<int64_t>(p - first, 0, kTile));
  };
  return {clamp(visible.begin), clamp(visible.end)};
}

#if defined(__x86_64__)

// The least M of a row that has seen something, one step above kNoMax. Without it a row whose
// scores are all NaN, which no maximum shows, would pass for one that has seen nothing, and its NaN
// sums would be dropped at the merge.
inline constexpr float kLeastMax = -0x1.fffffep99f;
static_assert(kLeastMax > attention_rule::kNoMax);

// Steps 2 to 4 for one row: x becomes p in place. Returns the factor 2^(M - M') for O.
OCTET_AVX512_INLINE float soften(uint64_t mask, float* x, float& max, float* sum) {
  const __m512 none = _mm512_set1_ps(attention_rule::kNoMax);
  const __mmask16 m[4] = {static_cast<__mmask16>(mask), static_cast<__mmask16>(mask >> 16),
                          static_cast<__mmask16>(mask >> 32), static_cast<__mmask16>(mask >> 48)};
  __m512 s[4];
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) s[v] = _mm512_load_ps(x + 16 * v);
  const __m512 top = simd::lane_max(_mm512_max_ps(
      _mm512_max_ps(_mm512_mask_mov_ps(none, m[0], s[0]), _mm512_mask_mov_ps(none, m[1], s[1])),
      _mm512_max_ps(_mm512_mask_mov_ps(none, m[2], s[2]), _mm512_mask_mov_ps(none, m[3], s[3]))));
  const __m512 old_max = _mm512_set1_ps(max);
  // The second operand wins over a NaN: M is never NaN, p and l are.
  const __m512 new_max =
      _mm512_max_ps(_mm512_roundscale_ps(top, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC),
                    _mm512_max_ps(old_max, _mm512_set1_ps(kLeastMax)));
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    s[v] = simd::exp2(_mm512_sub_ps(s[v], new_max), m[v]);
    _mm512_store_ps(x + 16 * v, s[v]);
  }
  // 2^(M - M'), and 0 below 2^-126.
  const __m512 difference = _mm512_sub_ps(old_max, new_max);
  const __mmask16 near = _mm512_cmp_ps_mask(difference, _mm512_set1_ps(-126.0f), _CMP_GE_OQ);
  const __m512 factor = _mm512_maskz_scalef_ps(near, _mm512_set1_ps(1.0f), difference);
  const __m512 added = _mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3]));
  _mm512_store_ps(sum, _mm512_fmadd_ps(_mm512_load_ps(sum), factor, added));
  max = _mm512_cvtss_f32(new_max);
  return _mm512_cvtss_f32(factor);
}

// Step 5 for one row and group: P from p. `weight` is v_scale / S; slots outside `mask` have p = 0
// and perhaps a poisoned weight.
OCTET_AVX512_INLINE void round_p(RoundP round, uint64_t mask, const float* p, const float* weight,
                                 float* out) {
  for (int v = 0; v < kTile; v += 16) {
    __m512 x = _mm512_load_ps(p + v);
    if (weight) {
      x = _mm512_maskz_mul_ps(static_cast<__mmask16>(mask >> v), x, _mm512_load_ps(weight + v));
    }
    if (round == RoundP::e4m3) {
      x = simd::round_e4m3(_mm512_mul_ps(x, _mm512_set1_ps(attention_rule::kPScale)));
    } else if (round == RoundP::bf16) {
      x = simd::round_bf16(x);
    }
    _mm512_store_ps(out + v, x);
  }
}

#endif

}  // namespace octet::cpu::attention
