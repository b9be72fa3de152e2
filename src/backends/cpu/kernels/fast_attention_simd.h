// What the attention kernels need beyond simd_avx512.h.
#pragma once

#if defined(__x86_64__)

#include "backends/cpu/kernels/simd_avx512.h"

namespace octet::cpu::simd {

// 2^x for x <= 0: attention_rule::exp2 with fused multiply-adds, at most 2 units in the last place
// off. Lanes outside `mask` and below -126 are 0; NaN stays NaN.
OCTET_AVX512_INLINE __m512 exp2(__m512 x, __mmask16 mask) {
  const __m512 to_integer = _mm512_set1_ps(0x1.8p23f);
  const __m512 shifted = _mm512_add_ps(x, to_integer);
  const __m512 t = _mm512_mul_ps(_mm512_sub_ps(x, _mm512_sub_ps(shifted, to_integer)),
                                 _mm512_set1_ps(0x1.62e43p-1f));
  __m512 q = _mm512_set1_ps(0x1.6a23bap-10f);
  q = _mm512_fmadd_ps(q, t, _mm512_set1_ps(0x1.123a22p-7f));
  q = _mm512_fmadd_ps(q, t, _mm512_set1_ps(0x1.5558f4p-5f));
  q = _mm512_fmadd_ps(q, t, _mm512_set1_ps(0x1.55549p-3f));
  q = _mm512_fmadd_ps(q, t, _mm512_set1_ps(0x1.fffffcp-2f));
  q = _mm512_fmadd_ps(q, t, _mm512_set1_ps(1.0f));
  q = _mm512_fmadd_ps(q, t, _mm512_set1_ps(1.0f));
  // The integer sits in the low bits of `shifted`; shifted up it adds to the exponent of q.
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  const __m512 result = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(q), exponent));
  // Not "x >= -126": a NaN must come through.
  const __mmask16 keep = _mm512_mask_cmp_ps_mask(mask, x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return _mm512_maskz_mov_ps(keep,
                             _mm512_mask_mov_ps(result, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x));
}

// The nearest E4M3 value of x in [0, 448), ties to even. Adding 2^(e+20) to a number with exponent
// e leaves three bits of its mantissa; for subnormals (e < -6) the same constant, 2^14, leaves
// multiples of 2^-9.
OCTET_AVX512_INLINE __m512 round_e4m3(__m512 x) {
  const __m512i exponent = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7F800000));
  const __m512 big =
      _mm512_castsi512_ps(_mm512_max_epi32(_mm512_add_epi32(exponent, _mm512_set1_epi32(20 << 23)),
                                           _mm512_set1_epi32((127 + 14) << 23)));
  return _mm512_sub_ps(_mm512_add_ps(x, big), big);
}

// The nearest BF16 value of x in [0, 1], ties to even, by the same trick.
OCTET_AVX512_INLINE __m512 round_bf16(__m512 x) {
  const __m512i exponent = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7F800000));
  const __m512 big = _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(16 << 23)));
  return _mm512_sub_ps(_mm512_add_ps(x, big), big);
}

// 16 BF16 values as FP32.
OCTET_AVX512_INLINE __m512 widen_bf16(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

// Sum and maximum over lanes, in a fixed tree. max_ps returns its second operand if one is NaN, so
// a NaN may or may not come out; callers see it in the sum.
OCTET_AVX512_INLINE float lane_sum(__m512 x) {
  x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0x4E));
  x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0xB1));
  x = _mm512_add_ps(x, _mm512_permute_ps(x, 0x4E));
  x = _mm512_add_ps(x, _mm512_permute_ps(x, 0xB1));
  return _mm512_cvtss_f32(x);
}
OCTET_AVX512_INLINE __m512 lane_max(__m512 x) {
  x = _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0x4E));
  x = _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0xB1));
  x = _mm512_max_ps(x, _mm512_permute_ps(x, 0x4E));
  return _mm512_max_ps(x, _mm512_permute_ps(x, 0xB1));
}

// Of each four lanes: r[i] lane j = x[j] lane i.
OCTET_AVX512_INLINE void transpose_quads(const __m512i (&x)[4], __m512i* r) {
  const __m512i low01 = _mm512_unpacklo_epi32(x[0], x[1]);
  const __m512i high01 = _mm512_unpackhi_epi32(x[0], x[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(x[2], x[3]);
  const __m512i high23 = _mm512_unpackhi_epi32(x[2], x[3]);
  r[0] = _mm512_unpacklo_epi64(low01, low23);
  r[1] = _mm512_unpackhi_epi64(low01, low23);
  r[2] = _mm512_unpacklo_epi64(high01, high23);
  r[3] = _mm512_unpackhi_epi64(high01, high23);
}

// rows[i] lane j <-> rows[j] lane i.
OCTET_AVX512_INLINE void transpose16(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  // r[4i + c]: in its 128-bit lane l, column 4l + c of rows 4i .. 4i+3.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  // Gather lane l of the four quarters.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);           // lanes 0, 2 of rows 0-7
    t[4 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);  // lanes 0, 2 of rows 8-15
    t[8 + c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xDD);       // lanes 1, 3
    t[12 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xDD);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x88);
    r[8 + c] = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xDD);
    r[4 + c] = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x88);
    r[12 + c] = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xDD);
  }
}

}  // namespace octet::cpu::simd
#endif  // __x86_64__
