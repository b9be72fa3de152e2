// The online softmax of one attention row, as attention_rule.h prescribes: what the exact kernels
// for GQA and MLA share.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/cpu/kernels/exact_loops.h"
#include "backends/cpu/kernels/exact_quantize.h"
#include "backends/cpu/kernels/kernel.h"
#include "numerics/attention_rule.h"
#include "numerics/exact_math.h"
#include "numerics/half.h"
#include "ops/op_types.h"

namespace octet::cpu {

// The estimate of both exact attention rows: 0.1 us a row, head and dimension, whatever the
// context.
inline double estimate_exact_attention(const ops::OpDesc& desc, const CpuCaps& caps) {
  return static_cast<double>(desc.m) * static_cast<double>(desc.n) * static_cast<double>(desc.k) *
             1e-1 / caps.threads +
         10.0;
}

// How P is rounded before it meets V.
enum class RoundP { none, bf16, e4m3 };

inline RoundP round_of(const ops::AttentionSpec& spec, DType activation, DType cache) {
  if (spec.fp8) return RoundP::e4m3;
  return activation == DType::bf16 && cache != DType::f32 ? RoundP::bf16 : RoundP::none;
}

// out[t] = P of step 5, with E4M3's factor 256 still in it. `ratio` is v_scale / S, or null for 1.
inline void round_p(RoundP mode, const float* p, const float* ratio, int64_t n, float* out) {
  for (int64_t t = 0; t < n; ++t) {
    const float value = ratio ? p[t] * ratio[t] : p[t];
    out[t] = mode == RoundP::none   ? value
             : mode == RoundP::bf16 ? to_float(to_bf16(value))
                                    : attention_rule::round_p_e4m3(value);
  }
}

// Quantizes a query in place, to the values of its codes; returns its scale.
inline float quantize_query(float* q, int64_t n) {
  const float scale = choose_scale(row_absmax(q, n), attention_rule::kQueryFormat);
  const float inv = inverse_scale(scale);
  for (int64_t i = 0; i < n; ++i) {
    q[i] = fp8_decode<Code::e4m3>(quantize_value<Code::e4m3>(q[i], inv));
  }
  return scale;
}

// M, l and O of a row, of the split in progress and of the splits before.
class RowSoftmax {
 public:
  explicit RowSoftmax(int64_t dim)
      : total_(static_cast<size_t>(dim)), split_(static_cast<size_t>(dim)) {}

  // Back to "has seen nothing".
  void reset() {
    total_max_ = split_max_ = attention_rule::kNoMax;
    total_sum_ = split_sum_ = 0.0f;
    touched_total_ = touched_split_ = false;
  }

  // Steps 2 to 4 for the scores of the visible positions of a tile: x becomes p.
  void add_scores(float* x, int64_t n) {
    float most = x[0];
    for (int64_t t = 1; t < n; ++t) most = x[t] > most ? x[t] : most;
    most = std::ceil(most);
    const float next = split_max_ < most ? most : split_max_;
    factor_ = attention_rule::pow2_factor(split_max_, next);
    split_max_ = next;
    for (int64_t t = 0; t < n; ++t) x[t] = attention_rule::exp2(x[t] - next);
    split_sum_ = split_sum_ * factor_ + tree_sum64(x, n);
    if (!touched_split_) std::fill(split_.begin(), split_.end(), 0.0f);
    touched_split_ = true;
  }

  // Step 6 for outputs [first, first + n): `values` is the tile's sum of P v.
  void add_values(const float* values, int64_t first, int64_t n, float scale) {
    float* const o = split_.data() + first;
    for (int64_t d = 0; d < n; ++d) o[d] = o[d] * factor_ + values[d] * scale;
  }

  void end_split() {
    if (!touched_split_) return;
    if (!touched_total_) {
      total_max_ = split_max_;
      total_sum_ = split_sum_;
      total_ = split_;
    } else {
      const auto f = attention_rule::merge_factors(total_max_, split_max_);
      total_max_ = f.max;
      total_sum_ = total_sum_ * f.total + split_sum_ * f.split;
      for (size_t d = 0; d < total_.size(); ++d)
        total_[d] = total_[d] * f.total + split_[d] * f.split;
    }
    touched_total_ = true;
    touched_split_ = false;
    split_max_ = attention_rule::kNoMax;
    split_sum_ = 0.0f;
  }

  // The row's output, in place of its sums; and its log-sum-exp.
  const std::vector<float>& normalized() {
    if (!touched_total_ || total_sum_ == 0.0f) {
      std::fill(total_.begin(), total_.end(), 0.0f);
    } else {
      for (float& o : total_) o /= total_sum_;
    }
    return total_;
  }
  float log_sum_exp() const {
    if (!touched_total_) return -INFINITY;
    return total_max_ * 0x1.62e43p-1f + exact::log(total_sum_);
  }

 private:
  float total_max_ = attention_rule::kNoMax, split_max_ = attention_rule::kNoMax;
  float total_sum_ = 0.0f, split_sum_ = 0.0f, factor_ = 0.0f;
  bool touched_total_ = false, touched_split_ = false;
  std::vector<float> total_, split_;
};

}  // namespace octet::cpu
