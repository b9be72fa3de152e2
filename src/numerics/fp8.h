// The two OCP 8-bit floats: exact encoding (round to nearest, ties to even, saturating) and
// decoding. Everything is constexpr, branch-free and exact, so the same code serves kernels, tables
// and tests, and no intrinsic or libm can change a bit. Loops over it vectorize: with clang as they
// are, with g++ under -fno-trapping-math (which changes no value).
//
//            bias  normal                 subnormal   largest        smallest  NaN           Inf
//   E4M3FN    7    (1 + m/8) 2^(e-7)      m 2^-9      448   (0x7E)   2^-9      0x7F, 0xFF    none
//   E5M2     15    (1 + m/4) 2^(e-15)     m 2^-16     57344 (0x7B)   2^-16     0x7D..0x7F|s  0x7C|s
//
// Source: OCP 8-bit Floating Point Specification (OFP8), revision 1.0, table 1. FNUZ (AMD MI300)
// is a different encoding: the same bits mean half the value there.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "numerics/quant_format.h"

namespace octet {

// The constants of an encoding, from which all code below follows.
template <Code F>
struct Fp8Traits {
  static_assert(is_fp8(F));
  static constexpr int mantissa_bits = F == Code::e4m3 ? 3 : 2;
  static constexpr int bias = F == Code::e4m3 ? 7 : 15;
  static constexpr float max = max_of(F);
  static constexpr uint8_t max_code = F == Code::e4m3 ? 0x7E : 0x7B;
  static constexpr float min_normal = F == Code::e4m3 ? 0x1p-6f : 0x1p-14f;
  static constexpr float min_subnormal = F == Code::e4m3 ? 0x1p-9f : 0x1p-16f;
};

// What every NaN encodes to, apart from the sign bit. It is a NaN of both types.
inline constexpr uint8_t kFp8Nan = 0x7F;

// The nearest code; ties go to the even code. Beyond the largest value, and for +-Inf, the largest
// value of that sign (E5M2's own infinities are never produced); NaN gives 0x7F | sign; -0 keeps
// its sign. The same as PTX cvt.rn.satfinite on one value. Needs the default rounding mode, and is
// unaffected by flush-to-zero.
template <Code F>
constexpr uint8_t fp8_encode(float x) {
  using T = Fp8Traits<F>;
  constexpr int drop = 23 - T::mantissa_bits;  // bits of the FP32 mantissa that go
  constexpr uint32_t max_bits = std::bit_cast<uint32_t>(T::max);
  constexpr uint32_t min_normal_bits = std::bit_cast<uint32_t>(T::min_normal);
  // One unit in the last place of this number is one subnormal step, so adding it rounds.
  constexpr float to_subnormal = T::min_subnormal * 0x1p23f;

  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t clamped = magnitude < max_bits ? magnitude : max_bits;
  // Normal: drop bits with rounding to even (a carry may ripple into the exponent), then rebias.
  const uint32_t rounded = clamped + ((1u << (drop - 1)) - 1u) + ((clamped >> drop) & 1u);
  const uint32_t normal = (rounded >> drop) - (uint32_t{127 - T::bias} << T::mantissa_bits);
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(clamped) + to_subnormal) -
                             std::bit_cast<uint32_t>(to_subnormal);
  uint32_t code = clamped < min_normal_bits ? subnormal : normal;
  code = magnitude > 0x7F800000u ? uint32_t{kFp8Nan} : code;
  return static_cast<uint8_t>(sign | code);
}

// The value of a code, exact. NaN codes give the quiet NaN of their sign; E5M2 0x7C gives Inf.
template <Code F>
constexpr float fp8_decode(uint8_t code) {
  using T = Fp8Traits<F>;
  constexpr uint32_t mantissa_mask = (1u << T::mantissa_bits) - 1u;
  const uint32_t sign = uint32_t{code & 0x80u} << 24;
  const uint32_t magnitude = code & 0x7Fu;
  if (magnitude > T::max_code) {
    const bool infinite = F == Code::e5m2 && (magnitude & mantissa_mask) == 0;
    return std::bit_cast<float>(sign | (infinite ? 0x7F800000u : 0x7FC00000u));
  }
  if (magnitude <= mantissa_mask) {
    const float value = static_cast<float>(magnitude) * T::min_subnormal;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  const uint32_t rebiased = magnitude + (uint32_t{127 - T::bias} << T::mantissa_bits);
  return std::bit_cast<float>(sign | (rebiased << (23 - T::mantissa_bits)));
}

// The values of all 256 codes: decoding by look-up.
template <Code F>
inline constexpr std::array<float, 256> fp8_values = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) values[code] = fp8_decode<F>(static_cast<uint8_t>(code));
  return values;
}();

// The same three with the type chosen at run time. Kernels hoist the choice out of their loops.
constexpr uint8_t fp8_encode(Code type, float x) {
  return type == Code::e4m3 ? fp8_encode<Code::e4m3>(x) : fp8_encode<Code::e5m2>(x);
}
constexpr float fp8_decode(Code type, uint8_t code) {
  return type == Code::e4m3 ? fp8_decode<Code::e4m3>(code) : fp8_decode<Code::e5m2>(code);
}
constexpr const std::array<float, 256>& fp8_values_of(Code type) {
  return type == Code::e4m3 ? fp8_values<Code::e4m3> : fp8_values<Code::e5m2>;
}

// True for a NaN code, and for E5M2's infinities: a code that no finite value encodes to.
constexpr bool fp8_is_nonfinite(Code type, uint8_t code) {
  return (code & 0x7Fu) > (type == Code::e4m3 ? 0x7Eu : 0x7Bu);
}
// True for the largest magnitude: where a saturated value ends (and a value just that large).
constexpr bool fp8_is_max(Code type, uint8_t code) {
  return (code & 0x7Fu) == (type == Code::e4m3 ? 0x7Eu : 0x7Bu);
}

}  // namespace octet
