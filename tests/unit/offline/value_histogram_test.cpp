#include "offline/value_histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "numerics/quantize.h"

namespace octet::offline {
namespace {

// The kinds of tensors that models have: dense, with outliers, all of a sign, over many magnitudes.
std::vector<std::vector<float>> samples() {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> all(5);
  for (int i = 0; i < 40000; ++i) {
    const float x = normal(engine);
    all[0].push_back(x);
    all[1].push_back(i % 997 == 0 ? 300.0f * x : x);
    all[2].push_back(std::abs(x) + 0.001f);
    all[3].push_back(x * std::exp(4.0f * normal(engine)));
    all[4].push_back(i % 3 == 0 ? 0.0f : 1e-4f * x);
  }
  return all;
}

ValueHistogram histogram_of(std::span<const float> values) {
  ValueHistogram histogram;
  histogram.add(values);
  return histogram;
}

TEST(ValueHistogram, PercentilesAreThoseOfAnExactSortWithinOnePercent) {
  for (const std::vector<float>& values : samples()) {
    const ValueHistogram histogram = histogram_of(values);
    std::vector<float> sorted;
    double sum = 0;
    for (const float x : values) {
      sorted.push_back(std::abs(x));
      sum += std::abs(x);
    }
    std::ranges::sort(sorted);
    for (const double share : {0.5, 0.9, 0.99, 0.999, 0.9999, 1.0}) {
      const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
      const float want = sorted[rank - 1];
      EXPECT_NEAR(histogram.percentile(share), want, 0.01f * want) << share;
    }
    EXPECT_EQ(histogram.min(), *std::ranges::min_element(values));
    EXPECT_EQ(histogram.max(), *std::ranges::max_element(values));
    EXPECT_EQ(histogram.absmax(), sorted.back());
    EXPECT_NEAR(histogram.mean_abs(), sum / static_cast<double>(values.size()), 1e-9 * sum);
  }
}

TEST(ValueHistogram, PartsAddUpToTheWhole) {
  const std::vector<float> values = samples()[1];
  ValueHistogram whole = histogram_of(values), parts;
  for (size_t first = 0; first < values.size(); first += 777) {
    ValueHistogram part = histogram_of(
        std::span(values).subspan(first, std::min<size_t>(777, values.size() - first)));
    parts.merge(part);
  }
  EXPECT_EQ(parts.percentile(0.999), whole.percentile(0.999));
  EXPECT_EQ(parts.count(), whole.count());
  EXPECT_EQ(parts.absmax(), whole.absmax());
  EXPECT_NEAR(parts.mean_abs(), whole.mean_abs(), 1e-12);
}

TEST(ValueHistogram, ComesBackFromJson) {
  for (const std::vector<float>& values : samples()) {
    const ValueHistogram histogram = histogram_of(values);
    const Json json = Json::parse(dump_json(histogram.to_json()));
    EXPECT_EQ(ValueHistogram::from_json(JsonView(json, "it")), histogram);
  }
  const Json empty = Json::parse(dump_json(ValueHistogram().to_json()));
  EXPECT_EQ(ValueHistogram::from_json(JsonView(empty, "it")), ValueHistogram());
}

TEST(ValueHistogram, RefusesJsonThatItDidNotWrite) {
  const Json good = Json::parse(dump_json(histogram_of(std::vector<float>{1, 2, -3}).to_json()));
  const std::vector<std::pair<const char*, Json>> wrong = {{"count", 4},
                                                           {"count", -1},
                                                           {"count", "3"},
                                                           {"buckets", {-1, 4}},
                                                           {"first", 1 << 20},
                                                           {"min", 9},
                                                           {"sum", -1},
                                                           {"buckets", {int64_t{1} << 62, 3}},
                                                           {"buckets", Json(5000, 0)}};
  for (const auto& [key, value] : wrong) {
    Json json = good;
    json[key] = value;
    EXPECT_THROW(ValueHistogram::from_json(JsonView(json, "it")), Error) << key << value;
    json.erase(key);
    EXPECT_THROW(ValueHistogram::from_json(JsonView(json, "it")), Error) << key;
  }
}

double squared_error(std::span<const float> values, float scale) {
  double error = 0;
  for (const float x : values) {
    const float back =
        code_values_of(Code::e4m3)[quantize_value(Code::e4m3, x, inverse_scale(scale))] * scale;
    error += (double{back} - x) * (double{back} - x);
  }
  return error;
}

TEST(ValueHistogram, ScalesByMethod) {
  std::vector<float> values = samples()[0];
  values[7] = 1000.0f;
  const ValueHistogram histogram = histogram_of(values);
  EXPECT_EQ(scale_of(histogram, RangeMethod::max, Code::e4m3), 1000.0f / 448.0f);
  EXPECT_EQ(scale_of(histogram, RangeMethod::p99_9, Code::e4m3),
            histogram.percentile(0.999) / 448.0f);
  EXPECT_EQ(scale_of(histogram, RangeMethod::p99_99, Code::e4m3),
            histogram.percentile(0.9999) / 448.0f);
  // Of all candidates the one of the least error, by the values themselves.
  const double chosen = squared_error(values, scale_of(histogram, RangeMethod::mse, Code::e4m3));
  for (int step = 0; step <= 64; ++step) {
    const float scale = 1000.0f * std::exp2(static_cast<float>(-step) / 8.0f) / 448.0f;
    EXPECT_LE(chosen, 1.01 * squared_error(values, scale)) << step;
  }
  EXPECT_EQ(scale_of(histogram_of(std::vector<float>(9, 0.0f)), RangeMethod::max, Code::e4m3), 1);
  EXPECT_EQ(scale_of({}, RangeMethod::mse, Code::e4m3), 1);
  for (const RangeMethod method :
       {RangeMethod::max, RangeMethod::p99_9, RangeMethod::p99_99, RangeMethod::mse}) {
    EXPECT_EQ(parse_range_method(to_string(method), "it"), method);
  }
  EXPECT_THROW(parse_range_method("p99", "it"), Error);
}

}  // namespace
}  // namespace octet::offline
