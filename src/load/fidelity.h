// How alike two servers' answers to one prompt are, by the log-probabilities that they report. Pure
// functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace octet::load {

// One token of an answer, by its text, and the best tokens at its place.
struct Place {
  std::string token;
  double logprob = 0;
  std::vector<std::pair<std::string, double>> top;
};

// `logprobs` of the first choice of a whole (not streamed) answer of /v1/completions. Empty if
// there are none.
std::vector<Place> places_of(const Json& answer);

// KL(left || right), in nats, of what can be known of the two distributions at one place: each
// token that both report is an outcome, and all other tokens together are one more. Merging
// outcomes can only lower a divergence, so the true one is at least as large. `covered_*` is the
// probability of the tokens that both report. Rounded reports may leave less than nothing for the
// others: then they have 1e-9.
struct TruncatedKl {
  double kl = 0;
  double covered_left = 0, covered_right = 0;
};
TruncatedKl truncated_kl(const Place& left, const Place& right);

// The sums over prompts. Two greedy answers have the same context up to and including the first
// token in which they differ: those places are compared, and none behind.
struct Fidelity {
  int64_t answers = 0, same_answers = 0;  // all tokens equal, and as many
  int64_t places = 0, same_tokens = 0;
  std::vector<double> kl;          // of each place
  std::vector<double> difference;  // |log-probability of left's token in left - in right|, where
                                   // right reports it
  double covered = 0;              // mean of covered_left

  struct Split {
    size_t answer = 0, place = 0;
    std::string left, right;
  };
  std::vector<Split> splits;  // where answers part
};
void compare_answers(const std::vector<Place>& left, const std::vector<Place>& right,
                     Fidelity& fidelity);

}  // namespace octet::load
