// Error budgets: how far a result may lie from its reference, and why. Conformance tests print the
// share of the budget that a kernel uses, so that an error that doubles is seen before it fails.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "numerics/quant_format.h"

namespace octet {

// |got - want| may be up to abs + rel * |want|.
struct Budget {
  double abs = 0.0, rel = 0.0;
};

// The part of the budget that an error uses: 1 is the limit. Equal values (infinities included) and
// two NaNs use none; one NaN, or one infinity, uses an infinite share.
inline double share_of_budget(double got, double want, const Budget& budget) {
  if (got == want || (std::isnan(got) && std::isnan(want))) return 0.0;
  const double error = std::abs(got - want);
  if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
  return error / (budget.abs + budget.rel * std::abs(want));
}

// The worst element of two vectors of one length, and where it is (-1 if none uses any share).
struct WorstShare {
  double share = 0.0;
  int64_t index = -1;
};
inline WorstShare worst_share(std::span<const float> got, std::span<const float> want,
                              const Budget& budget) {
  WorstShare worst;
  if (got.size() != want.size()) return {std::numeric_limits<double>::infinity(), 0};
  for (size_t i = 0; i < got.size(); ++i) {
    const double share = share_of_budget(got[i], want[i], budget);
    if (share > worst.share) worst = {share, static_cast<int64_t>(i)};
  }
  return worst;
}

// sqrt(sum (got - want)^2 / sum want^2): the error's energy against the signal's. 0 if both are
// zero; Inf if only the reference is, or if lengths differ.
inline double relative_rms(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double error = 0.0, signal = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = double{got[i]} - double{want[i]};
    error += difference * difference;
    signal += double{want[i]} * double{want[i]};
  }
  if (error == 0.0) return 0.0;
  return signal == 0.0 ? std::numeric_limits<double>::infinity() : std::sqrt(error / signal);
}

// Signal to quantization noise in decibels: 20 log10(1 / relative_rms).
inline double sqnr_db(std::span<const float> got, std::span<const float> want) {
  return -20.0 * std::log10(relative_rms(got, want));
}

namespace budgets {

// One rounding to nearest of a value inside the normal range: half a step over the value.
inline constexpr double kE4m3Rounding = 1.0 / 17.0;  // 3 mantissa bits: 2^-4 / (1 + 2^-4)
inline constexpr double kE5m2Rounding = 1.0 / 9.0;   // 2 mantissa bits: 2^-3 / (1 + 2^-3)
inline constexpr double kBf16Rounding = 0x1p-8;      // 7 mantissa bits
inline constexpr double kFp16Rounding = 0x1p-11;     // 10 mantissa bits
inline constexpr double kF32Rounding = 0x1p-24;      // 23 mantissa bits

// A dequantized value against its original: relative in the normal range, and half a subnormal step
// below it; half a step everywhere for integers. FP32's own roundings (scale, reciprocal, product)
// add less than 2^-20.
constexpr Budget code(Code type, float scale) {
  if (type == Code::i8) return {(0.5 + 0x1p-12) * scale, 0x1p-20};
  return type == Code::e4m3 ? Budget{0x1p-10 * scale, kE4m3Rounding + 0x1p-20}
                            : Budget{0x1p-17 * scale, kE5m2Rounding + 0x1p-20};
}

// The same codes and scales, summed in another order in FP32: `fast` or CUDA against `exact`.
// Each of K additions rounds by at most 2^-24 of a partial sum, and partial sums are bounded by
// sum |a b|; errors of random sign grow with sqrt(K), and 4 of their standard deviations are given.
// `magnitude` is sum |a b| of that output.
inline Budget reordered_sum(int64_t k, double magnitude) {
  return {kF32Rounding * 4.0 * std::sqrt(static_cast<double>(std::max<int64_t>(k, 1))) * magnitude,
          4.0 * kF32Rounding};
}

// FP8 tensor cores of Hopper add products in less than FP32: in each step of 32 of k, terms and the
// sum so far are cut at 2^-13 of the largest of them, towards zero, and sums move to FP32 every 128
// of k. Measured, positive operands: 2^-10.7 of the sum, whatever k. Twice that and more is given,
// for small k. Where sums stay in those registers for all of k, the error grows to 2^-3.
inline Budget fp8_tensor_core_sum(int64_t k, double magnitude) {
  const Budget fp32 = reordered_sum(k, magnitude);
  return {fp32.abs + 0x1p-9 * magnitude, fp32.rel};
}

// Relative RMS error of y = W x against unquantized operands, on Gaussian data. E4M3 alone is
// 31.6 dB (2.6 %); two independent errors add in energy, 28.5 dB (3.8 %); E5M2 has half the
// mantissa steps, 6 dB less each. A tenth is added for shapes with few samples.
inline constexpr double kGemmE4m3Both = 1.1 * 0.0376;
inline constexpr double kGemmE4m3Weights = 1.1 * 0.0263;
inline constexpr double kGemmE5m2Both = 1.1 * 0.0743;

// Relative RMS error of attention with Q, K, V and P in E4M3 against FP32, for scores ~ N(0, 1)
// over many keys: V and P give 2.6 % each, and the scores' error, sqrt(2) * 2.6 % of their spread
// of 1, is a relative error of P of 3.7 %. In energy 5.2 %. Wider scores cost more in proportion.
inline constexpr double kAttentionE4m3 = 1.1 * 0.052;

}  // namespace budgets
}  // namespace octet
