#include "numerics/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "numerics/e8m0.h"

namespace octet {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

static_assert(to_bf16(1.0f).bits == 0x3F80 && to_float(bf16{0x3F80}) == 1.0f);
static_assert(to_bf16(1.0f + 0x1p-8f).bits == 0x3F80);      // tie to even
static_assert(to_bf16(1.0f + 3 * 0x1p-8f).bits == 0x3F82);  // tie to even
static_assert(to_bf16(std::numeric_limits<float>::max()).bits == 0x7F80);
static_assert(to_fp16(65504.0f).bits == 0x7BFF && to_fp16(65520.0f).bits == 0x7C00);
static_assert(to_fp16(0x1p-24f).bits == 0x0001 && to_fp16(0x1p-25f).bits == 0x0000);
static_assert(to_fp16(-0.0f).bits == 0x8000 && to_fp16(1e30f).bits == 0x7C00);
static_assert(ceil_pow2(0.3f) == 0.5f && ceil_pow2(1.0f) == 1.0f && ceil_pow2(1.5f) == 2.0f);

// Value of 16 bits by the definition of a binary format.
double value_of(uint32_t magnitude, int mantissa_bits, int bias) {
  const int e = static_cast<int>(magnitude >> mantissa_bits);
  const int m = static_cast<int>(magnitude & ((1u << mantissa_bits) - 1));
  if (e == 0) return std::ldexp(m, 1 - bias - mantissa_bits);
  return std::ldexp((1 << mantissa_bits) + m, e - bias - mantissa_bits);
}

TEST(Half, EveryValueDecodesToItsDefinitionAndRoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const fp16 h{static_cast<uint16_t>(bits)};
    const bf16 b{static_cast<uint16_t>(bits)};
    const uint32_t magnitude = bits & 0x7FFF;
    if (magnitude < 0x7C00) {
      ASSERT_EQ(std::fabs(to_float(h)), value_of(magnitude, 10, 15));
      ASSERT_EQ(to_fp16(to_float(h)), h);
    } else if (magnitude == 0x7C00) {
      ASSERT_EQ(to_float(h), bits < 0x8000 ? kInf : -kInf);
      ASSERT_EQ(to_fp16(to_float(h)), h);
    } else {
      ASSERT_TRUE(std::isnan(to_float(h)));
      ASSERT_EQ(to_fp16(to_float(h)).bits, bits | 0x0200);  // quiet, payload and sign kept
    }
    ASSERT_EQ(std::signbit(to_float(h)), bits >= 0x8000);
    if (magnitude < 0x7F80) {
      ASSERT_EQ(std::fabs(to_float(b)), value_of(magnitude, 7, 127));
    }
    if (magnitude <= 0x7F80) {
      ASSERT_EQ(to_bf16(to_float(b)), b);
    } else {
      ASSERT_EQ(to_bf16(to_float(b)).bits, bits | 0x0040);
    }
  }
}

// Ties between neighbours, and one float to each side, for all finite neighbours.
TEST(Half, EveryTieGoesToTheEvenNeighbour) {
  const auto check = [](auto encode, uint32_t last_finite, int mantissa_bits, int bias) {
    for (uint32_t low = 0; low < last_finite; ++low) {
      const auto tie = static_cast<float>(
          (value_of(low, mantissa_bits, bias) + value_of(low + 1, mantissa_bits, bias)) / 2);
      ASSERT_EQ(encode(tie), low % 2 == 0 ? low : low + 1) << low;
      ASSERT_EQ(encode(std::nextafter(tie, 0.0f)), low);
      ASSERT_EQ(encode(std::nextafter(tie, kInf)), low + 1);
      ASSERT_EQ(encode(-tie), 0x8000u | (low % 2 == 0 ? low : low + 1));
    }
  };
  check([](float x) { return to_fp16(x).bits; }, 0x7BFF, 10, 15);
  check([](float x) { return to_bf16(x).bits; }, 0x7F7F, 7, 127);
}

TEST(Half, OverflowAndSubnormalsOfFloat) {
  EXPECT_EQ(to_fp16(std::nextafter(65520.0f, 0.0f)).bits, 0x7BFF);
  EXPECT_EQ(to_fp16(65536.0f).bits, 0x7C00);
  EXPECT_EQ(to_fp16(-kInf).bits, 0xFC00);
  EXPECT_EQ(to_fp16(0x1p-149f).bits, 0x0000);
  EXPECT_EQ(to_bf16(-kInf).bits, 0xFF80);
  EXPECT_EQ(to_bf16(0x1p-133f).bits, 0x0001);
  EXPECT_EQ(to_bf16(0x1p-149f).bits, 0x0000);
}

TEST(E8m0, EveryCodeRoundTrips) {
  for (int code = 0; code < 255; ++code) {
    const float value = e8m0_decode(static_cast<uint8_t>(code));
    EXPECT_EQ(value, std::ldexp(1.0, code - 127));
    EXPECT_EQ(e8m0_encode(value), code);
  }
  EXPECT_TRUE(std::isnan(e8m0_decode(0xFF)));
}

TEST(E8m0, RoundsUp) {
  for (int exponent = -126; exponent < 127; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    EXPECT_EQ(ceil_pow2(std::nextafter(power, kInf)), 2 * power);
    EXPECT_EQ(ceil_pow2(1.5f * power), 2 * power);
    EXPECT_EQ(ceil_pow2(std::nextafter(power, 0.0f)), power);
  }
}

TEST(E8m0, EndsOfTheRangeAndSpecialValues) {
  EXPECT_EQ(e8m0_encode(0.0f), 0x00);
  EXPECT_EQ(e8m0_encode(-0.0f), 0x00);
  EXPECT_EQ(e8m0_encode(0x1p-149f), 0x00);
  EXPECT_EQ(e8m0_encode(0x1p-127f), 0x00);
  EXPECT_EQ(e8m0_encode(std::nextafter(0x1p-127f, 1.0f)), 0x01);
  EXPECT_EQ(e8m0_encode(0x1p127f), 0xFE);
  EXPECT_EQ(e8m0_encode(std::numeric_limits<float>::max()), 0xFE);
  EXPECT_EQ(e8m0_encode(kInf), 0xFE);
  EXPECT_EQ(e8m0_encode(std::numeric_limits<float>::quiet_NaN()), 0xFF);
  EXPECT_EQ(e8m0_encode(-1.0f), 0xFF);
}

}  // namespace
}  // namespace octet
