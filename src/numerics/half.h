// BF16 and IEEE FP16 as plain bits, with exact conversions (round to nearest, ties to even). No
// compiler extension and no intrinsic: the same bits everywhere, constexpr, and simple enough that
// loops over arrays vectorize.
//
// BF16 to FP8 goes through float, which is exact: every BF16 and FP16 value is a float, so
// fp8_encode(to_float(h)) rounds once.
#pragma once

#include <bit>
#include <cstdint>

namespace octet {

// The upper half of a float: 8 exponent bits, 7 of mantissa. == compares bits, not values.
struct bf16 {
  uint16_t bits;
  friend constexpr bool operator==(const bf16&, const bf16&) = default;
};

// IEEE binary16: 5 exponent bits, 10 of mantissa, subnormals down to 2^-24. == compares bits.
struct fp16 {
  uint16_t bits;
  friend constexpr bool operator==(const fp16&, const fp16&) = default;
};

constexpr float to_float(bf16 h) {
  return std::bit_cast<float>(uint32_t{h.bits} << 16);
}

// Nearest BF16; overflow goes to Inf; a NaN keeps its sign and upper payload and becomes quiet.
constexpr bf16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return {static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded)};
}

constexpr float to_float(fp16 h) {
  const uint32_t sign = uint32_t{h.bits & 0x8000u} << 16;
  const uint32_t magnitude = h.bits & 0x7FFFu;
  // Subnormals count steps of 2^-24; the product is exact and a normal float.
  const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t special = 0x7F800000u | (magnitude << 13) | (magnitude > 0x7C00u ? 0x400000u : 0u);
  const uint32_t value = magnitude < 0x0400u ? subnormal : (magnitude < 0x7C00u ? normal : special);
  return std::bit_cast<float>(sign | value);
}

// Nearest FP16, subnormals included; 65520 and beyond go to Inf (IEEE, not saturating); a NaN keeps
// its sign and upper payload and becomes quiet. Needs the default rounding mode.
constexpr fp16 to_fp16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  // 65536 is past the rounding boundary to Inf: clamping to it keeps the arithmetic below in range.
  const uint32_t clamped = magnitude < 0x47800000u ? magnitude : 0x47800000u;
  const uint32_t rounded = clamped + 0xFFFu + ((clamped >> 13) & 1u);
  const uint32_t normal = (rounded >> 13) - (112u << 10);
  // One unit in the last place of 0.5 is 2^-24, FP16's subnormal step, so adding 0.5 rounds.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(clamped) + 0.5f) - 0x3F000000u;
  uint32_t value = clamped < 0x38800000u ? subnormal : normal;
  value = magnitude > 0x7F800000u ? (0x7E00u | ((magnitude >> 13) & 0x3FFu)) : value;
  return {static_cast<uint16_t>(sign | value)};
}

}  // namespace octet
