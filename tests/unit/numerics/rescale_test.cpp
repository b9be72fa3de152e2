#include "numerics/rescale.h"

#include <gtest/gtest.h>

#include <cmath>

namespace octet {
namespace {

static_assert(rescale_code<Code::e4m3>(0x38, 1) == 0x30);  // 1 -> 1/2
static_assert(rescale_code<Code::e4m3>(0x0F, 1) == 0x08);  // 15 steps: 7.5 -> 8, the min normal

TEST(Rescale, EqualsEncodingTheScaledValueForEveryCodeAndShift) {
  for (const Code type : {Code::e4m3, Code::e5m2}) {
    for (int code = 0; code < 256; ++code) {
      const auto byte = static_cast<uint8_t>(code);
      for (int k = 0; k <= 40; ++k) {
        const uint8_t got = rescale_code(type, byte, k);
        if (fp8_is_nonfinite(type, byte)) {
          EXPECT_EQ(got, byte);
        } else {
          const float scaled = std::ldexp(fp8_decode(type, byte), -k);
          EXPECT_EQ(got, fp8_encode(type, scaled)) << code << " by 2^-" << k;
        }
      }
      EXPECT_EQ(rescale_code(type, byte, 1'000'000) & 0x7F,
                fp8_is_nonfinite(type, byte) ? byte & 0x7F : 0);
    }
  }
}

// Growing in steps only re-rounds what has become subnormal: at most one step of it in all.
TEST(Rescale, StepsDifferFromOneJumpByAtMostOneSubnormalStep) {
  for (int code = 0; code < 0x7F; ++code) {
    uint8_t stepped = static_cast<uint8_t>(code);
    for (int k = 1; k <= 16; ++k) {
      stepped = rescale_code<Code::e4m3>(stepped, 1);
      const uint8_t jumped = rescale_code<Code::e4m3>(static_cast<uint8_t>(code), k);
      const float difference =
          std::fabs(fp8_decode<Code::e4m3>(stepped) - fp8_decode<Code::e4m3>(jumped));
      EXPECT_LE(difference, 0x1p-9f);
      if (jumped > 0x08) {
        EXPECT_EQ(stepped, jumped);
      }
    }
  }
}

}  // namespace
}  // namespace octet
