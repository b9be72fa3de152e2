// Arrivals have the rate and the spread that they are asked for, and are the same for one seed.
#include "load/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace octet::load {
namespace {

struct Moments {
  double mean, variance;
};
Moments moments_of(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, squares / count};
}

std::vector<double> gaps_of(const std::vector<double>& times) {
  std::vector<double> gaps(times.size());
  std::adjacent_difference(times.begin(), times.end(), gaps.begin());
  return gaps;
}

TEST(Arrivals, GammaHasItsMoments) {
  for (const double shape : {0.2, 0.5, 1.0, 2.5, 20.0}) {
    Philox random(7);
    std::vector<double> draws(100000);
    for (double& draw : draws) draw = draw_gamma(random, shape);
    const auto [mean, variance] = moments_of(draws);
    // Standard errors: sqrt(shape / n) of the mean; of the variance sqrt((m4 - m2^2) / n) with
    // m4 = 3 shape^2 + 6 shape.
    const double n = 100000;
    EXPECT_NEAR(mean, shape, 5 * std::sqrt(shape / n)) << shape;
    EXPECT_NEAR(variance, shape, 5 * std::sqrt((2 * shape * shape + 6 * shape) / n)) << shape;
    EXPECT_GT(*std::ranges::min_element(draws), 0);
  }
}

TEST(Arrivals, ShapeOneIsExponential) {
  Philox random(3);
  std::vector<double> draws(20000);
  for (double& draw : draws) draw = draw_gamma(random, 1);
  std::ranges::sort(draws);
  double furthest = 0;  // Kolmogorov-Smirnov
  for (size_t i = 0; i < draws.size(); ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(draws.size());
    furthest = std::max(furthest, std::abs(1 - std::exp(-draws[i]) - share));
  }
  EXPECT_LT(furthest, 1.95 / std::sqrt(20000.0));  // passed by 999 of 1000 right generators
}

TEST(Arrivals, GapsHaveTheRateAndTheBurstiness) {
  for (const double shape : {0.3, 1.0, 4.0}) {
    const auto times = arrival_times({.rate = 50, .burstiness = shape, .seed = 1}, 20000);
    EXPECT_TRUE(std::ranges::is_sorted(times));
    EXPECT_NEAR(times.back(), 20000 / 50.0, 1e-9);  // the rate exactly
    const auto [mean, variance] = moments_of(gaps_of(times));
    EXPECT_NEAR(std::sqrt(variance) / mean, 1 / std::sqrt(shape), 0.08) << shape;
  }
}

TEST(Arrivals, InfiniteBurstinessIsAFixedGap) {
  const auto times = arrival_times(
      {.rate = 4, .burstiness = std::numeric_limits<double>::infinity(), .seed = 9}, 8);
  for (size_t i = 0; i < times.size(); ++i) EXPECT_NEAR(times[i], 0.25 * double(i + 1), 1e-12);
}

TEST(Arrivals, AnInfiniteRateIsAllAtOnce) {
  for (const double time : arrival_times({}, 10)) EXPECT_EQ(time, 0);
}

TEST(Arrivals, ASeedIsARun) {
  const ArrivalOptions one{.rate = 3, .seed = 1}, other{.rate = 3, .seed = 2};
  EXPECT_EQ(arrival_times(one, 50), arrival_times(one, 50));
  EXPECT_NE(arrival_times(one, 50), arrival_times(other, 50));
}

TEST(Arrivals, RampsRiseAsTheyShould) {
  ArrivalOptions linear{.ramp_up = RampUp::linear, .start_rate = 2, .end_rate = 10};
  EXPECT_EQ(rate_at(linear, 0, 5), 2);
  EXPECT_EQ(rate_at(linear, 2, 5), 6);
  EXPECT_EQ(rate_at(linear, 4, 5), 10);
  EXPECT_EQ(rate_at(linear, 0, 1), 2);
  ArrivalOptions exponential{.ramp_up = RampUp::exponential, .start_rate = 1, .end_rate = 16};
  EXPECT_DOUBLE_EQ(rate_at(exponential, 2, 5), 4);
  EXPECT_DOUBLE_EQ(rate_at(exponential, 4, 5), 16);
  linear.burstiness = std::numeric_limits<double>::infinity();
  const auto gaps = gaps_of(arrival_times(linear, 5));
  EXPECT_NEAR(gaps[0], 1 / 2.0, 1e-12);
  EXPECT_NEAR(gaps[4], 1 / 10.0, 1e-12);
}

}  // namespace
}  // namespace octet::load
