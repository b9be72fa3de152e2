// AVX-512 building blocks: exact FP8 decoding by table look-up, the fixed reduction tree, masked
// tails. Only functions marked OCTET_AVX512 may use them; the rest of the program is built for
// plain x86-64, and the processor is asked (CpuCaps) before one of them is called.
#pragma once

#if defined(__x86_64__)

// g++ 12 takes the deliberately undefined operands inside its own intrinsics for mistakes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include <array>
#include <bit>
#include <cstdint>

#include "numerics/fp8.h"

// One set of features for all, as a function is only inlined into one with the same set.
#define OCTET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi,avx512vnni")))
// The same and AMX, for functions that multiply tiles.
#define OCTET_AMX                                                                                \
  __attribute__((                                                                                \
      target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi,avx512vnni,amx-tile,amx-" \
             "bf16")))
// Helpers of the innermost loops: without inlining, vectors would travel through memory.
#define OCTET_AVX512_INLINE inline OCTET_AVX512 __attribute__((always_inline))
#define OCTET_AMX_INLINE inline OCTET_AMX __attribute__((always_inline))

namespace octet::cpu::simd {

// The BF16 bits of the 128 non-negative codes, low and high bytes apart: each half is 128 bytes,
// two registers, which vpermi2b searches for 64 codes at once. BF16 holds every FP8 value exactly,
// subnormals included (their exponents are normal there).
struct Fp8Bytes {
  alignas(64) std::array<uint8_t, 128> low{}, high{};
};
template <Code F>
inline constexpr Fp8Bytes fp8_bytes = [] {
  Fp8Bytes bytes;
  for (int code = 0; code < 128; ++code) {
    const uint32_t bits = std::bit_cast<uint32_t>(fp8_decode<F>(static_cast<uint8_t>(code)));
    bytes.low[code] = static_cast<uint8_t>(bits >> 16);
    bytes.high[code] = static_cast<uint8_t>(bits >> 24);
  }
  return bytes;
}();

struct Fp8Table {
  __m512i low0, low1, high0, high1, sign;
};
template <Code F>
OCTET_AVX512_INLINE Fp8Table load_fp8_table() {
  const Fp8Bytes& bytes = fp8_bytes<F>;
  return {_mm512_load_si512(bytes.low.data()), _mm512_load_si512(bytes.low.data() + 64),
          _mm512_load_si512(bytes.high.data()), _mm512_load_si512(bytes.high.data() + 64),
          _mm512_set1_epi8(static_cast<char>(0x80))};
}

// 64 codes to 64 BF16 values in two registers. Unpacking works on 128-bit lanes, so the order is
//   first:  codes 0..7, 16..23, 32..39, 48..55     second: codes 8..15, 24..31, 40..47, 56..63
OCTET_AVX512_INLINE void decode_fp8(const Fp8Table& table, __m512i codes, __m512i& first,
                                    __m512i& second) {
  const __m512i low = _mm512_permutex2var_epi8(table.low0, codes, table.low1);
  const __m512i magnitude = _mm512_permutex2var_epi8(table.high0, codes, table.high1);
  const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, table.sign, 0xF8);  // a | b & c
  first = _mm512_unpacklo_epi8(low, high);
  second = _mm512_unpackhi_epi8(low, high);
}

// With its 8-byte pieces in this order, decode_fp8 gives codes 0..31 in the first result and 32..63
// in the second.
OCTET_AVX512_INLINE __m512i in_order() {
  return _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
}

// 32 BF16 values to FP32: those of even and of odd index.
OCTET_AVX512_INLINE __m512 even_bf16(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
OCTET_AVX512_INLINE __m512 odd_bf16(__m512i pairs) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
}

// What reduce16 adds: floats, or integers in the registers of floats.
struct AddFloats {
  OCTET_AVX512_INLINE static __m512 add(__m512 x, __m512 y) { return _mm512_add_ps(x, y); }
};
struct AddIntegers {
  OCTET_AVX512_INLINE static __m512 add(__m512 x, __m512 y) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_castps_si512(y)));
  }
};

// Steps of reduce16. Each adds two registers into one: what stands in its place already is blended,
// and only its partners are shuffled.
//   pairs: lanes 0+2 and 1+3 of every quad of x, then of y   quads: one sum a quad, of x and y in
//   turn
template <class Lanes>
OCTET_AVX512_INLINE __m512 add_pairs(__m512 x, __m512 y) {
  return Lanes::add(_mm512_mask_blend_ps(0xCCCC, x, y), _mm512_shuffle_ps(x, y, 0x4E));
}
template <class Lanes>
OCTET_AVX512_INLINE __m512 add_quads(__m512 x, __m512 y) {
  const __m512i partners =
      _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);
  return Lanes::add(_mm512_mask_blend_ps(0xAAAA, x, y), _mm512_permutex2var_ps(x, partners, y));
}
template <class Lanes>
OCTET_AVX512_INLINE __m512 add_quads(const float* from) {
  return add_quads<Lanes>(add_pairs<Lanes>(_mm512_load_ps(from), _mm512_load_ps(from + 32)),
                          add_pairs<Lanes>(_mm512_load_ps(from + 16), _mm512_load_ps(from + 48)));
}
// Quads 0+2 and 1+3 of x, then of y.
template <class Lanes>
OCTET_AVX512_INLINE __m512 add_halves(__m512 x, __m512 y) {
  return Lanes::add(_mm512_mask_blend_ps(0xFF00, x, y), _mm512_shuffle_f32x4(x, y, 0x4E));
}

// The sums of the lanes of each of the sixteen registers at `from`, `from` + 16, ...: lane i is
// that of register i, added as
//   q[j] = (lane j + lane j+2) + (lane j+1 + lane j+3) in each quad, then (q0 + q2) + (q1 + q3).
template <class Lanes>
OCTET_AVX512_INLINE __m512 reduce16(const float* from) {
  const __m512 even = add_halves<Lanes>(add_quads<Lanes>(from), add_quads<Lanes>(from + 8 * 16));
  const __m512 odd =
      add_halves<Lanes>(add_quads<Lanes>(from + 4 * 16), add_quads<Lanes>(from + 12 * 16));
  const __m512i partners =
      _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
  return Lanes::add(_mm512_mask_blend_ps(0xF0F0, even, odd),
                    _mm512_permutex2var_ps(even, partners, odd));
}

// Nearest BF16 of each lane in the low 16 bits, as to_bf16 rounds (vcvtneps2bf16 flushes
// subnormals, so it is not the same).
OCTET_AVX512_INLINE __m512i round_to_bf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
}

// Masks of the first n lanes; n may be negative or beyond the width.
inline uint64_t first_lanes(int64_t n, int width) {
  if (n <= 0) return 0;
  if (n >= width) return width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  return (uint64_t{1} << n) - 1;
}

}  // namespace octet::cpu::simd

#endif
