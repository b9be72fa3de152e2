// Does the error grow with the context? A comparison by the position of the tokens in their pieces.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "eval/evaluate.h"
#include "eval/paired.h"

namespace octet::eval {

// The scored tokens at positions [first, last) of their pieces.
struct PositionBucket {
  int64_t first = 0, last = 0;
  Perplexity baseline, candidate;
  double kl_mean = 0, top1_agreement = 0;
};

// Buckets [1, 64), [64, 128), [128, 256), ... as far as there are tokens; empty ones are left out.
// `comparison` is of these pieces.
std::vector<PositionBucket> by_position(const Comparison& comparison,
                                        std::span<const Piece> pieces);

// The relative increase of perplexity, with the 95 % percentiles of a paired bootstrap over the
// pieces; none for fewer than five pieces. Each piece counts alike, so a short last one counts for
// more than its tokens.
std::optional<Interval> perplexity_interval(const Comparison& comparison,
                                            std::span<const Piece> pieces);

}  // namespace octet::eval
