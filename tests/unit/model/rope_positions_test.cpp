// How exactly a position must be known, far out: what docs/CLAIMS.md says of RoPE at 512K.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/rope.h"
#include "numerics/half.h"
#include "unit/model/host_backend.h"

namespace octet::model {
namespace {

constexpr int64_t kFar = 524288;

RopeConfig plain() {
  return {.theta = 500000, .dim = 64};
}

// A key one token before its query, each a unit vector in each pair: the score of a pair is the
// cosine of the difference of their angles. The worst error of it over the pairs.
template <class Angle>
double worst_score_error(Angle angle) {
  double worst = 0;
  const std::vector<double> frequencies = rope_frequencies(plain());
  for (const double frequency : frequencies) {
    const double exact = std::cos(frequency);
    const double query = angle(kFar - 1, frequency), key = angle(kFar - 2, frequency);
    worst = std::max(worst, std::abs(std::cos(query - key) - exact));
  }
  return worst;
}

TEST(RopePositions, TheTableIsExactFarOut) {
  test::HostBackend backend;
  const RopeMemory rope = build_rope_table(backend, plain(), kFar);
  const std::vector<double> frequencies = rope_frequencies(plain());
  const auto pairs = static_cast<int64_t>(frequencies.size());
  double worst = 0;
  for (int64_t i = 0; i < pairs; ++i) {
    const auto at = [&](const Tensor& table, int64_t position) {
      return double{table.as<float>()[position * pairs + i]};
    };
    const int64_t query = kFar - 1, key = kFar - 2;
    const double score = at(rope.table.cos, query) * at(rope.table.cos, key) +
                         at(rope.table.sin, query) * at(rope.table.sin, key);
    worst = std::max(worst, std::abs(score - std::cos(frequencies[static_cast<size_t>(i)])));
  }
  EXPECT_LT(worst, 1e-6);
}

TEST(RopePositions, FP32AnglesBlurAndSixteenBitsLoseTheTokenBefore) {
  const double fp32 = worst_score_error([](int64_t position, double frequency) {
    return double{static_cast<float>(position) * static_cast<float>(frequency)};
  });
  const double bf16_positions = worst_score_error([](int64_t position, double frequency) {
    return double{to_float(to_bf16(static_cast<float>(position)))} * frequency;
  });
  RecordProperty("fp32", std::to_string(fp32));
  RecordProperty("bf16", std::to_string(bf16_positions));
  // FP32 has 24 bits: an angle of half a million radians is known to 0.03.
  EXPECT_GT(fp32, 1e-4);
  EXPECT_LT(fp32, 0.05);
  // In BF16 both are position 524288: a token and the one before it are the same place.
  EXPECT_GT(bf16_positions, 0.4);
}

}  // namespace
}  // namespace octet::model
