// What a difference between two models on the same questions is worth.
#pragma once

#include <cstdint>
#include <span>

namespace octet::eval {

struct Interval {
  double low = 0, high = 0;
};

// The interval in which a share lies with 95 %, of which `count` trials gave `share` on average
// (Wilson, 1927). A share of partial scores in [0, 1] is treated as if each were all or nothing,
// which makes it wider than it is. count > 0.
Interval wilson(double share, int64_t count);

struct PairedDifference {
  double mean = 0;    // of candidate - baseline
  Interval interval;  // 95 %, percentiles of a paired bootstrap: questions are drawn, with both
                      // their answers
  int64_t lost = 0, won = 0;  // questions where the candidate scores lower, higher
  double p = 1;               // McNemar's exact test on lost and won
};

// Of two runs over the same questions, in the same order: not empty and
// of one size (else Fault). `seed` draws the bootstrap's 10,000 samples.
PairedDifference paired_difference(std::span<const double> candidate,
                                   std::span<const double> baseline, uint64_t seed = 1);

// The two-sided probability of a split at least as uneven as lost : won, if both were as likely.
double mcnemar(int64_t lost, int64_t won);

}  // namespace octet::eval
