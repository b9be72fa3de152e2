#include "eval/paired.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/philox.h"

namespace octet::eval {
namespace {

constexpr int kSamples = 10000;

// log(n choose k).
double log_choose(int64_t n, int64_t k) {
  return std::lgamma(static_cast<double>(n) + 1) - std::lgamma(static_cast<double>(k) + 1) -
         std::lgamma(static_cast<double>(n - k) + 1);
}

}  // namespace

Interval wilson(double share, int64_t count) {
  invariant(count > 0, "a share is of something");
  constexpr double z = 1.959964;
  const auto n = static_cast<double>(count);
  const double middle = (share + z * z / (2 * n)) / (1 + z * z / n);
  const double half =
      z / (1 + z * z / n) * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n));
  return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

double mcnemar(int64_t lost, int64_t won) {
  const int64_t n = lost + won, fewer = std::min(lost, won);
  double tail = 0;
  for (int64_t k = 0; k <= fewer; ++k) {
    tail += std::exp(log_choose(n, k) - static_cast<double>(n) * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

PairedDifference paired_difference(std::span<const double> candidate,
                                   std::span<const double> baseline, uint64_t seed) {
  invariant(!candidate.empty() && candidate.size() == baseline.size(),
            "both runs answer the same questions");
  PairedDifference result;
  std::vector<double> differences;
  for (size_t i = 0; i < candidate.size(); ++i) {
    differences.push_back(candidate[i] - baseline[i]);
    result.mean += differences.back();
    result.lost += candidate[i] < baseline[i] ? 1 : 0;
    result.won += candidate[i] > baseline[i] ? 1 : 0;
  }
  const size_t n = differences.size();
  result.mean /= static_cast<double>(n);
  result.p = mcnemar(result.lost, result.won);
  std::vector<double> means;
  Philox random(seed);
  for (int sample = 0; sample < kSamples; ++sample) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += differences[random.bits() % n];
    means.push_back(sum / static_cast<double>(n));
  }
  std::ranges::sort(means);
  result.interval = {means[kSamples * 25 / 1000], means[kSamples * 975 / 1000 - 1]};
  return result;
}

}  // namespace octet::eval
