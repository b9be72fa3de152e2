// The symmetric 8-bit integer as a code: -127 .. 127, one step apart. It has no NaN and no
// infinity.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace octet {

// The nearest integer; ties go to the even one. Beyond +-127, and for +-Inf, +-127 (-128 is never
// produced, so that -x has the code of -code); NaN gives 0. Needs the default rounding mode.
constexpr uint8_t int8_encode(float x) {
  const float clamped = x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x == x ? x : 0.0f;
  // One unit in the last place of 1.5 * 2^23 is 1, so adding it rounds.
  constexpr float to_integer = 0x1.8p23f;
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(clamped + to_integer));
}

// Exact; -128 of other people's checkpoints included.
constexpr float int8_decode(uint8_t code) {
  return static_cast<float>(static_cast<int8_t>(code));
}

inline constexpr std::array<float, 256> int8_values = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) values[code] = int8_decode(static_cast<uint8_t>(code));
  return values;
}();

}  // namespace octet
