// What the ops compute, as plain loops in float64 over dequantized values. Independent of every
// kernel: no blocks, no tiles, no online softmax, and functions of the C library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "numerics/quantize.h"
#include "ops/op_types.h"

namespace octet::conformance::oracle {

using Doubles = std::vector<double>;

// A result and, for its budget, the sum of the magnitudes that were added up.
struct Sums {
  Doubles value, magnitude;
};

// y[i, j] = sum_k x[i, k] w[j, k] (+ bias[j]).
inline Sums linear(const Doubles& x, const Doubles& w, const Doubles& bias, int64_t m, int64_t n,
                   int64_t k) {
  Sums y{Doubles(static_cast<size_t>(m * n)), Doubles(static_cast<size_t>(m * n))};
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = bias.empty() ? 0.0 : bias[static_cast<size_t>(j)];
      double magnitude = std::abs(sum);
      for (int64_t c = 0; c < k; ++c) {
        const double product =
            x[static_cast<size_t>(i * k + c)] * w[static_cast<size_t>(j * k + c)];
        sum += product;
        magnitude += std::abs(product);
      }
      y.value[static_cast<size_t>(i * n + j)] = sum;
      y.magnitude[static_cast<size_t>(i * n + j)] = magnitude;
    }
  }
  return y;
}

inline double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}
inline double silu(double x) {
  return x * sigmoid(x);
}

// One attention row over the positions [begin, n) that it sees.
struct RowResult {
  Doubles value;      // sum p v / sum p
  Doubles magnitude;  // sum p |v| / sum p
  Doubles spread;     // sqrt(sum p^2 v^2) / sum p: how independent relative errors of p add up
  Doubles floor;      // sqrt(sum v^2) / sum p: how independent absolute errors of p add up
  double lse;
};

// v is [n, dim]. `round(p, t, d)` is what meets v[t, d]; p is relative to a power of two that is
// not below the largest, so p <= 1.
template <typename Round>
RowResult attention_row(const Doubles& scores, int64_t begin, const Doubles& v, int64_t dim,
                        Round round) {
  const auto n = static_cast<int64_t>(scores.size());
  double most = -std::numeric_limits<double>::infinity();
  for (int64_t t = begin; t < n; ++t) most = std::max(most, scores[static_cast<size_t>(t)]);
  const double base = std::ceil(most / std::log(2.0)) * std::log(2.0);
  const Doubles zeros(static_cast<size_t>(dim));
  RowResult row{zeros, zeros, zeros, zeros, 0.0};
  double sum = 0.0;
  for (int64_t t = begin; t < n; ++t) {
    const double p = std::exp(scores[static_cast<size_t>(t)] - base);
    sum += p;
    for (int64_t d = 0; d < dim; ++d) {
      const double value = v[static_cast<size_t>(t * dim + d)];
      const auto i = static_cast<size_t>(d);
      row.value[i] += round(p, t, d) * value;
      row.magnitude[i] += p * std::abs(value);
      row.spread[i] += p * p * value * value;
      row.floor[i] += value * value;
    }
  }
  for (size_t d = 0; d < row.value.size(); ++d) {
    row.value[d] /= sum;
    row.magnitude[d] /= sum;
    row.spread[d] = std::sqrt(row.spread[d]) / sum;
    row.floor[d] = std::sqrt(row.floor[d]) / sum;
  }
  row.lse = base + std::log(sum);
  return row;
}

inline double e4m3(double x) {
  return double{fp8_decode<Code::e4m3>(fp8_encode<Code::e4m3>(static_cast<float>(x)))};
}

// The router of a mixture: chosen experts in order, and their weights.
struct Routed {
  std::vector<int32_t> experts;
  Doubles weights;
};
inline Routed route(const Doubles& logits, const Doubles& bias, const ops::RouterSpec& spec) {
  using Method = ops::RouterSpec::Method;
  const auto experts = static_cast<size_t>(spec.experts);
  Doubles score(experts), choice(experts);
  double sum = 0.0;
  for (size_t e = 0; e < experts; ++e) {
    const bool sigmoids = spec.scoring == ops::RouterSpec::Scoring::sigmoid;
    score[e] = sigmoids ? sigmoid(logits[e]) : std::exp(logits[e]);
    sum += score[e];
  }
  for (size_t e = 0; e < experts; ++e) {
    if (spec.scoring == ops::RouterSpec::Scoring::softmax) score[e] /= sum;
    choice[e] = score[e] + (spec.method == Method::noaux_tc && !bias.empty() ? bias[e] : 0.0);
  }
  const auto best_of = [](const Doubles& values, int count) {
    std::vector<int32_t> order(values.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
    });
    order.resize(static_cast<size_t>(count));
    return order;
  };
  if (spec.method != Method::greedy) {
    const size_t groups = static_cast<size_t>(spec.groups), size = experts / groups;
    Doubles group(groups);
    for (size_t g = 0; g < groups; ++g) {
      Doubles members(choice.begin() + static_cast<std::ptrdiff_t>(g * size),
                      choice.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
      std::sort(members.rbegin(), members.rend());
      group[g] = spec.method == Method::noaux_tc && size > 1 ? members[0] + members[1] : members[0];
    }
    const std::vector<int32_t> kept = best_of(group, spec.top_groups);
    for (size_t g = 0; g < groups; ++g) {
      if (std::find(kept.begin(), kept.end(), static_cast<int32_t>(g)) != kept.end()) continue;
      for (size_t e = g * size; e < (g + 1) * size; ++e) {
        choice[e] = -std::numeric_limits<double>::infinity();
      }
    }
  }
  Routed routed{best_of(choice, spec.top_k), {}};
  double total = 0.0;
  for (const int32_t e : routed.experts) total += score[static_cast<size_t>(e)];
  for (const int32_t e : routed.experts) {
    const double weight = score[static_cast<size_t>(e)];
    routed.weights.push_back((spec.normalize ? weight / (total + 1e-20) : weight) * spec.scaling);
  }
  return routed;
}

}  // namespace octet::conformance::oracle
