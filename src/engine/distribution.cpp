#include "engine/distribution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/not_finite.h"

namespace octet::engine {

std::span<const float> row_of(const Tensor& logits, int64_t row) {
  const auto columns = static_cast<size_t>(logits.cols());
  return {logits.as<float>() + static_cast<size_t>(row) * columns, columns};
}

void require_same_vocabulary(const model::ModelConfig& model, const model::ModelConfig& baseline) {
  if (baseline.vocab == model.vocab) return;
  throw Error({.what = "the two models do not share a vocabulary, so their distributions cannot be "
                       "compared",
               .where = "--baseline",
               .value = fmt::format("{} tokens", baseline.vocab),
               .accepted = fmt::format("{} tokens, as the model has", model.vocab)});
}

void require_finite(std::span<const float> logits, std::string_view who, std::string_view piece,
                    int64_t position) {
  const auto broken = std::ranges::find_if(logits, [](float x) { return !std::isfinite(x); });
  if (broken == logits.end()) return;
  throw not_finite(
      fmt::format("the {} computes {}", who, std::isnan(*broken) ? "NaN" : "an infinity"),
      fmt::format("token {} of {}", position, piece),
      fmt::format("logit {} is {}", broken - logits.begin(), *broken));
}

RowSummary Distribution::read(std::span<const float> logits) {
  logits_ = logits;
  weights_.resize(logits.size());
  const auto best = std::ranges::max_element(logits);
  highest_ = *best;
  total_ = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = std::exp(static_cast<double>(logits[i]) - highest_);
    total_ += weights_[i];
  }
  log_sum_exp_ = highest_ + std::log(total_);
  return {log_sum_exp_, static_cast<int32_t>(best - logits.begin())};
}

double Distribution::divergence(const Distribution& other) const {
  double sum = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    sum += weights_[i] * (static_cast<double>(logits_[i]) - static_cast<double>(other.logits_[i]));
  }
  // Rounding can leave a hair below zero where the two are the same. In this order NaN stays NaN.
  return std::max(sum / total_ - log_sum_exp_ + other.log_sum_exp_, 0.0);
}

std::vector<int32_t> Distribution::best(size_t count) const {
  std::vector<int32_t> ids(logits_.size());
  std::iota(ids.begin(), ids.end(), 0);
  count = std::min(count, ids.size());
  const auto end = ids.begin() + static_cast<ptrdiff_t>(count);
  std::partial_sort(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  ids.resize(count);
  return ids;
}

}  // namespace octet::engine
