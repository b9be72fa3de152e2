// A row of logits as a distribution over the vocabulary, in float64: log-probabilities, the most
// likely tokens, and how far it is from another.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "tensor/tensor.h"

namespace octet::engine {

// Row `row` of logits f32 [rows, vocab].
std::span<const float> row_of(const Tensor& logits, int64_t row);

// Throws Error, naming --baseline, unless the tokens of both mean the same, as far as their
// configurations tell.
void require_same_vocabulary(const model::ModelConfig& model, const model::ModelConfig& baseline);

// Throws Error unless all are finite: `who` ("model") gave them after token `position` of `piece`
// ("piece 0 of the text"). Nothing that is computed from a NaN means anything.
void require_finite(std::span<const float> logits, std::string_view who, std::string_view piece,
                    int64_t position);

// log(sum(exp(row))) and argmax (ties to the lowest id) of a row of logits.
struct RowSummary {
  double log_sum_exp = 0;
  int32_t best = 0;
};

// A row of finite logits as log-probabilities, in a buffer that is used again for the next row.
class Distribution {
 public:
  // The logits must stay until the next read. exp() once a value: probabilities follow by a
  // division.
  RowSummary read(std::span<const float> logits);

  double log_probability(size_t token) const {
    return static_cast<double>(logits_[token]) - log_sum_exp_;
  }

  // KL(this || other) over the whole vocabulary, in nats.
  double divergence(const Distribution& other) const;

  // The `count` most likely tokens, the best first, ties to the lowest id.
  std::vector<int32_t> best(size_t count) const;

 private:
  std::span<const float> logits_;
  std::vector<double> weights_;
  double highest_ = 0, total_ = 0, log_sum_exp_ = 0;
};

}  // namespace octet::engine
