#include "load/arrivals.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace octet::load {

double draw_uniform(Philox& random) {
  const uint64_t high = random.bits(), low = random.bits();
  return (static_cast<double>((high << 32 | low) >> 12) + 0.5) * 0x1p-52;
}

double draw_normal(Philox& random) {
  const double radius = std::sqrt(-2 * std::log(draw_uniform(random)));
  return radius * std::cos(2 * std::numbers::pi * draw_uniform(random));
}

double draw_gamma(Philox& random, double shape) {
  if (shape < 1) {  // G(a) = G(a + 1) * U^(1 / a)
    const double above = draw_gamma(random, shape + 1);
    return above * std::pow(draw_uniform(random), 1 / shape);
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = draw_normal(random);
    const double cube = std::pow(1 + c * x, 3);
    if (cube <= 0) continue;
    const double u = draw_uniform(random);
    if (std::log(u) < x * x / 2 + d - d * cube + d * std::log(cube)) return d * cube;
  }
}

double rate_at(const ArrivalOptions& o, size_t index, size_t count) {
  if (o.ramp_up == RampUp::none) return o.rate;
  const double share =
      static_cast<double>(index) / static_cast<double>(std::max<size_t>(count - 1, 1));
  if (o.ramp_up == RampUp::linear) return o.start_rate + (o.end_rate - o.start_rate) * share;
  return o.start_rate * std::pow(o.end_rate / o.start_rate, share);
}

std::vector<double> arrival_times(const ArrivalOptions& o, size_t count) {
  Philox random(o.seed, 1);
  std::vector<double> times;
  times.reserve(count);
  double now = 0;
  for (size_t i = 0; i < count; ++i) {
    const double rate = rate_at(o, i, count);
    if (!std::isinf(rate)) {
      const double gaps =
          std::isinf(o.burstiness) ? 1 : draw_gamma(random, o.burstiness) / o.burstiness;
      now += gaps / rate;
    }
    times.push_back(now);
  }
  if (o.ramp_up == RampUp::none && now > 0) {
    const double stretch = static_cast<double>(count) / o.rate / now;
    for (double& time : times) time *= stretch;
  }
  return times;
}

}  // namespace octet::load
