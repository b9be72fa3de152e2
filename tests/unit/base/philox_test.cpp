#include "base/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace octet {
namespace {

// Known answers of Random123 (kat_vectors, "philox4x32 10").
static_assert(philox({0, 0, 0, 0}, {0, 0}) ==
              Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
              Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
static_assert(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
              Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

TEST(Philox, SeedStreamAndPositionAreTheKeyAndTheCounter) {
  EXPECT_EQ(philox(0x0000000200000001, 0x0000000600000005, 0x0000000400000003),
            philox({3, 4, 5, 6}, {1, 2}));
  EXPECT_NE(philox(1, 2, 3), philox(1, 3, 3));
}

TEST(Philox, SequenceWalksTheBlocksInOrder) {
  Philox random(7, 9);
  for (uint64_t block = 0; block < 3; ++block) {
    for (const uint32_t expected : philox(7, 9, block)) EXPECT_EQ(random.bits(), expected);
  }
}

TEST(Philox, UniformLiesInZeroOneAndReachesOne) {
  EXPECT_EQ(uniform_from(0), 0x1p-24f);
  EXPECT_EQ(uniform_from(0xffffffff), 1.0f);
  EXPECT_EQ(uniform_from(0x7fffffff), 0.5f);
}

double exact_exponential(uint32_t bits) {
  return -std::log1p(-(bits + 0.5) * 0x1p-32);
}

TEST(Philox, ExponentialAgreesWithTheDoubleLogarithm) {
  auto check = [](uint32_t bits) {
    const float got = exponential_from(bits);
    const double want = exact_exponential(bits);
    ASSERT_GT(got, 0.0f) << bits;
    ASSERT_LT(std::abs(got - want), 2.5e-7 * want) << bits;
  };
  for (uint32_t i = 0; i < 4096; ++i) {
    check(i);
    check(~i);
    check(i << 20);
    check(0x4AFB0CCCu - 2048 + i);  // around the switch at 1 - sqrt(1/2)
  }
  Philox random(1);
  for (int i = 0; i < 200000; ++i) check(random.bits());
}

TEST(Philox, ExponentialAndUniformHaveTheRightMoments) {
  Philox random(3);
  double uniform = 0, first = 0, second = 0;
  const int n = 200000;
  for (int i = 0; i < n; ++i) {
    uniform += random.uniform();
    const double x = random.exponential();
    first += x;
    second += x * x;
  }
  EXPECT_NEAR(uniform / n, 0.5, 0.005);
  EXPECT_NEAR(first / n, 1.0, 0.01);
  EXPECT_NEAR(second / n, 2.0, 0.05);
}

}  // namespace
}  // namespace octet
