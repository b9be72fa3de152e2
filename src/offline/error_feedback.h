// Error-compensated rounding: what rounding one column of a weight does to the output is made good
// in the columns that are rounded after it, as far as inputs vary together.
//
// GPTQ (Frantar et al., 2022) in the form that QuIP calls LDLQ (Chee et al., 2023, theorem 6),
// which needs no inverse. A row w of a weight, rounded to q, errs in its output by e = q - w:
//
//   E |e x|² = e H eᵀ,  H = E x xᵀ = U D Uᵀ   (U unit upper triangular, D diagonal)
//            = sum over k of D_k (e_k + sum over j < k of e_j U_jk)²
//
// So column k is rounded after those before it, to make its own term least:
//
//   q_k = round(w_k - sum over j < k of e_j U_jk)
//
//            columns, the largest moment first
//   | rounded: e is known | k | not yet |
//   |------- e · U ------>|
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "numerics/quantize.h"
#include "offline/input_moments.h"

namespace octet::offline {

// U, with rows and columns in the order in which columns are rounded.
struct FeedbackFactor {
  std::vector<int32_t> order;    // [width]: the column that is rounded k-th
  std::vector<double> upper;     // [width, width]; zeros below the diagonal
  std::vector<double> diagonal;  // D [width]
};

// Factors H + damping · mean(diagonal of H) · I, with ten times the damping, and again, where
// rounding has left H so far from positive definite that this is not. Time in the cube of the
// width. Moments of nothing but zeros give U = I: plain rounding.
FeedbackFactor factor(const Moments& moments, double damping, ThreadPool& threads);

struct CompensatedWeight {
  std::vector<uint8_t> codes;  // [rows, cols]
  std::vector<float> scales;   // as they were given
  QuantStats stats;
  // e H eᵀ over w H wᵀ, in mean over (some of) the rows: with this rounding, and with the nearest.
  double error = 0, error_nearest = 0;
};

// w [rows, cols] in `format` with these scales, one a cell; a target beyond a cell's range
// saturates. NaN and infinities of w are encoded as quantize_value does, and fed back to nobody.
CompensatedWeight quantize_compensated(std::span<const float> w, int64_t rows, int64_t cols,
                                       const QuantFormat& format, std::vector<float> scales,
                                       const FeedbackFactor& factor, ThreadPool& threads);

}  // namespace octet::offline
