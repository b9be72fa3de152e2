// The log-likelihood of texts that could follow a prompt, as multiple-choice tasks ask for it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/evaluate.h"
#include "text/tokenizer.h"

namespace octet::eval {

// A prompt with one of the texts that may follow, as tokens: those from `context` on are scored.
struct Choice {
  std::vector<int32_t> tokens;
  int64_t context = 1;  // at least 1
};

// Both texts encoded as one, and cut where the prompt alone ends, as lm-eval does: spaces at the
// end of the prompt go to the continuation first. Throws Error if nothing is left to score, or
// nothing stands before it.
Choice encode_choice(const text::Tokenizer& tokenizer, std::string prompt,
                     std::string_view continuation);

// Scores one choice after the other. What a choice has in common with the one before it is not
// computed again, so ask for choices of one prompt, and prompts of one beginning, in a row.
class ChoiceScorer {
 public:
  ChoiceScorer(const Subject& subject, int64_t max_tokens);

  // The sum of the log-probabilities of the tokens from choice.context on, in nats. Throws Fault if
  // the choice is longer than max_tokens, Error where logits are not finite; `name` says of what.
  double score(const Choice& choice, std::string_view name);

  int64_t computed_tokens() const { return computed_; }

 private:
  engine::Session session_;
  std::vector<int32_t> tokens_;  // in the session
  int64_t computed_ = 0;
};

}  // namespace octet::eval
