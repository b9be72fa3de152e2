// How stored values become the vectors that the AVX-512 linears multiply.
//
// A decoder turns a chunk of 64 stored values into `Math::vecs` registers. The order in which the
// values come out is the decoder's own, whatever is cheapest, and packing puts x in the same order:
// `order(i)` is the value in place i, counted through the registers. `part` reads only `valid` < 64
// values (mapped files end where they end) and gives zeros beyond.
#pragma once

#if defined(__x86_64__)

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backends/cpu/kernels/fast_linear.h"
#include "backends/cpu/kernels/simd_avx512.h"

namespace octet::cpu::fast {

// FP32 products: 4 registers of 16 values a chunk.
struct FmaMath {
  using Vec = __m512;
  static constexpr int vecs = 4, width = 16;
  static constexpr bool scales_x = false;  // x is scaled when it is packed
  static constexpr bool integers = false;  // sums are FP32
  OCTET_AVX512_INLINE static Vec load(const std::byte* p) { return _mm512_load_ps(p); }
  OCTET_AVX512_INLINE static void store(std::byte* p, Vec v) { _mm512_store_ps(p, v); }
  OCTET_AVX512_INLINE static __m512 add_product(__m512 acc, Vec w, Vec x) {
    return _mm512_fmadd_ps(w, x, acc);
  }
};

// BF16 pairs: 2 registers of 32 values a chunk.
struct DotMath {
  using Vec = __m512i;
  static constexpr int vecs = 2, width = 32;
  static constexpr bool scales_x = true;  // the scales of x are applied to sums
  static constexpr bool integers = false;
  OCTET_AVX512_INLINE static Vec load(const std::byte* p) { return _mm512_load_si512(p); }
  OCTET_AVX512_INLINE static void store(std::byte* p, Vec v) { _mm512_store_si512(p, v); }
  OCTET_AVX512_INLINE static __m512 add_product(__m512 acc, Vec w, Vec x) {
    return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
  }
};

// --- pairs: a chunk as two registers of 32 BF16 values ------------------------------------------

template <Code F>
struct Fp8Pairs {
  static constexpr int bytes = 1;
  static constexpr int order(int i) { return i % 32 / 8 * 16 + i / 32 * 8 + i % 8; }
  simd::Fp8Table table;
  OCTET_AVX512_INLINE static Fp8Pairs make() { return {simd::load_fp8_table<F>()}; }
  OCTET_AVX512_INLINE void full(const std::byte* p, __m512i* out) const {
    simd::decode_fp8(table, _mm512_loadu_si512(p), out[0], out[1]);
  }
  OCTET_AVX512_INLINE void part(const std::byte* p, int64_t valid, __m512i* out) const {
    const __m512i codes = _mm512_maskz_loadu_epi8(simd::first_lanes(valid, 64), p);
    simd::decode_fp8(table, codes, out[0], out[1]);
  }
};

// Integers to +-128 are BF16 values.
struct Int8Pairs {
  static constexpr int bytes = 1;
  static constexpr int order(int i) { return i; }
  OCTET_AVX512_INLINE static Int8Pairs make() { return {}; }
  OCTET_AVX512_INLINE static __m512 floats(__m128i codes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
  }
  OCTET_AVX512_INLINE static void widen(__m512i codes, __m512i* out) {
    out[0] = (__m512i)_mm512_cvtne2ps_pbh(floats(_mm512_extracti32x4_epi32(codes, 1)),
                                          floats(_mm512_castsi512_si128(codes)));
    out[1] = (__m512i)_mm512_cvtne2ps_pbh(floats(_mm512_extracti32x4_epi32(codes, 3)),
                                          floats(_mm512_extracti32x4_epi32(codes, 2)));
  }
  OCTET_AVX512_INLINE void full(const std::byte* p, __m512i* out) const {
    widen(_mm512_loadu_si512(p), out);
  }
  OCTET_AVX512_INLINE void part(const std::byte* p, int64_t valid, __m512i* out) const {
    widen(_mm512_maskz_loadu_epi8(simd::first_lanes(valid, 64), p), out);
  }
};

struct Bf16Pairs {
  static constexpr int bytes = 2;
  static constexpr int order(int i) { return i; }
  OCTET_AVX512_INLINE static Bf16Pairs make() { return {}; }
  OCTET_AVX512_INLINE void full(const std::byte* p, __m512i* out) const {
    out[0] = _mm512_loadu_si512(p);
    out[1] = _mm512_loadu_si512(p + 64);
  }
  OCTET_AVX512_INLINE void part(const std::byte* p, int64_t valid, __m512i* out) const {
    out[0] = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(simd::first_lanes(valid, 32)), p);
    out[1] =
        _mm512_maskz_loadu_epi16(static_cast<__mmask32>(simd::first_lanes(valid - 32, 32)), p + 64);
  }
};

// --- decoders ---------------------------------------------------------------------------------

template <class Math, class Pairs>
struct PairDecoder;

template <class Pairs>
struct PairDecoder<DotMath, Pairs> : Pairs {
  OCTET_AVX512_INLINE static PairDecoder make() { return {Pairs::make()}; }
};

// Widened: the even values of a register of pairs, then the odd ones.
template <class Pairs>
struct PairDecoder<FmaMath, Pairs> {
  static constexpr int bytes = Pairs::bytes;
  static constexpr int order(int i) {
    const int vec = i / 16, lane = i % 16;
    return Pairs::order(vec / 2 * 32 + lane * 2 + vec % 2);
  }
  Pairs pairs;
  OCTET_AVX512_INLINE static PairDecoder make() { return {Pairs::make()}; }
  OCTET_AVX512_INLINE static void widen(const __m512i* pair, __m512* out) {
    out[0] = simd::even_bf16(pair[0]);
    out[1] = simd::odd_bf16(pair[0]);
    out[2] = simd::even_bf16(pair[1]);
    out[3] = simd::odd_bf16(pair[1]);
  }
  OCTET_AVX512_INLINE void full(const std::byte* p, __m512* out) const {
    __m512i pair[2];
    pairs.full(p, pair);
    widen(pair, out);
  }
  OCTET_AVX512_INLINE void part(const std::byte* p, int64_t valid, __m512* out) const {
    __m512i pair[2];
    pairs.part(p, valid, pair);
    widen(pair, out);
  }
};

struct Fp16Decoder {
  static constexpr int bytes = 2;
  static constexpr int order(int i) { return i; }
  OCTET_AVX512_INLINE static Fp16Decoder make() { return {}; }
  OCTET_AVX512_INLINE void full(const std::byte* p, __m512* out) const {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      out[v] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * v)));
    }
  }
  OCTET_AVX512_INLINE void part(const std::byte* p, int64_t valid, __m512* out) const {
    for (int v = 0; v < 4; ++v) {
      const auto mask = static_cast<__mmask16>(simd::first_lanes(valid - 16 * v, 16));
      out[v] = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p + 32 * v));
    }
  }
};

struct F32Decoder {
  static constexpr int bytes = 4;
  static constexpr int order(int i) { return i; }
  OCTET_AVX512_INLINE static F32Decoder make() { return {}; }
  OCTET_AVX512_INLINE void full(const std::byte* p, __m512* out) const {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) out[v] = _mm512_loadu_ps(p + 64 * v);
  }
  OCTET_AVX512_INLINE void part(const std::byte* p, int64_t valid, __m512* out) const {
    for (int v = 0; v < 4; ++v) {
      const auto mask = static_cast<__mmask16>(simd::first_lanes(valid - 16 * v, 16));
      out[v] = _mm512_maskz_loadu_ps(mask, p + 64 * v);
    }
  }
};

// Calls visit.template operator()<Decoder>() for the type of the values.
template <class Math, class Visit>
void with_decoder(DType type, Visit visit) {
  if (type == DType::e4m3) {
    return visit.template operator()<PairDecoder<Math, Fp8Pairs<Code::e4m3>>>();
  }
  if (type == DType::e5m2) {
    return visit.template operator()<PairDecoder<Math, Fp8Pairs<Code::e5m2>>>();
  }
  if (type == DType::i8) return visit.template operator()<PairDecoder<Math, Int8Pairs>>();
  if (type == DType::bf16) return visit.template operator()<PairDecoder<Math, Bf16Pairs>>();
  if constexpr (std::is_same_v<Math, FmaMath>) {
    if (type == DType::f16) return visit.template operator()<Fp16Decoder>();
    if (type == DType::f32) return visit.template operator()<F32Decoder>();
  }
  throw Fault("fast linear: values of a type that it refuses");
}

}  // namespace octet::cpu::fast

#endif
