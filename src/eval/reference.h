// The logits of one run over a text, kept so that many others are held against it without it being
// computed again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "eval/evaluate.h"

namespace octet::eval {

// How far a run is from the one that was kept.
struct Fidelity {
  double perplexity = 0;
  double kl = 0;  // KL(kept || run), mean over the scored tokens
  // Of kl, the standard error over the pieces; a single one does not tell it.
  std::optional<double> kl_error;
  double top1 = 0;  // share of tokens with the same most likely next one
};

class Reference {
 public:
  // Computes `subject` over `pieces`, which must stay. Error if the logits of their scored tokens,
  // vocabulary times four bytes each, do not fit into the memory that is free.
  Reference(const Subject& subject, std::span<const Piece> pieces, ThreadPool& threads,
            const Advance& advance = {});

  double perplexity() const { return perplexity_; }
  int64_t tokens() const { return tokens_; }

  // Of a run over the same pieces. Bits do not depend on the number of threads. Throws Error where
  // it gives logits that are not finite.
  Fidelity measure(const Subject& subject, const Advance& advance = {}) const;

 private:
  std::span<const float> row(int64_t place) const {
    return std::span(logits_).subspan(static_cast<size_t>(place * vocab_),
                                      static_cast<size_t>(vocab_));
  }

  std::span<const Piece> pieces_;
  ThreadPool& threads_;
  int64_t vocab_, tokens_;
  std::vector<float> logits_;  // [tokens, vocab]
  double perplexity_ = 0;
};

}  // namespace octet::eval
