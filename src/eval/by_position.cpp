#include "eval/by_position.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace octet::eval {
namespace {

constexpr int64_t kFirst = 64;

// 0 for positions below 64, 1 below 128, ...
size_t bucket_of(int64_t position) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(position / kFirst)));
}

}  // namespace

std::vector<PositionBucket> by_position(const Comparison& comparison,
                                        std::span<const Piece> pieces) {
  std::vector<PositionBucket> buckets;
  size_t at = 0;
  for (const Piece& piece : pieces) {
    for (auto position = piece.context; position < static_cast<int64_t>(piece.tokens.size());
         ++position) {
      const size_t place = bucket_of(position);
      if (place >= buckets.size()) buckets.resize(place + 1);
      const ScoredToken& token = comparison.scored[at++];
      PositionBucket& bucket = buckets[place];
      ++bucket.baseline.tokens;
      ++bucket.candidate.tokens;
      bucket.baseline.nll -= token.baseline_logprob;
      bucket.candidate.nll -= token.logprob;
      bucket.kl_mean += token.kl;
      bucket.top1_agreement += token.best == token.baseline_best ? 1 : 0;
    }
  }
  for (size_t i = 0; i < buckets.size(); ++i) {
    PositionBucket& bucket = buckets[i];
    bucket.first = i == 0 ? 1 : kFirst << (i - 1);
    bucket.last = kFirst << i;
    const auto tokens = static_cast<double>(std::max<int64_t>(bucket.baseline.tokens, 1));
    bucket.kl_mean /= tokens;
    bucket.top1_agreement /= tokens;
  }
  std::erase_if(buckets, [](const PositionBucket& b) { return b.baseline.tokens == 0; });
  return buckets;
}

std::optional<Interval> perplexity_interval(const Comparison& comparison,
                                            std::span<const Piece> pieces) {
  if (pieces.size() < 5) return std::nullopt;
  std::vector<double> candidate, baseline;  // nats a token of each piece
  size_t at = 0;
  for (const Piece& piece : pieces) {
    double ours = 0, theirs = 0;
    for (int64_t i = 0; i < piece.scored(); ++i, ++at) {
      ours -= comparison.scored[at].logprob;
      theirs -= comparison.scored[at].baseline_logprob;
    }
    candidate.push_back(ours / static_cast<double>(piece.scored()));
    baseline.push_back(theirs / static_cast<double>(piece.scored()));
  }
  const Interval nats = paired_difference(candidate, baseline).interval;
  return Interval{std::expm1(nats.low), std::expm1(nats.high)};
}

}  // namespace octet::eval
