#include "numerics/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "numerics/tolerance.h"
#include "unit/numerics/fp8_oracle.h"

namespace octet {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr QuantFormat kTensor{Code::e4m3, grids::tensor, ScaleType::f32};

static_assert(choose_scale(448.0f, kTensor) == 1.0f && choose_scale(0.0f, kTensor) == 1.0f);
static_assert(quantize_value<Code::e4m3>(17.0f, inverse_scale(1.0f)) == 0x58);

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<float> scales, back;
  QuantStats stats;
};

Quantized run(const std::vector<float>& x, int64_t rows, int64_t cols, const QuantFormat& format) {
  Quantized q;
  q.codes.resize(x.size());
  q.back.resize(x.size());
  q.scales.resize(static_cast<size_t>(scale_shape(format.grid, rows, cols).count()));
  q.stats = quantize(x, rows, cols, format, q.codes, q.scales);
  dequantize(q.codes, rows, cols, format, q.scales, q.back);
  return q;
}

uint8_t code_oracle(Code code, double x) {
  if (code != Code::i8) return testing::fp8_oracle(code, x);
  return static_cast<uint8_t>(static_cast<int>(std::nearbyint(std::clamp(x, -127.0, 127.0))));
}

std::vector<float> normal_values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& value : x) value = normal(random) * std::exp(normal(random));
  return x;
}

// Every grid on a shape that no cell divides, against a plain double loop over elements.
TEST(Quantize, EveryGridMatchesItsDefinitionOnRaggedShapes) {
  constexpr int64_t rows = 133, cols = 576 + 7;
  const std::vector<float> x = normal_values(rows * cols, 7);
  for (const Code code : {Code::e4m3, Code::e5m2, Code::i8}) {
    for (const ScaleType type : {ScaleType::f32, ScaleType::e8m0, ScaleType::unit}) {
      for (const ScaleGrid grid :
           {grids::tensor, grids::row, grids::group128, grids::block128, ScaleGrid{1, 32},
            ScaleGrid{0, 64}, ScaleGrid{0, 1}, ScaleGrid{128, 0}, ScaleGrid{1000, 1000}}) {
        const QuantFormat format{code, grid, type};
        SCOPED_TRACE(to_string(format));
        const Quantized q = run(x, rows, cols, format);
        const ScaleShape shape = scale_shape(grid, rows, cols);
        const int64_t cell_rows = grid.rows ? grid.rows : rows;
        const int64_t cell_cols = grid.cols ? grid.cols : cols;

        std::vector<float> absmax(static_cast<size_t>(shape.count()), 0.0f);
        const auto cell = [&](int64_t r, int64_t c) {
          return static_cast<size_t>(r / cell_rows * shape.cols + c / cell_cols);
        };
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            float& m = absmax[cell(r, c)];
            m = std::max(m, std::fabs(x[static_cast<size_t>(r * cols + c)]));
          }
        }
        for (size_t i = 0; i < absmax.size(); ++i) {
          ASSERT_EQ(q.scales[i], choose_scale(absmax[i], format));
        }
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            const auto i = static_cast<size_t>(r * cols + c);
            const float scale = q.scales[cell(r, c)];
            ASSERT_EQ(q.codes[i], code_oracle(code, x[i] * (1.0f / scale)));
            ASSERT_EQ(q.back[i], code_decode(code, q.codes[i]) * scale);
            if (type != ScaleType::unit) {
              ASSERT_LE(share_of_budget(q.back[i], x[i], budgets::code(code, scale)), 1.0);
            }
          }
        }
        EXPECT_EQ(q.stats.elements, rows * cols);
        EXPECT_EQ(q.stats.nonfinite(), 0);
        if (type != ScaleType::unit) {
          EXPECT_EQ(q.stats.saturated, 0);
        }
      }
    }
  }
}

TEST(Quantize, TheLargestElementOfACellBecomesTheLargestCode) {
  std::mt19937 random(3);
  for (int i = 0; i < 200'000; ++i) {
    const uint32_t bits = 0x00800000u + random() % (0x7F800000u - 0x00800000u);
    const auto absmax = std::bit_cast<float>(bits);
    for (const Code code : {Code::e4m3, Code::e5m2, Code::i8}) {
      const float scale = choose_scale(absmax, {code, grids::tensor, ScaleType::f32});
      ASSERT_TRUE(std::isfinite(inverse_scale(scale)) && inverse_scale(scale) > 0.0f);
      if (absmax < max_of(code) * 0x1p-126f) continue;  // the floor
      ASSERT_TRUE(code_is_max(code, quantize_value(code, absmax, inverse_scale(scale)))) << absmax;
    }
  }
}

TEST(ChooseScale, PowersOfTwoNeverLetAValueSaturate) {
  for (const Code fp8 : {Code::e4m3, Code::e5m2}) {
    const QuantFormat format{fp8, grids::tensor, ScaleType::e8m0};
    for (int e = -100; e < 100; ++e) {
      const float edge = std::ldexp(max_of(fp8), e);
      EXPECT_EQ(choose_scale(edge, format), std::ldexp(1.0f, e));
      EXPECT_EQ(choose_scale(std::nextafter(edge, kInf), format), std::ldexp(1.0f, e + 1));
      EXPECT_EQ(choose_scale(std::nextafter(edge, 0.0f), format), std::ldexp(1.0f, e));
    }
  }
}

TEST(ChooseScale, ExtremesHaveDefinedResults) {
  for (const ScaleType type : {ScaleType::f32, ScaleType::e8m0}) {
    const QuantFormat format{Code::e4m3, grids::tensor, type};
    EXPECT_EQ(choose_scale(0.0f, format), 1.0f);
    EXPECT_EQ(choose_scale(-0.0f, format), 1.0f);
    EXPECT_EQ(choose_scale(-1.0f, format), 1.0f);
    EXPECT_EQ(choose_scale(kNan, format), 1.0f);
    EXPECT_EQ(choose_scale(kInf, format), 1.0f);
    EXPECT_EQ(choose_scale(std::numeric_limits<float>::denorm_min(), format), kMinScale);
    EXPECT_EQ(choose_scale(kMinScale, format), kMinScale);
    EXPECT_TRUE(std::isfinite(choose_scale(std::numeric_limits<float>::max(), format)));
  }
  const QuantFormat unit{Code::e4m3, grids::tensor, ScaleType::unit};
  EXPECT_EQ(choose_scale(1e30f, unit), 1.0f);
  EXPECT_TRUE(std::isfinite(inverse_scale(kMinScale)));
}

TEST(Quantize, ZeroNanInfAndExtremes) {
  const QuantFormat rows{Code::e4m3, grids::row, ScaleType::f32};
  const std::vector<float> x = {
      0.0f,    -0.0f,   0.0f,  0.0f,     // a zero cell
      kNan,    4.48f,   -kNan, 1.0f,     // the scale comes from the finite elements
      kInf,    -kInf,   4.48f, -2.24f,   //
      kNan,    kInf,    -kInf, 0.0f,     // no finite non-zero element
      1e30f,   -1e30f,  1e29f, 0.0f,     //
      1e-40f,  -1e-42f, 0.0f,  0.0f,     // subnormal: below the floor of the scale
      3.0e38f, 1.0f,    0.0f,  -3.0e38f  //
  };
  const Quantized q = run(x, 7, 4, rows);
  const auto code = [&](int r, int c) { return q.codes[static_cast<size_t>(r * 4 + c)]; };
  EXPECT_EQ(q.scales[0], 1.0f);
  EXPECT_EQ(code(0, 0), 0x00);
  EXPECT_EQ(code(0, 1), 0x80);
  EXPECT_EQ(q.scales[1], 4.48f / 448.0f);
  EXPECT_EQ(code(1, 0) & 0x7F, 0x7F);
  EXPECT_EQ(code(1, 1), 0x7E);
  EXPECT_EQ(code(1, 2) & 0x7F, 0x7F);
  EXPECT_TRUE(std::isnan(q.back[4]));
  EXPECT_EQ(q.scales[2], 4.48f / 448.0f);
  EXPECT_EQ(code(2, 0), 0x7E);
  EXPECT_EQ(code(2, 1), 0xFE);
  EXPECT_EQ(code(2, 2), 0x7E);
  EXPECT_EQ(q.scales[3], 1.0f);
  EXPECT_EQ(code(3, 1), 0x7E);
  EXPECT_EQ(code(4, 0), 0x7E);
  EXPECT_EQ(code(4, 1), 0xFE);
  EXPECT_NEAR(q.back[18], 1e29, 0.06 * 1e29);
  EXPECT_EQ(q.scales[5], kMinScale);
  EXPECT_EQ(code(5, 0), fp8_encode<Code::e4m3>(1e-40f * 0x1p126f));
  EXPECT_EQ(code(5, 1) & 0x7F, 0x00);
  EXPECT_EQ(code(6, 0), 0x7E);
  EXPECT_EQ(code(6, 1), 0x00);
  EXPECT_EQ(code(6, 3), 0xFE);

  EXPECT_EQ(q.stats.elements, 28);
  EXPECT_EQ(q.stats.nan, 3);
  EXPECT_EQ(q.stats.inf, 4);
  EXPECT_EQ(q.stats.saturated, 0);
  EXPECT_EQ(q.stats.flushed, 2);     // -1e-42, and 1 beside 3e38
  EXPECT_EQ(q.stats.zero_cells, 2);  // rows 0 and 3
}

TEST(Quantize, GivenScalesSaturateAndAreCounted) {
  const std::vector<float> x = {464.0f, 464.1f, -1000.0f, 448.0f, 0.0005f, kNan};
  const std::vector<float> scales = {1.0f};
  std::vector<uint8_t> codes(6);
  const QuantStats stats = quantize_with_scales(x, 2, 3, kTensor, scales, codes);
  EXPECT_EQ(codes, (std::vector<uint8_t>{0x7E, 0x7E, 0xFE, 0x7E, 0x00, 0x7F}));
  EXPECT_EQ(stats, (QuantStats{.elements = 6, .saturated = 2, .flushed = 1, .nan = 1}));

  QuantStats sum = stats;
  sum += stats;
  EXPECT_EQ(sum, (QuantStats{.elements = 12, .saturated = 4, .flushed = 2, .nan = 2}));
}

TEST(Quantize, GivenScalesReproduceChosenOnes) {
  const std::vector<float> x = normal_values(10 * 300, 11);
  const QuantFormat format{Code::e5m2, grids::group128, ScaleType::f32};
  const Quantized q = run(x, 10, 300, format);
  std::vector<uint8_t> codes(x.size());
  quantize_with_scales(x, 10, 300, format, q.scales, codes);
  EXPECT_EQ(codes, q.codes);
}

TEST(Quantize, AnEmptyMatrixIsFine) {
  const Quantized q = run({}, 0, 128, kTensor);
  EXPECT_EQ(q.stats, QuantStats{});
}

TEST(Quantize, SizesThatDoNotFitAreAFault) {
  const std::vector<float> x(6);
  std::vector<uint8_t> codes(6), few(5);
  std::vector<float> scales(1), two(2);
  EXPECT_THROW(quantize(x, 2, 3, kTensor, few, scales), Fault);
  EXPECT_THROW(quantize(x, 2, 3, kTensor, codes, two), Fault);
  EXPECT_THROW(quantize(x, 3, 3, kTensor, codes, scales), Fault);
  EXPECT_THROW(quantize(x, -2, -3, kTensor, codes, scales), Fault);
}

// Integers have neither NaN nor infinity, and -128 is never made.
TEST(Quantize, IntegersRoundToEvenAndSaturateAtBothEnds) {
  const QuantFormat format{Code::i8, grids::tensor, ScaleType::unit};
  const std::vector<float> x = {0.5f,    1.5f, -2.5f, 126.6f, 128.0f,
                                -200.0f, kInf, -kInf, kNan,   0.2f};
  const Quantized q = run(x, 1, static_cast<int64_t>(x.size()), format);
  EXPECT_EQ(q.back, (std::vector<float>{0, 2, -2, 127, 127, -127, 127, -127, 0, 0}));
  EXPECT_EQ(q.stats,
            (QuantStats{.elements = 10, .saturated = 2, .flushed = 3, .nan = 1, .inf = 2}));
  EXPECT_EQ(int8_decode(0x80), -128.0f);
}

TEST(FiniteAbsmax, SkipsNonfiniteAndFollowsTheStride) {
  const std::vector<float> x = {1.0f, -7.0f, kNan, kInf, -2.0f, 9.0f};
  EXPECT_EQ(finite_absmax(x.data(), 6), 9.0f);
  EXPECT_EQ(finite_absmax(x.data(), 3, 2), 2.0f);
  EXPECT_EQ(finite_absmax(x.data() + 2, 2), 0.0f);
}

}  // namespace
}  // namespace octet
