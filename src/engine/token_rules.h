// What the next token of one request may be, beside what the model says: penalties, biases,
// forbidden tokens, a constraint. A request without any of these has no such object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/constraint.h"
#include "ops/op_types.h"

namespace octet::engine {

// How the tokens of one request are drawn.
struct Sampling {
  float temperature = 0.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  uint64_t seed = 0;
  int32_t logprobs = -1;  // best tokens to report a step; -1 = no log-probabilities at all
  // Penalties as models-numerics F.2 defines them: repetition over prompt and output, the others
  // over the output.
  float repetition_penalty = 1.0f, presence_penalty = 0.0f, frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;  // token, what is added to its logit
  std::vector<int32_t> allowed;                       // no other token is drawn; empty = any is
  std::vector<std::vector<int32_t>> bad_words;        // sequences of tokens that never appear
};

// In the order of vLLM (models-numerics F.1): the mask of allowed tokens and of the constraint; bad
// words; end tokens below min_tokens; biases; penalties. Lives on the engine's thread. What it
// counts grows with each token; nothing is counted anew.
class TokenRules {
 public:
  // end_ids: the tokens that end the request, not drawn as one of its first min_tokens. All ids are
  // below vocab.
  TokenRules(const Sampling& sampling, std::span<const int32_t> prompt, int32_t min_tokens,
             std::vector<int32_t> end_ids, int64_t vocab,
             std::shared_ptr<TokenConstraint> constraint);

  // Whether a request with these needs the object at all.
  static bool needed(const Sampling& sampling, int32_t min_tokens,
                     const std::shared_ptr<TokenConstraint>& constraint);
  // Whether a token is ruled by those before it, so that they must be known on the host.
  bool lockstep() const { return counts() || !bad_words_.empty() || constraint_; }

  // Appends the edits of output token number `index` (0, 1, ...), at `row` of the logits; at most
  // one for a token of the vocabulary.
  void edit(int32_t row, int32_t index, std::vector<ops::LogitEdit>& out) const;
  // As TokenConstraint::fill, the allowed tokens included.
  bool mask(std::span<int32_t> words);
  // The output goes on with this token. False: the constraint does not allow it.
  bool accept(int32_t token);
  // Nothing may follow.
  bool finished() const { return constraint_ && constraint_->finished(); }
  std::string given_up() const { return constraint_ ? constraint_->given_up() : std::string(); }

 private:
  bool counts() const { return repetition_ != 1.0f || presence_ != 0.0f || frequency_ != 0.0f; }
  ops::LogitEdit& edit_of(int32_t token);

  float repetition_, presence_, frequency_;
  int32_t min_tokens_;
  std::vector<int32_t> end_ids_;
  std::vector<std::vector<int32_t>> bad_words_;  // of two tokens or more
  std::vector<int32_t> allowed_;                 // as a mask; empty = all
  std::shared_ptr<TokenConstraint> constraint_;
  std::vector<ops::LogitEdit> edits_;          // of the next token, but for what edit() adds
  std::vector<int32_t> counts_;                // in the output; beside edits_
  std::unordered_map<int32_t, size_t> where_;  // token -> its entry in both
  std::vector<int32_t> output_;                // only where bad words look back
};

}  // namespace octet::engine
