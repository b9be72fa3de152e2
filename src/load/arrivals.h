// When the requests of an open-loop load arrive. Pure functions of a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/philox.h"

namespace octet::load {

enum class RampUp { none, linear, exponential };

struct ArrivalOptions {
  static constexpr double kInfinite = std::numeric_limits<double>::infinity();

  double rate = kInfinite;  // requests a second; infinite: all at once
  // Shape of the gamma distribution of the gaps, whose mean is 1 / rate whatever the shape: 1 is a
  // Poisson process, less is burstier, more is more even, infinite is a fixed gap.
  double burstiness = 1;
  RampUp ramp_up = RampUp::none;
  double start_rate = 0, end_rate = 0;  // of a ramp, over the number of requests
  uint64_t seed = 0;
};

// The rate in force at request `index` of `count`: between start_rate and end_rate by the share
// index / (count - 1), linear, or start * (end / start)^share.
double rate_at(const ArrivalOptions& options, size_t index, size_t count);

// The time of each request's arrival, ascending, in seconds; the first comes after one gap. Without
// a ramp all gaps are stretched by one factor so that the last comes at count / rate exactly, as
// vLLM's load test does: else the offered rate itself would differ from seed to seed by some
// 1 / sqrt(count).
std::vector<double> arrival_times(const ArrivalOptions& options, size_t count);

// A draw of the gamma distribution of mean `shape` and variance `shape` (scale 1), shape > 0.
// Marsaglia and Tsang, "A simple method for generating gamma variables" (2000).
double draw_gamma(Philox& random, double shape);
// Uniform in (0, 1), of 52 bits.
double draw_uniform(Philox& random);
// Normal of mean 0 and variance 1 (Box and Muller).
double draw_normal(Philox& random);

}  // namespace octet::load
