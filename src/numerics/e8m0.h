// UE8M0: a scale that is a power of two, 2^(code - 127), in one byte without sign or mantissa.
// 0x00 = 2^-127, 0xFE = 2^127, 0xFF = NaN; there is no zero and no infinity.
//
// Octet always rounds such a scale up: absmax / scale then never exceeds the largest code, so
// nothing saturates. (The OCP MX default, floor(log2 absmax) - 8, lets the top of a block saturate
// and costs 0.9 to 3 dB.)
#pragma once

#include <bit>
#include <cstdint>

namespace octet {

inline constexpr uint8_t kE8m0Nan = 0xFF;

// The smallest power of two that is not below x: 0.3, 1.0, 1.5 give 0.5, 1, 2. Zero and what lies
// below 2^-127 give 2^-127; what lies above 2^127, and Inf, give 2^127; negative and NaN give NaN.
constexpr uint8_t e8m0_encode(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (bits == 0x80000000u) return 0;  // -0
  if (bits > 0x7F800000u) return kE8m0Nan;
  const uint32_t exponent = bits >> 23, mantissa = bits & 0x7FFFFFu;
  // A subnormal float is mantissa * 2^-149, and 2^-127 is the one with mantissa 2^22.
  const uint32_t step = exponent == 0 ? (mantissa > 0x400000u) : (mantissa != 0);
  const uint32_t code = exponent + step;
  return static_cast<uint8_t>(code < 0xFEu ? code : 0xFEu);
}

// Exact; code 0 is a subnormal float.
constexpr float e8m0_decode(uint8_t code) {
  if (code == kE8m0Nan) return std::bit_cast<float>(0x7FC00000u);
  return std::bit_cast<float>(code == 0 ? 0x00400000u : uint32_t{code} << 23);
}

// The same rounding, as a float.
constexpr float ceil_pow2(float x) {
  return e8m0_decode(e8m0_encode(x));
}

}  // namespace octet
