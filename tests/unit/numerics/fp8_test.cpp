#include "numerics/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "numerics/half.h"
#include "unit/numerics/fp8_oracle.h"

namespace octet {
namespace {

using testing::fp8_last_finite;
using testing::fp8_oracle;
using testing::fp8_value;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Code kTypes[] = {Code::e4m3, Code::e5m2};

constexpr uint8_t e4m3(float x) {
  return fp8_encode<Code::e4m3>(x);
}
constexpr uint8_t e5m2(float x) {
  return fp8_encode<Code::e5m2>(x);
}

// Known bytes, at compile time: that the functions are constexpr is part of their contract.
static_assert(e4m3(0.0f) == 0x00 && e4m3(-0.0f) == 0x80);
static_assert(e4m3(1.0f) == 0x38 && e4m3(-1.0f) == 0xB8);
static_assert(e4m3(17.0f) == 0x58 && e4m3(19.0f) == 0x5A);
static_assert(e4m3(1.0625f) == 0x38 && e4m3(1.1875f) == 0x3A);
static_assert(e4m3(0.3f) == 0x2A && e4m3(240.0f) == 0x77);
static_assert(e4m3(448.0f) == 0x7E && e4m3(464.0f) == 0x7E && e4m3(1e6f) == 0x7E);
static_assert(e4m3(1e9f) == 0x7E && e4m3(-1e30f) == 0xFE);
static_assert(e4m3(0x1p-9f) == 0x01 && e4m3(0x1p-10f) == 0x00);
static_assert(e4m3(1.5f * 0x1p-9f) == 0x02 && e4m3(0x1p-6f) == 0x08);
static_assert(e5m2(1.0f) == 0x3C && e5m2(0.3f) == 0x35 && e5m2(57344.0f) == 0x7B);
static_assert(e5m2(60000.0f) == 0x7B && e5m2(1e9f) == 0x7B);
static_assert(e5m2(0x1p-16f) == 0x01 && e5m2(0x1p-17f) == 0x00);
static_assert(fp8_values<Code::e4m3>[0x7E] == 448.0f && fp8_values<Code::e5m2>[0x7B] == 57344.0f);
static_assert(fp8_decode<Code::e4m3>(0x2A) == 0.3125f && fp8_decode<Code::e4m3>(0x58) == 16.0f);

TEST(Fp8, SpecialValuesSaturateAndKeepTheirSign) {
  EXPECT_EQ(e4m3(kInf), 0x7E);
  EXPECT_EQ(e4m3(-kInf), 0xFE);
  EXPECT_EQ(e5m2(kInf), 0x7B);
  EXPECT_EQ(e5m2(-kInf), 0xFB);
  for (const Code type : kTypes) {
    EXPECT_EQ(fp8_encode(type, kNan), 0x7F);
    EXPECT_EQ(fp8_encode(type, std::bit_cast<float>(0xFFC00000u)), 0xFF);
    EXPECT_EQ(fp8_encode(type, std::bit_cast<float>(0x7F800001u)), 0x7F);  // a signalling one
    EXPECT_EQ(fp8_encode(type, std::numeric_limits<float>::denorm_min()), 0x00);
  }
}

TEST(Fp8, EveryCodeDecodesToItsDefinition) {
  for (const Code type : kTypes) {
    int finite = 0;
    for (int code = 0; code < 256; ++code) {
      const float value = fp8_decode(type, static_cast<uint8_t>(code));
      EXPECT_EQ(std::bit_cast<uint32_t>(value),
                std::bit_cast<uint32_t>(fp8_values_of(type)[static_cast<size_t>(code)]));
      EXPECT_EQ(std::signbit(value), code >= 0x80);
      const int magnitude = code & 0x7F;
      if (magnitude <= fp8_last_finite(type)) {
        ++finite;
        EXPECT_EQ(std::fabs(value), fp8_value(type, magnitude)) << code;
      } else if (type == Code::e5m2 && magnitude == 0x7C) {
        EXPECT_TRUE(std::isinf(value));
      } else {
        EXPECT_TRUE(std::isnan(value));
      }
      EXPECT_EQ(fp8_is_nonfinite(type, static_cast<uint8_t>(code)), !std::isfinite(value));
      EXPECT_EQ(fp8_is_max(type, static_cast<uint8_t>(code)), std::fabs(value) == max_of(type));
    }
    EXPECT_EQ(finite, type == Code::e4m3 ? 254 : 248);
  }
}

TEST(Fp8, EveryFiniteCodeRoundTrips) {
  for (const Code type : kTypes) {
    for (int code = 0; code < 256; ++code) {
      if (fp8_is_nonfinite(type, static_cast<uint8_t>(code))) continue;
      EXPECT_EQ(fp8_encode(type, fp8_decode(type, static_cast<uint8_t>(code))), code);
    }
  }
}

TEST(Fp8, EveryTieGoesToTheEvenCodeAndItsNeighboursDoNot) {
  for (const Code type : kTypes) {
    for (int low = 0; low < fp8_last_finite(type); ++low) {
      const auto tie = static_cast<float>((fp8_value(type, low) + fp8_value(type, low + 1)) / 2);
      for (const float sign : {1.0f, -1.0f}) {
        const int bit = sign < 0 ? 0x80 : 0;
        EXPECT_EQ(fp8_encode(type, sign * tie), bit | (low % 2 == 0 ? low : low + 1));
        EXPECT_EQ(fp8_encode(type, sign * std::nextafter(tie, 0.0f)), bit | low);
        EXPECT_EQ(fp8_encode(type, sign * std::nextafter(tie, kInf)), bit | (low + 1));
      }
    }
  }
}

TEST(Fp8, AgreesWithTheOracleOnEveryBf16AndFp16) {
  for (const Code type : kTypes) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float b = to_float(bf16{static_cast<uint16_t>(bits)});
      const float h = to_float(fp16{static_cast<uint16_t>(bits)});
      ASSERT_EQ(fp8_encode(type, b), fp8_oracle(type, b)) << "bf16 " << bits;
      ASSERT_EQ(fp8_encode(type, h), fp8_oracle(type, h)) << "fp16 " << bits;
    }
  }
}

TEST(Fp8, AgreesWithTheOracleOnRandomFloats) {
  std::mt19937 random(20240611);
  std::uniform_real_distribution<float> exponent(-20.0f, 18.0f);
  for (int i = 0; i < 1'000'000; ++i) {
    const float anything = std::bit_cast<float>(static_cast<uint32_t>(random()));
    const float in_range = std::copysign(std::exp2(exponent(random)), anything);
    for (const Code type : kTypes) {
      ASSERT_EQ(fp8_encode(type, anything), fp8_oracle(type, anything)) << anything;
      ASSERT_EQ(fp8_encode(type, in_range), fp8_oracle(type, in_range)) << in_range;
    }
  }
}

TEST(Fp8, RelativeErrorOfNormalsIsBounded) {
  for (const Code type : kTypes) {
    const float bound = type == Code::e4m3 ? 1.0f / 17 : 1.0f / 9;
    const float first = type == Code::e4m3 ? 0x1p-6f : 0x1p-14f;
    float worst = 0;
    for (float x = first; x < max_of(type); x = x * 1.00037f) {
      const float back = fp8_decode(type, fp8_encode(type, x));
      worst = std::max(worst, std::fabs(back - x) / x);
    }
    EXPECT_LE(worst, bound * 1.000001f);
    EXPECT_GT(worst, bound * 0.98f);
  }
}

}  // namespace
}  // namespace octet
