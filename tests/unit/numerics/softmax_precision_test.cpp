// What attention loses where its softmax is not in FP32: docs/CLAIMS.md. Scores of one query
// against `keys` keys, and the mean of values of as many, by the parts of a softmax that could be
// in BF16.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "numerics/half.h"

namespace octet {
namespace {

float in_bf16(float x) {
  return to_float(to_bf16(x));
}

struct Parts {
  bool scores, weights, sum;  // in BF16
};

// Relative error of the output, in mean over 64 queries, to FP64.
double error_of(int keys, Parts bf16) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  double error = 0, energy = 0;
  for (int query = 0; query < 64; ++query) {
    std::vector<float> scores, values;
    float most = -INFINITY;
    for (int i = 0; i < keys; ++i) {
      scores.push_back(3.0f * normal(random));
      values.push_back(normal(random));
      most = std::max(most, scores.back());
    }
    double exact_sum = 0, exact = 0;
    float sum = 0, out = 0;
    for (size_t i = 0; i < scores.size(); ++i) {
      const double p = std::exp(double{scores[i]} - double{most});
      exact_sum += p;
      exact += p * double{values[i]};
      float x = bf16.scores ? in_bf16(scores[i]) : scores[i];
      x = std::exp(x - (bf16.scores ? in_bf16(most) : most));
      if (bf16.weights) x = in_bf16(x);
      sum = bf16.sum ? in_bf16(sum + x) : sum + x;
      out += x * values[i];
    }
    const double got = double{out} / double{sum}, want = exact / exact_sum;
    error += (got - want) * (got - want);
    energy += want * want;
  }
  return std::sqrt(error / energy);
}

TEST(SoftmaxPrecision, TheSumMustBeFp32AndScoresShould) {
  for (const int keys : {256, 8192}) {
    const double fp32 = error_of(keys, {false, false, false});
    const double weights = error_of(keys, {false, true, false});
    const double scores = error_of(keys, {true, false, false});
    const double sum = error_of(keys, {false, false, true});
    for (const auto& [name, value] : {std::pair("fp32", fp32), std::pair("weights", weights),
                                      std::pair("scores", scores), std::pair("sum", sum)}) {
      RecordProperty(std::to_string(keys) + "_" + name, std::to_string(value));
    }
    EXPECT_LT(fp32, 1e-5);
    EXPECT_LT(weights, 0.005);  // 2^-9 of each, which evens out
    EXPECT_GT(scores, 2 * weights);
    // What is added is lost once the sum is 256 times larger.
    EXPECT_GT(sum, keys == 256 ? 0.01 : 0.1);
  }
}

}  // namespace
}  // namespace octet
