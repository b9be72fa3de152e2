// Re-scaling of stored FP8 codes by powers of two, in integers.
//
// When a scale grows by 2^k, the codes that belong to it shrink by 2^k. With power-of-two scales
// this needs no decoding: normals only lose k from their exponent, which is exact, and what falls
// below the smallest normal is rounded once, to nearest, ties to even. Growing by anything else
// re-rounds every value (31.6 dB falls to 22.1 dB after six growths by 1.3).
#pragma once

#include <cstdint>

#include "numerics/fp8.h"

namespace octet {

// The code of RNE(decode(code) * 2^-k), for k >= 0; exactly what encoding that product gives. NaN
// (and E5M2's infinities) stay what they are; the sign is kept, also of a value that becomes 0.
template <Code F>
constexpr uint8_t rescale_code(uint8_t code, int k) {
  constexpr int mantissa_bits = Fp8Traits<F>::mantissa_bits;
  constexpr int hidden = 1 << mantissa_bits;
  if (k <= 0 || fp8_is_nonfinite(F, code)) return code;
  const int sign = code & 0x80, magnitude = code & 0x7F;
  const int field = magnitude >> mantissa_bits;
  // value = significand * 2^(exponent - 1) subnormal steps
  const int exponent = field == 0 ? 1 : field;
  const int significand = (magnitude & (hidden - 1)) + (field == 0 ? 0 : hidden);
  if (significand >= hidden && exponent - k >= 1) {
    return static_cast<uint8_t>(sign | (magnitude - (k << mantissa_bits)));
  }
  // Into the subnormals. significand < 2 * hidden, so a longer shift than this gives 0 as well. A
  // result of `hidden` is the smallest normal, whose code is that very number.
  const int wanted = k - (exponent - 1);
  const int shift = wanted < mantissa_bits + 3 ? wanted : mantissa_bits + 3;
  const int odd = (significand >> shift) & 1;
  return static_cast<uint8_t>(sign | ((significand + (1 << (shift - 1)) - 1 + odd) >> shift));
}

constexpr uint8_t rescale_code(Code type, uint8_t code, int k) {
  return type == Code::e4m3 ? rescale_code<Code::e4m3>(code, k) : rescale_code<Code::e5m2>(code, k);
}

}  // namespace octet
