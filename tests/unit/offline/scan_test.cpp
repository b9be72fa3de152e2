#include "offline/scan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "numerics/half.h"

namespace octet::offline {
namespace {

TEST(Scan, CountsWhatNoWeightShouldHave) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> x{0.0f, -0.0f, -3.0f, 0.25f, std::numeric_limits<float>::quiet_NaN(), inf};
  const TensorScan scan = offline::scan(Tensor(x.data(), DType::f32, {2, 3}));
  EXPECT_EQ(scan.elements, 6);
  EXPECT_EQ(scan.zero, 2);
  EXPECT_EQ(scan.nan, 1);
  EXPECT_EQ(scan.inf, 1);
  EXPECT_EQ(scan.least, -3.0f);
  EXPECT_EQ(scan.most, 0.25f);
  EXPECT_EQ(scan.least_magnitude, 0.25f);
}

TEST(Scan, CodesAreCountedWithoutTheirScale) {
  std::vector<uint8_t> codes{0x00, 0x80, 0x7E, 0xFE, 0x7F, 0x01};  // 0, -0, 448, -448, NaN, 2^-9
  const TensorScan e4m3 = scan(Tensor(codes.data(), DType::e4m3, {6}));
  EXPECT_EQ(e4m3.saturated, 2);
  EXPECT_EQ(e4m3.nan, 1);
  EXPECT_EQ(e4m3.zero, 2);
  EXPECT_EQ(e4m3.most, 448.0f);
  EXPECT_EQ(e4m3.least_magnitude, 0x1p-9f);
  std::vector<uint8_t> e5{0x7B, 0x7C, 0x7D};  // 57344, inf, NaN
  const TensorScan e5m2 = scan(Tensor(e5.data(), DType::e5m2, {3}));
  EXPECT_EQ(e5m2.saturated, 1);
  EXPECT_EQ(e5m2.inf, 1);
  EXPECT_EQ(e5m2.nan, 1);
}

// Rows of one code are no sign of anything; the others show how the range ends.
TEST(Scan, HowTheRangeEnds) {
  // 448 448 -448 416 416 352 0 0; all 448; all NaN.
  std::vector<uint8_t> codes{0x7E, 0x7E, 0xFE, 0x7D, 0xFD, 0x7B, 0x00, 0x80};
  codes.insert(codes.end(), 8, 0x7E);
  codes.insert(codes.end(), 8, 0x7F);
  const TensorScan seen = scan(Tensor(codes.data(), DType::e4m3, {3, 8}));
  EXPECT_EQ(seen.saturated, 11);
  EXPECT_EQ(seen.at_end, 3);
  EXPECT_EQ(seen.near_end, 2);
  EXPECT_EQ(seen.magnitudes, 4);
  EXPECT_EQ(seen.nan, 8);
}

// Of scales: cells of zeros have the scale 1, and say nothing.
TEST(Scan, TheMeanExponentIsOfWhatIsNeitherZeroNorOne) {
  std::vector<float> scales{1.0f, 0.0f, 0x1p-10f, -0x1.8p-12f, 1.0f};
  EXPECT_EQ(scan(Tensor(scales.data(), DType::f32, {5})).mean_exponent, -11);
  EXPECT_EQ(scan(Tensor(scales.data(), DType::f32, {2})).mean_exponent, 0);
}

TEST(Scan, ReadsAtAnyAlignment) {
  std::vector<std::byte> bytes(1 + 2 * sizeof(bf16));
  const bf16 values[] = {to_bf16(-2.0f), to_bf16(5.0f)};
  std::memcpy(bytes.data() + 1, values, sizeof(values));
  const TensorScan scan = offline::scan(Tensor(bytes.data() + 1, DType::bf16, {2}));
  EXPECT_EQ(scan.least, -2.0f);
  EXPECT_EQ(scan.most, 5.0f);
}

TEST(Scan, NothingFiniteAndIntegers) {
  float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(scan(Tensor(&nan, DType::f32, {1})).most, 0.0f);
  int32_t four = 4;
  EXPECT_EQ(scan(Tensor(&four, DType::i32, {1})).elements, 1);
}

}  // namespace
}  // namespace octet::offline
