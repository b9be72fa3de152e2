#include "offline/value_histogram.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "numerics/quantize.h"

namespace octet::offline {
namespace {

constexpr int kMantissaBits = 6;
constexpr int64_t kBuckets = int64_t{ValueHistogram::kMostExponent - ValueHistogram::kLeastExponent}
                             << kMantissaBits;
// The bits of a float from the sixth of the mantissa on, for 2^kLeastExponent.
constexpr int64_t kFirst = int64_t{127 + ValueHistogram::kLeastExponent} << kMantissaBits;

int64_t bucket_of(uint32_t magnitude) {
  return std::clamp<int64_t>(int64_t{magnitude >> (23 - kMantissaBits)} - kFirst, 0, kBuckets - 1);
}

float low_end(int64_t bucket) {
  return std::bit_cast<float>(static_cast<uint32_t>(bucket + kFirst) << (23 - kMantissaBits));
}

float middle(int64_t bucket) {
  return 0.5f * (low_end(bucket) + low_end(bucket + 1));
}

}  // namespace

void ValueHistogram::add(std::span<const float> values) {
  if (values.empty()) return;
  if (buckets_.empty()) buckets_.resize(static_cast<size_t>(kBuckets));
  if (count_ == 0) min_ = max_ = values.front();
  double sum = 0;
  for (const float x : values) {
    min_ = std::min(min_, x);
    max_ = std::max(max_, x);
    sum += double{std::abs(x)};
    ++buckets_[static_cast<size_t>(bucket_of(finite_magnitude(x)))];
  }
  sum_ += sum;
  count_ += static_cast<int64_t>(values.size());
}

void ValueHistogram::merge(const ValueHistogram& other) {
  if (other.count_ == 0) return;
  if (count_ == 0) {
    *this = other;
    return;
  }
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
  sum_ += other.sum_;
  count_ += other.count_;
  for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
}

float ValueHistogram::percentile(double share) const {
  if (count_ == 0) return 0.0f;
  const auto rank =
      std::clamp<int64_t>(std::llround(std::ceil(share * static_cast<double>(count_))), 1, count_);
  int64_t below = 0;
  for (int64_t i = 0; i < kBuckets; ++i) {
    below += buckets_[static_cast<size_t>(i)];
    if (below < rank) continue;
    // What is in the outer buckets may be anything: zero is the guess for the first.
    if (i == 0) return 0.0f;
    return i == kBuckets - 1 ? absmax() : std::min(middle(i), absmax());
  }
  return absmax();
}

float ValueHistogram::range_of_least_error(Code code) const {
  const float absmax = this->absmax();
  if (!(absmax > 0.0f)) return 0.0f;
  constexpr int kSteps = 8 * 8;  // down to absmax / 256
  float best = absmax;
  double least = INFINITY;
  for (int step = 0; step <= kSteps; ++step) {
    const float range = absmax * std::exp2(static_cast<float>(-step) / 8.0f);
    const float scale = std::max(range / max_of(code), kMinScale), inv = inverse_scale(scale);
    double error = 0;
    for (int64_t i = 1; i < kBuckets && error < least; ++i) {
      const int64_t n = buckets_[static_cast<size_t>(i)];
      if (n == 0) continue;
      const float x = std::min(middle(i), absmax);
      const float back = code_values_of(code)[quantize_value(code, x, inv)] * scale;
      error += static_cast<double>(n) * (double{back} - x) * (double{back} - x);
    }
    if (error >= least) continue;
    least = error;
    best = range;
  }
  return best;
}

OrderedJson ValueHistogram::to_json() const {
  const auto used = [](int64_t n) { return n != 0; };
  const auto first = std::ranges::find_if(buckets_, used);
  auto last = buckets_.end();
  while (last != first && last[-1] == 0) --last;
  return {{"count", count_},
          {"min", min_},
          {"max", max_},
          {"sum", sum_},
          {"first", first - buckets_.begin()},
          {"buckets", std::vector<int64_t>(first, last)}};
}

ValueHistogram ValueHistogram::from_json(const JsonView& json) {
  ValueHistogram result;
  result.count_ = json.integer("count", 0, int64_t{1} << 62);
  if (result.count_ == 0) return result;
  result.min_ = json.get<float>("min");
  result.max_ = json.get<float>("max");
  result.sum_ = json.get<double>("sum");
  const int64_t first = json.integer("first", 0, kBuckets - 1);
  const auto buckets = json.get<std::vector<int64_t>>("buckets");
  if (static_cast<int64_t>(buckets.size()) > kBuckets - first) {
    json.refuse("buckets", "a histogram has more buckets than there are",
                fmt::format("at most {} from 'first' on", kBuckets - first));
  }
  int64_t sum = 0;
  for (const int64_t n : buckets) {
    if (n < 0 || n > result.count_ - sum) {
      json.refuse("buckets", "the buckets of a histogram do not add up to its count",
                  fmt::format("counts from 0 on with the sum {}", result.count_));
    }
    sum += n;
  }
  if (sum != result.count_ || result.min_ > result.max_ || result.sum_ < 0) {
    json.refuse("count", "a histogram contradicts itself",
                "buckets with this sum, min of at most max, and a sum of magnitudes");
  }
  result.buckets_.resize(static_cast<size_t>(kBuckets));
  std::ranges::copy(buckets, result.buckets_.begin() + first);
  return result;
}

namespace {
constexpr std::array<std::string_view, 5> kMethods = {"max", "p99.9", "p99.99", "mse", "delayed"};
}  // namespace

std::string_view to_string(RangeMethod method) {
  return kMethods[static_cast<size_t>(method)];
}

RangeMethod parse_range_method(std::string_view text, const std::string& where) {
  const auto found = std::ranges::find(kMethods, text);
  if (found != kMethods.end()) return static_cast<RangeMethod>(found - kMethods.begin());
  throw Error({.what = "unknown method of choosing a range",
               .where = where,
               .value = std::string(text),
               .accepted = "max, p99.9, p99.99, mse, delayed"});
}

float scale_of_range(float range, Code code) {
  return range > 0.0f ? std::max(range / max_of(code), kMinScale) : 1.0f;
}

float scale_of(const ValueHistogram& values, RangeMethod method, Code code) {
  invariant(method != RangeMethod::delayed, "a histogram does not know the order of samples");
  const float range = method == RangeMethod::max      ? values.absmax()
                      : method == RangeMethod::p99_9  ? values.percentile(0.999)
                      : method == RangeMethod::p99_99 ? values.percentile(0.9999)
                                                      : values.range_of_least_error(code);
  return scale_of_range(range, code);
}

}  // namespace octet::offline
