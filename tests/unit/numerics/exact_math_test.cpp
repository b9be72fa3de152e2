#include "numerics/exact_math.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace octet {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kInf64 = std::numeric_limits<double>::infinity();

uint32_t bits(float x) {
  return std::bit_cast<uint32_t>(x);
}

// |got - want| in units of the last place that a float of want's size has.
double ulps(float got, double want) {
  const double magnitude = std::fabs(want);
  const int exponent = magnitude < 0x1p-126 ? -126 : std::ilogb(magnitude);
  return std::fabs(got - want) / std::ldexp(1.0, exponent - 23);
}

TEST(ExactExp, IsWithinOneUlpOverTheWholeRange) {
  double worst = 0;
  // Every 97th float: 44 million, both signs, subnormals to infinities.
  for (uint64_t i = 0; i < (uint64_t{1} << 32); i += 97) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(i));
    if (!(std::fabs(x) < 120.0f)) continue;
    const double want = std::exp(static_cast<double>(x));
    const float got = exact::exp(x);
    if (want > std::numeric_limits<float>::max()) {
      ASSERT_TRUE(got == kInf || got == std::numeric_limits<float>::max()) << x;
      continue;
    }
    worst = std::max(worst, ulps(got, want));
  }
  EXPECT_LE(worst, 1.0);
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST(ExactExp, SpecialValues) {
  EXPECT_EQ(exact::exp(0.0f), 1.0f);
  EXPECT_EQ(exact::exp(-0.0f), 1.0f);
  EXPECT_EQ(exact::exp(kInf), kInf);
  EXPECT_EQ(exact::exp(-kInf), 0.0f);
  EXPECT_EQ(exact::exp(88.72283f), std::exp(88.72283f));
  EXPECT_EQ(exact::exp(88.8f), kInf);
  EXPECT_EQ(exact::exp(1e30f), kInf);
  EXPECT_EQ(exact::exp(-103.9f), std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(exact::exp(-104.5f), 0.0f);
  EXPECT_EQ(bits(exact::exp(kNan)), 0x7FC00000u);
  EXPECT_EQ(bits(exact::exp(-kNan)), 0x7FC00000u);
}

// A few results to the bit: a compiler that fuses or reorders would change them.
TEST(ExactMath, BitsAreFixed) {
  uint32_t hash = 2166136261u;
  const auto add = [&](float x) { hash = (hash ^ bits(x)) * 16777619u; };
  for (int i = -4000; i <= 4000; ++i) {
    const float x = static_cast<float>(i) * 0.03125f + 0.001f;
    add(exact::exp(x));
    add(exact::sigmoid(x));
    add(exact::silu(x));
    add(exact::rsqrt(std::fabs(x)));
    add(exact::log(std::fabs(x)));
    const exact::SinCos sc = exact::sin_cos(static_cast<double>(i) * 1234.5678);
    add(static_cast<float>(sc.sin));
    add(static_cast<float>(sc.cos));
    add(static_cast<float>(exact::pow(1e4, static_cast<double>(i) / 4000)));
  }
  EXPECT_EQ(hash, 3237805115u);
}

TEST(ExactSigmoid, IsAccurateOnBothSides) {
  double sigmoid = 0, silu = 0;
  for (float x = -87.0f; x < 100.0f; x += 0.00073f) {
    const double want = 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
    sigmoid = std::max(sigmoid, ulps(exact::sigmoid(x), want));
    silu = std::max(silu, ulps(exact::silu(x), x * want));
  }
  EXPECT_LE(sigmoid, 3.0);
  EXPECT_LE(silu, 4.0);
  EXPECT_EQ(exact::sigmoid(0.0f), 0.5f);
  EXPECT_EQ(exact::sigmoid(kInf), 1.0f);
  EXPECT_EQ(exact::sigmoid(-kInf), 0.0f);
  EXPECT_EQ(bits(exact::sigmoid(kNan)), 0x7FC00000u);
  EXPECT_EQ(exact::silu(0.0f), 0.0f);
  EXPECT_EQ(exact::silu(kInf), kInf);
  EXPECT_EQ(bits(exact::silu(-kInf)), 0x7FC00000u);
}

TEST(ExactRsqrt, IsTwoCorrectRoundings) {
  EXPECT_EQ(exact::rsqrt(4.0f), 0.5f);
  EXPECT_EQ(exact::rsqrt(0.0f), kInf);
  EXPECT_EQ(exact::rsqrt(kInf), 0.0f);
  EXPECT_EQ(bits(exact::rsqrt(-1.0f)), 0x7FC00000u);
  double worst = 0;
  for (float x = 1e-30f; x < 1e30f; x *= 1.0003f) {
    worst = std::max(worst, ulps(exact::rsqrt(x), 1.0 / std::sqrt(static_cast<double>(x))));
  }
  EXPECT_LE(worst, 1.5);
}

TEST(ExactLog, IsWithinHalfAnUlp) {
  double worst = 0;
  for (uint32_t i = 1; i < 0x7F800000u; i += 1009) {
    const float x = std::bit_cast<float>(i);
    if (x == 1.0f) continue;
    worst = std::max(worst, ulps(exact::log(x), std::log(static_cast<double>(x))));
  }
  EXPECT_LE(worst, 0.500001);
  EXPECT_EQ(exact::log(1.0f), 0.0f);
  EXPECT_EQ(exact::log(0.0f), -kInf);
  EXPECT_EQ(exact::log(kInf), kInf);
  EXPECT_EQ(bits(exact::log(-1.0f)), 0x7FC00000u);
  EXPECT_EQ(bits(exact::log(kNan)), 0x7FC00000u);
}

TEST(ExactDouble, ExpLogAndPowAgreeWithLongDouble) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> unit(0.0, 1.0);
  long double exp_error = 0, log_error = 0, pow_error = 0;
  for (int i = 0; i < 300'000; ++i) {
    const double x = (unit(random) - 0.5) * 1400.0;
    const long double e = std::exp(static_cast<long double>(x));
    exp_error = std::max(exp_error, std::fabs(exact::exp(x) - e) / e);
    const double y =
        std::exp((unit(random) - 0.5) * (i % 3 == 0 ? 1400.0 : (i % 3 == 1 ? 2 : 0.01)));
    const long double l = std::log(static_cast<long double>(y));
    if (l != 0) log_error = std::max(log_error, std::fabs((exact::log(y) - l) / l));
    // theta up to 10^11, exponents as in theta^(-2i/d) and the NTK-aware d/(d-2).
    const double theta = std::exp(unit(random) * 25.0), power = unit(random) * 2.1 - 1.05;
    const long double p =
        std::pow(static_cast<long double>(theta), static_cast<long double>(power));
    pow_error = std::max(pow_error, std::fabs(exact::pow(theta, power) - p) / p);
  }
  EXPECT_LE(exp_error, 3e-16L);
  EXPECT_LE(log_error, 3e-16L);
  EXPECT_LE(pow_error, 4e-16L);
}

TEST(ExactDouble, SpecialValues) {
  EXPECT_EQ(exact::exp(0.0), 1.0);
  EXPECT_EQ(exact::exp(711.0), kInf64);
  EXPECT_EQ(exact::exp(-kInf64), 0.0);
  EXPECT_TRUE(std::isnan(exact::exp(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_EQ(exact::log(1.0), 0.0);
  EXPECT_EQ(exact::log(0.0), -kInf64);
  EXPECT_EQ(exact::log(kInf64), kInf64);
  EXPECT_TRUE(std::isnan(exact::log(-1.0)));
  EXPECT_EQ(exact::pow(10000.0, 0.0), 1.0);
  EXPECT_EQ(exact::pow(1.0, -0.7), 1.0);
  EXPECT_TRUE(std::isnan(exact::pow(0.0, 1.0)));
  EXPECT_TRUE(std::isnan(exact::pow(-2.0, 1.0)));
}

TEST(ExactSinCos, IsAccurateUpToTwoToThe31) {
  std::mt19937_64 random(8);
  std::uniform_real_distribution<double> unit(-1.0, 1.0);
  long double worst = 0;
  const auto check = [&](double x) {
    const exact::SinCos got = exact::sin_cos(x);
    worst = std::max(worst, std::fabs(got.sin - std::sin(static_cast<long double>(x))));
    worst = std::max(worst, std::fabs(got.cos - std::cos(static_cast<long double>(x))));
  };
  for (int i = 0; i < 400'000; ++i) check(unit(random) * std::ldexp(1.0, i % 40 - 8));
  for (int n = 0; n < 20'000; ++n) check(n * 1.5707963267948966);  // next to the zeros
  for (const double x : {0x1p31, -0x1p31, 2147483647.0, 1073741823.5}) check(x);
  EXPECT_LE(worst, 3e-16L);
  EXPECT_EQ(exact::sin_cos(0.0).sin, 0.0);
  EXPECT_EQ(exact::sin_cos(0.0).cos, 1.0);
  EXPECT_TRUE(std::isnan(exact::sin_cos(kInf64).sin));
  EXPECT_TRUE(std::isnan(exact::sin_cos(std::numeric_limits<double>::quiet_NaN()).cos));
  EXPECT_TRUE(std::isnan(exact::sin_cos(0x1p32).sin));
}

}  // namespace
}  // namespace octet
