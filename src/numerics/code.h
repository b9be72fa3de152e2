// The codes of a QuantFormat, whichever type they have: FP8 (numerics/fp8.h) or an integer
// (numerics/int8.h). Kernels hoist the choice out of their loops.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "numerics/fp8.h"
#include "numerics/int8.h"

namespace octet {

// The nearest code of x, saturating; ties go to the even code.
template <Code C>
constexpr uint8_t code_encode(float x) {
  if constexpr (C == Code::i8) {
    return int8_encode(x);
  } else {
    return fp8_encode<C>(x);
  }
}
constexpr uint8_t code_encode(Code type, float x) {
  return type == Code::i8 ? int8_encode(x) : fp8_encode(type, x);
}
constexpr float code_decode(Code type, uint8_t code) {
  return type == Code::i8 ? int8_decode(code) : fp8_decode(type, code);
}
constexpr const std::array<float, 256>& code_values_of(Code type) {
  return type == Code::i8 ? int8_values : fp8_values_of(type);
}

// Calls use(std::integral_constant<Code, C>{}).
template <typename Use>
constexpr decltype(auto) visit_code(Code type, Use&& use) {
  switch (type) {
    case Code::e4m3:
      return use(std::integral_constant<Code, Code::e4m3>{});
    case Code::e5m2:
      return use(std::integral_constant<Code, Code::e5m2>{});
    case Code::i8:
      break;
  }
  return use(std::integral_constant<Code, Code::i8>{});
}

// A code that no finite value encodes to: FP8's NaN and infinities. An integer has none.
constexpr bool code_is_nonfinite(Code type, uint8_t code) {
  return type != Code::i8 && fp8_is_nonfinite(type, code);
}
// The largest magnitude: where a saturated value ends (and a value just that large).
constexpr bool code_is_max(Code type, uint8_t code) {
  if (type != Code::i8) return fp8_is_max(type, code);
  return code == 0x7F || code == 0x80 || code == 0x81;
}

}  // namespace octet
