// Delayed scaling against a simulation, step by step, of Transformer Engine's recipe.
#include "offline/delayed_scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>
#include <vector>

#include "base/error.h"

namespace octet::offline {
namespace {

// A history that starts with zeros and rolls; a scale that stays where its amax is zero.
float simulated(const std::vector<float>& amax, const DelayedScaling& how) {
  std::deque<float> history(static_cast<size_t>(how.history), 0.0f);
  float range = 0;
  for (const float step : amax) {
    history.pop_back();
    history.push_front(step);
    float most = history.front();
    if (how.algorithm == AmaxAlgorithm::max) {
      for (const float past : history) most = std::max(most, past);
    }
    if (most > 0) range = most * std::exp2(static_cast<float>(how.margin));
  }
  return range;
}

TEST(DelayedScaling, IsTheRangeOfTheNextStep) {
  const std::vector<float> amax = {1, 9, 2, 3};
  const auto range = [&](int64_t history, AmaxAlgorithm algorithm, int margin = 0) {
    return delayed_range(amax, {history, algorithm, margin});
  };
  EXPECT_EQ(range(1024, AmaxAlgorithm::max), 9);
  EXPECT_EQ(range(3, AmaxAlgorithm::max), 9);
  EXPECT_EQ(range(2, AmaxAlgorithm::max), 3);
  EXPECT_EQ(range(1, AmaxAlgorithm::max), 3);
  EXPECT_EQ(range(1024, AmaxAlgorithm::most_recent), 3);
  EXPECT_EQ(range(1024, AmaxAlgorithm::most_recent, 2), 12);
  EXPECT_EQ(delayed_range({}, {}), 0);
  EXPECT_EQ(delayed_range(std::vector<float>{0, 0}, {}), 0);
  // Zeros change nothing, but time goes on: 9 leaves the history.
  EXPECT_EQ(delayed_range(std::vector<float>{9, 2, 0}, {.history = 2}), 2);
  EXPECT_EQ(delayed_range(std::vector<float>{9, 2, 0, 0, 0}, {.history = 2}), 2);
  EXPECT_EQ(delayed_range(std::vector<float>{9, 0, 0, 0}, {.history = 2}), 9);
}

TEST(DelayedScaling, AgreesWithASimulationOfEachStep) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<float> amax(random() % 12);
    for (float& value : amax) value = random() % 3 == 0 ? 0.0f : static_cast<float>(random() % 9);
    const DelayedScaling how{
        .history = 1 + static_cast<int64_t>(random() % 6),
        .algorithm = random() % 2 == 0 ? AmaxAlgorithm::max : AmaxAlgorithm::most_recent,
        .margin = static_cast<int>(random() % 3)};
    ASSERT_EQ(delayed_range(amax, how), simulated(amax, how)) << trial;
  }
}

TEST(DelayedScaling, AlgorithmsHaveTransformerEnginesNames) {
  EXPECT_EQ(parse_amax_algorithm("max", "it"), AmaxAlgorithm::max);
  EXPECT_EQ(parse_amax_algorithm("most_recent", "it"), AmaxAlgorithm::most_recent);
  EXPECT_THROW(parse_amax_algorithm("mean", "it"), Error);
}

}  // namespace
}  // namespace octet::offline
