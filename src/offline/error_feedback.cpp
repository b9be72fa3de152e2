#include "offline/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "offline/combine.h"

namespace octet::offline {
namespace {

constexpr int64_t kBlock = 64;  // columns that are factored, or rounded, before the others see it
constexpr int64_t kMeasuredRows = 64;  // of a weight, for the error that is reported

// The lower Cholesky factor of a [n, n], in place; what lies above the diagonal is left as it was.
//
//         done | block
//   done  L    |
//   block L    | L_bb        first this
//   rest  L    | L_rb | a    then this, then a -= L_rb L_rbᵀ
void cholesky(std::vector<double>& a, int64_t n, ThreadPool& threads) {
  std::vector<double> transposed(static_cast<size_t>(kBlock * n));
  const auto row = [&](int64_t i) { return a.data() + i * n; };
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n), width = end - begin;
    const auto solve = [&](int64_t i) {
      for (int64_t k = begin; k < std::min(i + 1, end); ++k) {
        double sum = row(i)[k];
        for (int64_t p = begin; p < k; ++p) sum -= row(i)[p] * row(k)[p];
        row(i)[k] = i == k ? std::sqrt(sum) : sum / row(k)[k];
      }
    };
    for (int64_t i = begin; i < end; ++i) solve(i);
    threads.parallel_for(n - end, 8, [&](int64_t from, int64_t to, int) {
      for (int64_t i = end + from; i < end + to; ++i) {
        solve(i);
        for (int64_t k = 0; k < width; ++k) transposed[k * n + i] = row(i)[begin + k];
      }
    });
    const int64_t rest = n - end;
    threads.parallel_for((rest + 1) / 2, 1, [&](int64_t from, int64_t to, int) {
      double minus[kBlock];
      const auto update = [&](int64_t i) {
        for (int64_t k = 0; k < width; ++k) minus[k] = -row(i)[begin + k];
        add_combination(minus, transposed.data() + end, n, width, i - end + 1, row(i) + end);
      };
      for (int64_t i = from; i < to; ++i) {
        update(end + i);
        if (rest - 1 - i != i) update(end + rest - 1 - i);
      }
    });
  }
}

std::vector<int32_t> largest_first(const Moments& moments) {
  std::vector<int32_t> order(static_cast<size_t>(moments.width));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int32_t i) { return moments.at(i, i); });
  return order;
}

// The scale of each element of a row.
class RowScales {
 public:
  RowScales(const ScaleGrid& grid, int64_t rows, int64_t cols, std::span<const float> scales)
      : cell_rows_(grid.rows == 0 ? rows : grid.rows),
        cell_cols_(grid.cols == 0 ? cols : grid.cols),
        per_row_((cols + cell_cols_ - 1) / cell_cols_),
        scales_(scales) {}
  float at(int64_t row, int64_t col) const {
    return scales_[static_cast<size_t>(row / cell_rows_ * per_row_ + col / cell_cols_)];
  }

 private:
  int64_t cell_rows_, cell_cols_, per_row_;
  std::span<const float> scales_;
};

// One row at a time; a thread has one.
class RowRounder {
 public:
  RowRounder(const FeedbackFactor& factor, const QuantFormat& format, const RowScales& scales)
      : factor_(factor),
        format_(format),
        scales_(scales),
        width_(static_cast<int64_t>(factor.order.size())),
        error_(factor.order.size()),
        target_(factor.order.size()) {}

  // Rounds w [width] into codes; both in the matrix's own order of columns.
  void round(const float* w, int64_t row, uint8_t* codes, QuantStats& stats) {
    for (int64_t k = 0; k < width_; ++k) target_[k] = double{w[factor_.order[k]]};
    for (int64_t begin = 0; begin < width_; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, width_);
      for (int64_t k = begin; k < end; ++k) {
        const int32_t column = factor_.order[k];
        round_one(w[column], row, k, codes[column], stats);
        subtract(k, 1, k + 1, end);
      }
      subtract(begin, end - begin, end, width_);
    }
  }

  // e H eᵀ of codes that were rounded somehow.
  double loss(const float* w, int64_t row, const uint8_t* codes) {
    const std::array<float, 256>& values = code_values_of(format_.code);
    std::vector<double> carried(static_cast<size_t>(width_));
    for (int64_t k = 0; k < width_; ++k) {
      const int32_t column = factor_.order[k];
      const double back = double{values[codes[column]] * scales_.at(row, column)};
      error_[k] = std::isfinite(back) ? back - double{w[column]} : 0.0;
    }
    return quadratic(carried);
  }
  // w H wᵀ.
  double signal(const float* w) {
    std::vector<double> carried(static_cast<size_t>(width_));
    for (int64_t k = 0; k < width_; ++k) error_[k] = double{w[factor_.order[k]]};
    return quadratic(carried);
  }

 private:
  void round_one(float original, int64_t row, int64_t k, uint8_t& code, QuantStats& stats) {
    const int32_t column = factor_.order[k];
    const float scale = scales_.at(row, column), inv = inverse_scale(scale);
    const bool finite = std::isfinite(original);
    const float wanted = finite ? static_cast<float>(target_[k]) : original;
    code = quantize_value(format_.code, wanted, inv);
    stats.nan += std::isnan(original);
    stats.inf += std::isinf(original);
    stats.saturated += finite && is_saturated(format_.code, wanted * inv);
    stats.flushed += original != 0.0f && (code & 0x7Fu) == 0;
    const float back = code_values_of(format_.code)[code] * scale;
    error_[k] = finite ? double{back} - double{original} : 0.0;
  }

  // target[from, to) -= error[first, first + count) · U
  void subtract(int64_t first, int64_t count, int64_t from, int64_t to) {
    if (from >= to) return;
    double minus[kBlock];
    for (int64_t i = 0; i < count; ++i) minus[i] = -error_[first + i];
    add_combination(minus, factor_.upper.data() + first * width_ + from, width_, count, to - from,
                    target_.data() + from);
  }

  // sum over k of D_k ((error U)_k)².
  double quadratic(std::vector<double>& carried) {
    add_combination(error_.data(), factor_.upper.data(), width_, width_, width_, carried.data());
    double sum = 0.0;
    for (int64_t k = 0; k < width_; ++k) sum += factor_.diagonal[k] * carried[k] * carried[k];
    return sum;
  }

  const FeedbackFactor& factor_;
  const QuantFormat& format_;
  const RowScales& scales_;
  int64_t width_;
  std::vector<double> error_, target_;
};

}  // namespace

FeedbackFactor factor(const Moments& moments, double damping, ThreadPool& threads) {
  const int64_t n = moments.width;
  FeedbackFactor result;
  result.order = largest_first(moments);
  double mean = 0.0;
  for (int64_t i = 0; i < n; ++i) mean += moments.at(i, i) / static_cast<double>(n);
  double ridge = mean > 0.0 ? damping * mean : 1.0;

  // With rows and columns reversed, U D Uᵀ is L D Lᵀ, which is what Cholesky finds.
  std::vector<double> lower(static_cast<size_t>(n * n));
  const auto column = [&](int64_t i) {
    return int64_t{result.order[static_cast<size_t>(n - 1 - i)]};
  };
  // Sums in FP32 leave a matrix of low rank a little less than semi-definite: more damping then.
  const auto positive = [&] {
    for (int64_t i = 0; i < n; ++i) {
      if (!(lower[i * n + i] > 0.0)) return false;
    }
    return true;
  };
  do {
    threads.parallel_for(n, 1, [&](int64_t from, int64_t to, int) {
      for (int64_t i = from; i < to; ++i) {
        for (int64_t j = 0; j <= i; ++j) lower[i * n + j] = moments.at(column(i), column(j));
        lower[i * n + i] += ridge;
      }
    });
    cholesky(lower, n, threads);
    ridge *= 10.0;
  } while (!positive());
  result.upper.resize(lower.size());
  result.diagonal.resize(static_cast<size_t>(n));
  for (int64_t k = 0; k < n; ++k) {
    const double pivot = lower[(n - 1 - k) * n + (n - 1 - k)];
    result.diagonal[k] = pivot * pivot;
    for (int64_t j = 0; j <= k; ++j) {
      result.upper[j * n + k] = lower[(n - 1 - j) * n + (n - 1 - k)] / pivot;
    }
  }
  return result;
}

CompensatedWeight quantize_compensated(std::span<const float> w, int64_t rows, int64_t cols,
                                       const QuantFormat& format, std::vector<float> given,
                                       const FeedbackFactor& factor, ThreadPool& threads) {
  invariant(static_cast<int64_t>(factor.order.size()) == cols,
            "a factor is of the inputs of its weight");
  CompensatedWeight result;
  std::vector<uint8_t> nearest(w.size());
  result.codes.resize(w.size());
  result.scales = std::move(given);
  result.stats.zero_cells =
      quantize_with_scales(w, rows, cols, format, result.scales, nearest).zero_cells;
  result.stats.elements = rows * cols;

  const RowScales scales(format.grid, rows, cols, result.scales);
  std::vector<QuantStats> stats(static_cast<size_t>(threads.size()));
  std::vector<double> loss(w.empty() ? 0 : static_cast<size_t>(3 * rows));
  const int64_t step = std::max<int64_t>(1, rows / kMeasuredRows);
  threads.parallel_for(rows, 1, [&](int64_t from, int64_t to, int thread) {
    RowRounder rounder(factor, format, scales);
    for (int64_t row = from; row < to; ++row) {
      const float* const values = w.data() + row * cols;
      uint8_t* const codes = result.codes.data() + row * cols;
      rounder.round(values, row, codes, stats[static_cast<size_t>(thread)]);
      if (row % step != 0) continue;
      loss[3 * row] = rounder.loss(values, row, codes);
      loss[3 * row + 1] = rounder.loss(values, row, nearest.data() + row * cols);
      loss[3 * row + 2] = rounder.signal(values);
    }
  });
  for (const QuantStats& part : stats) result.stats += part;
  double sums[3] = {};
  for (size_t i = 0; i < loss.size(); ++i) sums[i % 3] += loss[i];
  if (sums[2] > 0) {
    result.error = sums[0] / sums[2];
    result.error_nearest = sums[1] / sums[2];
  }
  return result;
}

}  // namespace octet::offline
