#include "offline/error_feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "numerics/quant_format.h"
#include "offline/scale_search.h"

namespace octet::offline {
namespace {

const QuantFormat kChannel = {.code = Code::e4m3, .grid = {1, 0}, .scale = ScaleType::f32};
const QuantFormat kBlock = {.code = Code::e4m3, .grid = {128, 128}, .scale = ScaleType::f32};
const QuantFormat kGroup = {.code = Code::e4m3, .grid = {1, 128}, .scale = ScaleType::f32};

using Matrix = std::vector<std::vector<double>>;

std::vector<float> random(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(engine);
  return values;
}

// Inputs of which a few hidden causes explain most, as in a real model.
std::vector<float> correlated(int64_t rows, int64_t cols, uint32_t seed) {
  constexpr int64_t causes = 6;
  const std::vector<float> cause = random(rows * causes, seed),
                           mix = random(causes * cols, seed + 1);
  std::vector<float> x = random(rows * cols, seed + 2);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      float& value = x[r * cols + c];
      value *= 0.3f;
      for (int64_t k = 0; k < causes; ++k) value += cause[r * causes + k] * mix[k * cols + c];
      if (c % 17 == 0) value *= 8.0f;  // outlier channels
    }
  }
  return x;
}

Moments moments_of(const std::vector<float>& x, int64_t cols, ThreadPool& threads) {
  InputMoments all(threads);
  const ops::Linear linear{.name = "it"};
  const ops::Linear* const ws[] = {&linear};
  std::vector<float> copy = x;
  const auto rows = static_cast<int64_t>(x.size()) / cols;
  // In two uneven parts, as chunks come.
  const Tensor whole(copy.data(), DType::f32, {rows, cols});
  all.add(ws, whole.slice(0, rows / 3));
  all.add(ws, whole.slice(rows / 3, rows - rows / 3));
  return *all.find("it");
}

CompensatedWeight compensated(const std::vector<float>& w, int64_t rows, int64_t cols,
                              const QuantFormat& format, const FeedbackFactor& factor,
                              ThreadPool& threads) {
  return quantize_compensated(w, rows, cols, format, plain_scales(w, rows, cols, format), factor,
                              threads);
}

Matrix dense(const Moments& moments, double damping) {
  const int64_t n = moments.width;
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) mean += moments.at(i, i) / static_cast<double>(n);
  Matrix h(static_cast<size_t>(n), std::vector<double>(static_cast<size_t>(n)));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) h[i][j] = moments.at(i, j);
    h[i][i] += damping * mean;
  }
  return h;
}

// sum over rows of e H eᵀ.
double loss(const Matrix& h, std::span<const float> w, int64_t rows, const QuantFormat& format,
            std::span<const uint8_t> codes, std::span<const float> scales) {
  const auto cols = static_cast<int64_t>(h.size());
  std::vector<float> back(w.size());
  dequantize(codes, rows, cols, format, scales, back);
  double sum = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < cols; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        sum += (double{back[r * cols + i]} - w[r * cols + i]) * h[i][j] *
               (double{back[r * cols + j]} - w[r * cols + j]);
      }
    }
  }
  return sum;
}

// GPTQ as its paper has it: after each column the rest moves to where it makes the error least,
// which needs the inverse of what is left of H, by Gauss-Jordan here, anew for each column.
std::vector<uint8_t> gptq(const Matrix& h, std::span<const float> row,
                          std::span<const int32_t> order, float scale) {
  std::vector<double> w(row.begin(), row.end());
  std::vector<uint8_t> codes(row.size());
  std::vector<int32_t> left(order.begin(), order.end());
  while (!left.empty()) {
    const int32_t k = left.front();
    const size_t n = left.size();
    Matrix a(n, std::vector<double>(2 * n));
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) a[i][j] = h[left[i]][left[j]];
      a[i][n + i] = 1;
    }
    for (size_t p = 0; p < n; ++p) {
      const double pivot = a[p][p];
      for (double& v : a[p]) v /= pivot;
      for (size_t i = 0; i < n; ++i) {
        if (i == p) continue;
        const double factor = a[i][p];
        for (size_t j = 0; j < 2 * n; ++j) a[i][j] -= factor * a[p][j];
      }
    }
    codes[k] = quantize_value(Code::e4m3, static_cast<float>(w[k]), inverse_scale(scale));
    const double back = double{code_values_of(Code::e4m3)[codes[k]] * scale};
    const double step = (w[k] - back) / a[0][n];
    for (size_t i = 0; i < n; ++i) w[left[i]] -= step * a[i][n];
    left.erase(left.begin());
  }
  return codes;
}

TEST(InputMoments, AreSumsOfProducts) {
  ThreadPool threads(2);
  constexpr int64_t rows = 150, cols = 37;  // more than one block of rows, and a ragged one
  const std::vector<float> x = random(rows * cols, 1);
  const Moments moments = moments_of(x, cols, threads);
  EXPECT_EQ(moments.rows, rows);
  for (int64_t i = 0; i < cols; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      double want = 0;
      for (int64_t r = 0; r < rows; ++r) want += double{x[r * cols + i]} * x[r * cols + j];
      EXPECT_NEAR(moments.at(i, j), want, 1e-4 * rows) << i << ", " << j;
    }
  }
}

TEST(InputMoments, RefuseWhatIsNotFinite) {
  ThreadPool threads(1);
  InputMoments all(threads);
  const ops::Linear linear{.name = "model.layers.3.mlp.down_proj"};
  const ops::Linear* const ws[] = {&linear};
  std::vector<float> x = {1, 2, std::nanf(""), 4};
  try {
    all.add(ws, Tensor(x.data(), DType::f32, {2, 2}));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.parts().where, "input of 'model.layers.3.mlp.down_proj'");
    EXPECT_EQ(error.parts().value, "nan in column 0");
  }
}

TEST(ErrorFeedback, FactorsTheDampedMoments) {
  ThreadPool threads(2);
  constexpr int64_t n = 150;  // more than two blocks
  const Moments moments = moments_of(correlated(400, n, 3), n, threads);
  const FeedbackFactor f = factor(moments, 0.01, threads);
  const Matrix h = dense(moments, 0.01);
  for (int64_t k = 1; k < n; ++k) {  // the largest moment first
    EXPECT_GE(h[f.order[k - 1]][f.order[k - 1]], h[f.order[k]][f.order[k]]);
  }
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_EQ(f.upper[i * n + i], 1.0);
    for (int64_t j = 0; j < n; ++j) {
      double product = 0;  // U D Uᵀ
      for (int64_t k = 0; k < n; ++k) {
        product += f.upper[i * n + k] * f.diagonal[k] * f.upper[j * n + k];
      }
      const double want = h[f.order[i]][f.order[j]];
      EXPECT_NEAR(product, want, 1e-9 * std::abs(h[f.order[0]][f.order[0]])) << i << ", " << j;
      if (j < i) {
        EXPECT_EQ(f.upper[i * n + j], 0.0);
      }
    }
  }
}

// Few inputs, all but equal: of low rank, and in FP32 not quite semi-definite.
TEST(ErrorFeedback, TakesMomentsThatAreNotQuiteDefinite) {
  ThreadPool threads(2);
  constexpr int64_t n = 100;
  std::vector<float> x(static_cast<size_t>(n * n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1000.0f + static_cast<float>(i % n % 7);
  Moments moments = moments_of(x, n, threads);
  for (int64_t i = 0; i < n; ++i) moments.sum[i * n + i] *= 0.99f;
  const FeedbackFactor f = factor(moments, 1e-6, threads);
  for (const double d : f.diagonal) EXPECT_TRUE(d > 0.0 && std::isfinite(d));
}

TEST(ErrorFeedback, GivesTheCodesOfGptqWithItsInverses) {
  ThreadPool threads(2);
  constexpr int64_t rows = 12, cols = 70;  // more than one block
  const Moments moments = moments_of(correlated(300, cols, 5), cols, threads);
  const std::vector<float> w = random(rows * cols, 6);
  const FeedbackFactor f = factor(moments, 0.01, threads);
  const CompensatedWeight q = compensated(w, rows, cols, kChannel, f, threads);
  const Matrix h = dense(moments, 0.01);
  int64_t different = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = std::span(w).subspan(static_cast<size_t>(r * cols), cols);
    const std::vector<uint8_t> want = gptq(h, row, f.order, q.scales[r]);
    for (int64_t c = 0; c < cols; ++c) different += want[c] != q.codes[r * cols + c];
  }
  // Two orders of summation may round a tie apart, after which a row goes its own way.
  EXPECT_LE(different, 8);
}

TEST(ErrorFeedback, LowersTheErrorOfTheOutput) {
  ThreadPool threads(2);
  constexpr int64_t rows = 130, cols = 200;
  const Moments moments = moments_of(correlated(1000, cols, 7), cols, threads);
  const std::vector<float> w = random(rows * cols, 8);
  const FeedbackFactor f = factor(moments, 0.01, threads);
  const Matrix h = dense(moments, 0.01);
  for (const QuantFormat& format : {kChannel, kBlock, kGroup}) {
    std::vector<uint8_t> nearest(w.size());
    std::vector<float> scales(static_cast<size_t>(scale_shape(format.grid, rows, cols).count()));
    quantize(w, rows, cols, format, nearest, scales);
    const CompensatedWeight q = compensated(w, rows, cols, format, f, threads);
    EXPECT_EQ(q.scales, scales) << to_string(format);
    const double plain = loss(h, w, rows, format, nearest, scales);
    const double compensated = loss(h, w, rows, format, q.codes, q.scales);
    EXPECT_LT(compensated, 0.5 * plain) << to_string(format);
    // What is reported is this ratio, over a part of the rows.
    EXPECT_NEAR(q.error / q.error_nearest, compensated / plain, 0.15 * compensated / plain);
  }
}

TEST(ErrorFeedback, DoesNotDependOnThreads) {
  constexpr int64_t rows = 33, cols = 140;
  std::vector<std::vector<uint8_t>> codes;
  for (const int count : {1, 2, 5}) {
    ThreadPool threads(count);
    const Moments moments = moments_of(correlated(500, cols, 9), cols, threads);
    const std::vector<float> w = random(rows * cols, 10);
    codes.push_back(
        compensated(w, rows, cols, kBlock, factor(moments, 0.01, threads), threads).codes);
  }
  EXPECT_EQ(codes[0], codes[1]);
  EXPECT_EQ(codes[0], codes[2]);
}

TEST(ErrorFeedback, WithoutCorrelationIsTheNearest) {
  ThreadPool threads(1);
  constexpr int64_t rows = 9, cols = 65;
  Moments moments{.width = cols, .rows = 10, .sum = std::vector<float>(cols * cols)};
  const std::vector<float> w = random(rows * cols, 11);
  for (const bool zeros : {true, false}) {
    for (int64_t i = 0; i < cols && !zeros; ++i)
      moments.sum[i * cols + i] = 1.0f + static_cast<float>(i);
    std::vector<uint8_t> nearest(w.size());
    std::vector<float> scales(rows);
    const QuantStats stats = quantize(w, rows, cols, kChannel, nearest, scales);
    const CompensatedWeight q =
        compensated(w, rows, cols, kChannel, factor(moments, 0.01, threads), threads);
    EXPECT_EQ(q.codes, nearest);
    EXPECT_EQ(q.stats, stats);
  }
}

TEST(ErrorFeedback, KeepsWhatIsNotFiniteToItself) {
  ThreadPool threads(1);
  constexpr int64_t rows = 2, cols = 64;
  const Moments moments = moments_of(correlated(200, cols, 12), cols, threads);
  std::vector<float> w = random(rows * cols, 13);
  w[5] = std::nanf("");
  w[9] = -INFINITY;
  const CompensatedWeight q =
      compensated(w, rows, cols, kChannel, factor(moments, 0.01, threads), threads);
  EXPECT_EQ(q.stats.nan, 1);
  EXPECT_EQ(q.stats.inf, 1);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float back = code_values_of(Code::e4m3)[q.codes[i]] * q.scales[i / cols];
    if (i == 5) {
      EXPECT_TRUE(std::isnan(back));
    } else if (i == 9) {
      EXPECT_EQ(back, -448.0f * q.scales[0]);
    } else {
      EXPECT_TRUE(std::isfinite(back));
    }
  }
}

}  // namespace
}  // namespace octet::offline
