// How much an answer repeats itself: what a model that was quantized too far does first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace octet::eval {

// The share of different ones among all n-grams of the tokens (Li et al., 2016): 1 where none comes
// twice, 0 where there are none.
double distinct_n(std::span<const int32_t> tokens, int64_t n);

// The same over all answers together: how much they differ from one another, too.
double distinct_n(std::span<const std::vector<int32_t>> answers, int64_t n);

// Whether the answer ends in a loop: one sequence of 1 to 64 tokens, again and again to the end, at
// least four times in a row and over at least 16 tokens.
bool ends_in_loop(std::span<const int32_t> tokens);

struct Repetition {
  double distinct2 = 0, distinct4 = 0;  // mean over the answers
  double loop_rate = 0;                 // share of the answers
};
Repetition repetition(std::span<const std::vector<int32_t>> answers);

}  // namespace octet::eval
