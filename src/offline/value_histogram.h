// How the magnitudes of a tensor's values are distributed, in memory that does not grow with them.
//
// A bucket holds magnitudes that agree in exponent and in the first six bits of the mantissa, so
// its ends differ by at most 1/64 and its middle is within 0.8 % of everything in it:
//
//   |x| = 2^e · 1.mmmmmm...     bucket = (e - kLeastExponent) · 64 + mmmmmm
//
// Magnitudes below 2^kLeastExponent, zero among them, share the first bucket; those of
// 2^kMostExponent and more share the last.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "numerics/code.h"

namespace octet::offline {

class ValueHistogram {
 public:
  static constexpr int kLeastExponent = -32, kMostExponent = 32;

  // All of them finite.
  void add(std::span<const float> values);
  void merge(const ValueHistogram& other);

  int64_t count() const { return count_; }
  float min() const { return min_; }  // 0 where nothing was added, like all that follow
  float max() const { return max_; }
  float absmax() const { return min_ < -max_ ? -min_ : max_; }
  double mean_abs() const { return count_ > 0 ? sum_ / static_cast<double>(count_) : 0.0; }

  // The smallest magnitude that at least `share` (in (0, 1]) of all values do not exceed, as an
  // exact sort finds it, within 1 %; never beyond absmax(), which is exact.
  float percentile(double share) const;

  // The range, of at most absmax(), at which codes of `code` have the least squared error in all:
  // what lies beyond it saturates. Found among absmax() · 2^(-i/8).
  float range_of_least_error(Code code) const;

  // {"count", "min", "max", "sum", "first", "buckets"}: buckets from `first` to the last that is
  // not empty. Both are exact.
  OrderedJson to_json() const;
  static ValueHistogram from_json(const JsonView& json);  // Error for what add() cannot give

  friend bool operator==(const ValueHistogram&, const ValueHistogram&) = default;

 private:
  int64_t count_ = 0;
  float min_ = 0, max_ = 0;
  double sum_ = 0;  // of magnitudes
  std::vector<int64_t> buckets_;
};

// How the range of a calibrated scale is chosen: the largest magnitude, that which 99.9 % or
// 99.99 % of the values do not exceed, or that of the least squared error.
// Or by samples in their order (delayed_scaling.h), which a histogram does not know.
enum class RangeMethod : uint8_t { max, p99_9, p99_99, mse, delayed };
std::string_view to_string(RangeMethod method);  // "max", "p99.9", "p99.99", "mse", "delayed"
RangeMethod parse_range_method(std::string_view text, const std::string& where);  // throws Error

// The scale by which values up to `range` become codes: range / max_of(code), 1 where all are zero.
float scale_of_range(float range, Code code);
// That of this distribution. Any method but delayed.
float scale_of(const ValueHistogram& values, RangeMethod method, Code code);

}  // namespace octet::offline
