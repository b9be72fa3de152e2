#include "numerics/tolerance.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "numerics/quantize.h"

namespace octet {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Tolerance, ShareOfBudget) {
  const Budget budget{.abs = 1.0, .rel = 0.1};
  EXPECT_DOUBLE_EQ(share_of_budget(12.0, 10.0, budget), 1.0);
  EXPECT_DOUBLE_EQ(share_of_budget(-9.0, -10.0, budget), 0.5);
  EXPECT_EQ(share_of_budget(10.0, 10.0, {}), 0.0);
  EXPECT_EQ(share_of_budget(10.1, 10.0, {}), kInf);
  EXPECT_EQ(share_of_budget(kInf, kInf, budget), 0.0);
  EXPECT_EQ(share_of_budget(kInf, -kInf, budget), kInf);
  EXPECT_EQ(share_of_budget(kInf, 1.0, budget), kInf);
  EXPECT_EQ(share_of_budget(kNan, kNan, budget), 0.0);
  EXPECT_EQ(share_of_budget(kNan, 1.0, budget), kInf);
  EXPECT_EQ(share_of_budget(1.0, kNan, budget), kInf);
}

TEST(Tolerance, WorstShareAndRms) {
  const std::vector<float> want = {1, 2, 2}, got = {1, 2.5f, 1.9f};
  const WorstShare worst = worst_share(got, want, {.abs = 1.0});
  EXPECT_EQ(worst.index, 1);
  EXPECT_DOUBLE_EQ(worst.share, 0.5);
  EXPECT_EQ(worst_share(want, want, {}).index, -1);
  EXPECT_NEAR(relative_rms(got, want), std::sqrt(0.26 / 9), 1e-7);
  EXPECT_EQ(relative_rms(want, want), 0.0);
  EXPECT_EQ(relative_rms(want, std::vector<float>(3)), kInf);
  EXPECT_EQ(relative_rms(want, std::vector<float>(2)), kInf);
  EXPECT_EQ(worst_share(want, std::vector<float>(2), {}).share, kInf);
  EXPECT_NEAR(sqnr_db(std::vector<float>{1.1f}, std::vector<float>{1.0f}), 20.0, 1e-4);
}

// The GEMM budgets hold, and are not slack: a product of quantized operands uses most of them.
TEST(Tolerance, GemmBudgetsAreTight) {
  constexpr int64_t m = 32, n = 32, k = 1024;
  std::mt19937 random(21);
  std::normal_distribution<float> normal;
  std::vector<float> a(m * k), w(n * k);
  for (float& x : a) x = normal(random);
  for (float& x : w) x = normal(random);
  const auto through = [&](const std::vector<float>& x, int64_t rows, Code fp8) {
    const QuantFormat format{fp8, grids::row, ScaleType::f32};
    std::vector<uint8_t> codes(x.size());
    std::vector<float> scales(static_cast<size_t>(rows)), back(x.size());
    quantize(x, rows, k, format, codes, scales);
    dequantize(codes, rows, k, format, scales, back);
    return back;
  };
  const auto product = [&](const std::vector<float>& left, const std::vector<float>& right) {
    std::vector<float> y(m * n);
    for (int64_t i = 0; i < m * n; ++i) {
      double sum = 0;
      const float* l = &left[static_cast<size_t>(i / n * k)];
      const float* r = &right[static_cast<size_t>(i % n * k)];
      for (int64_t j = 0; j < k; ++j) sum += double{l[j]} * r[j];
      y[static_cast<size_t>(i)] = static_cast<float>(sum);
    }
    return y;
  };
  const auto want = product(a, w);
  const auto expect_within = [&](double got, double budget) {
    EXPECT_LE(got, budget);
    EXPECT_GE(got, 0.75 * budget);
  };
  expect_within(relative_rms(product(a, through(w, n, Code::e4m3)), want),
                budgets::kGemmE4m3Weights);
  expect_within(relative_rms(product(through(a, m, Code::e4m3), through(w, n, Code::e4m3)), want),
                budgets::kGemmE4m3Both);
  expect_within(relative_rms(product(through(a, m, Code::e5m2), through(w, n, Code::e5m2)), want),
                budgets::kGemmE5m2Both);
}

// Q, K, V and P through E4M3, the softmax and all sums in float64; scores ~ N(0, 1).
TEST(Tolerance, AttentionBudgetIsTight) {
  constexpr int64_t queries = 64, keys = 1024, dim = 64;
  std::mt19937 random(33);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t rows) {
    std::vector<float> x(static_cast<size_t>(rows * dim));
    for (float& value : x) value = normal(random);
    return x;
  };
  const auto through = [](const std::vector<float>& x, ScaleGrid grid) {
    const QuantFormat format{Code::e4m3, grid, ScaleType::f32};
    const auto rows = static_cast<int64_t>(x.size()) / dim;
    std::vector<uint8_t> codes(x.size());
    std::vector<float> scales(static_cast<size_t>(scale_shape(grid, rows, dim).count()));
    std::vector<float> back(x.size());
    quantize(x, rows, dim, format, codes, scales);
    dequantize(codes, rows, dim, format, scales, back);
    return back;
  };
  const auto attention = [&](const std::vector<float>& q, const std::vector<float>& k,
                             const std::vector<float>& v, bool fp8_p) {
    std::vector<float> out(static_cast<size_t>(queries * dim));
    for (int64_t i = 0; i < queries; ++i) {
      std::vector<double> p(keys);
      double most = -kInf, sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) {
          score +=
              double{q[static_cast<size_t>(i * dim + d)]} * k[static_cast<size_t>(j * dim + d)];
        }
        p[static_cast<size_t>(j)] = score / std::sqrt(double{dim});
        most = std::max(most, p[static_cast<size_t>(j)]);
      }
      for (double& value : p) {
        value = std::exp(value - most);
        sum += value;
        if (fp8_p) value = fp8_decode<Code::e4m3>(fp8_encode<Code::e4m3>(float(value * 256))) / 256;
      }
      for (int64_t d = 0; d < dim; ++d) {
        double total = 0;
        for (int64_t j = 0; j < keys; ++j) {
          total += p[static_cast<size_t>(j)] * v[static_cast<size_t>(j * dim + d)];
        }
        out[static_cast<size_t>(i * dim + d)] = static_cast<float>(total / sum);
      }
    }
    return out;
  };
  const auto q = draw(queries), k = draw(keys), v = draw(keys);
  const double error = relative_rms(
      attention(through(q, grids::row), through(k, grids::tensor), through(v, grids::tensor), true),
      attention(q, k, v, false));
  EXPECT_LE(error, budgets::kAttentionE4m3);
  EXPECT_GE(error, 0.75 * budgets::kAttentionE4m3);
}

}  // namespace
}  // namespace octet
