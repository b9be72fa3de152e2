// Scales of weights by least squared error.
#include "offline/scale_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace octet::offline {
namespace {

constexpr int64_t kRows = 5, kCols = 70;

std::vector<float> random_weight() {
  std::mt19937 engine(3);
  std::normal_distribution<float> normal;
  std::vector<float> w(kRows * kCols);
  for (float& x : w) x = normal(engine);
  for (int64_t c = 0; c < kCols; ++c) w[2 * kCols + c] = 0;  // a row of zeros
  return w;
}

QuantFormat format_of(Code code, ScaleGrid grid, ScaleType scale = ScaleType::f32) {
  return {.code = code, .grid = grid, .scale = scale};
}

// Of the values of one cell, one at a time.
double error_of(const std::vector<float>& values, const QuantFormat& format, float scale) {
  double error = 0;
  for (const float x : values) {
    const uint8_t code = quantize_value(format.code, x, inverse_scale(scale));
    const double e = double{code_values_of(format.code)[code] * scale} - double{x};
    if (std::isfinite(x)) error += e * e;
  }
  return error;
}

TEST(ScaleSearch, IsTheBestOfAnOctaveForEachCell) {
  const std::vector<float> w = random_weight();
  for (const ScaleGrid grid :
       {ScaleGrid{0, 0}, ScaleGrid{1, 0}, ScaleGrid{1, 32}, ScaleGrid{2, 32}}) {
    for (const Code code : {Code::e4m3, Code::e5m2}) {
      const QuantFormat format = format_of(code, grid);
      SCOPED_TRACE(to_string(format));
      const std::vector<float> scales = search_scales(w, kRows, kCols, format);
      const int64_t height = grid.rows ? grid.rows : kRows, width = grid.cols ? grid.cols : kCols;
      size_t cell = 0;
      double searched = 0, plain = 0;
      for (int64_t top = 0; top < kRows; top += height) {
        for (int64_t left = 0; left < kCols; left += width, ++cell) {
          std::vector<float> values;
          for (int64_t r = top; r < std::min(top + height, kRows); ++r) {
            for (int64_t c = left; c < std::min(left + width, kCols); ++c) {
              values.push_back(w[r * kCols + c]);
            }
          }
          const float base = choose_scale(finite_absmax(values.data(), std::ssize(values)), format);
          float best = base;
          for (int j = 1; j < kScaleSteps; ++j) {
            const float scale = base * static_cast<float>(std::exp2(j / double{kScaleSteps}));
            if (error_of(values, format, scale) < error_of(values, format, best)) best = scale;
          }
          ASSERT_LT(cell, scales.size());
          EXPECT_EQ(scales[cell], best);
          searched += error_of(values, format, scales[cell]);
          plain += error_of(values, format, base);
        }
      }
      EXPECT_EQ(cell, scales.size());
      EXPECT_LT(searched, 0.97 * plain);
    }
  }
}

TEST(ScaleSearch, WhereNothingIsWonScalesAreThoseOfPlainRounding) {
  const std::vector<float> w = random_weight();
  for (const QuantFormat& format :
       {format_of(Code::i8, {1, 0}), format_of(Code::e4m3, {1, 32}, ScaleType::e8m0)}) {
    EXPECT_EQ(search_scales(w, kRows, kCols, format), plain_scales(w, kRows, kCols, format));
  }
}

TEST(ScaleSearch, WhatIsNotFiniteDoesNotCount) {
  std::vector<float> w = random_weight();
  w[0] = 0;
  const QuantFormat format = format_of(Code::e4m3, {1, 0});
  const std::vector<float> scales = search_scales(w, kRows, kCols, format);
  for (const float bad : {std::nanf(""), INFINITY}) {
    w[0] = bad;
    EXPECT_EQ(search_scales(w, kRows, kCols, format), scales);
  }
}

}  // namespace
}  // namespace octet::offline
