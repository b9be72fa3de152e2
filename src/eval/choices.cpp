#include "eval/choices.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace octet::eval {

Choice encode_choice(const text::Tokenizer& tokenizer, std::string prompt,
                     std::string_view continuation) {
  const size_t kept = prompt.find_last_not_of(" \t\n\r\f\v") + 1;
  const std::string moved = prompt.substr(kept) + std::string(continuation);
  prompt.resize(kept);
  Choice choice{.tokens = tokenizer.encode(prompt + moved),
                .context = static_cast<int64_t>(tokenizer.encode(prompt).size())};
  if (choice.context < 1 || choice.context >= static_cast<int64_t>(choice.tokens.size())) {
    throw Error({.what = choice.context < 1 ? "nothing stands before the text that is scored"
                                            : "no token of its own is left to score",
                 .value = std::string(continuation),
                 .accepted = "a prompt and a continuation of one token or more each"});
  }
  return choice;
}

ChoiceScorer::ChoiceScorer(const Subject& subject, int64_t max_tokens)
    : session_(subject.model, subject.backend, session_options(subject, max_tokens)) {}

double ChoiceScorer::score(const Choice& choice, std::string_view name) {
  const std::span<const int32_t> tokens(choice.tokens);
  // The logits of the last token before the scored ones are wanted, so it is computed anew.
  const auto context = static_cast<size_t>(choice.context) - 1;
  const auto shared =
      static_cast<size_t>(std::ranges::mismatch(tokens_, tokens).in1 - tokens_.begin());
  const size_t kept = std::min(shared, context);
  session_.truncate(0, static_cast<int64_t>(kept));
  session_.extend(0, tokens.subspan(kept, context - kept));
  double sum = 0;
  engine::Distribution row;
  session_.extend(0, tokens.subspan(context, tokens.size() - context - 1), engine::Wanted::all,
                  [&](int64_t first, const Tensor& logits) {
                    for (int64_t i = 0; i < logits.rows(); ++i) {
                      const std::span<const float> values = engine::row_of(logits, i);
                      require_finite(values, "model", name, first + i);
                      row.read(values);
                      sum += row.log_probability(
                          static_cast<size_t>(tokens[static_cast<size_t>(first + i) + 1]));
                    }
                  });
  computed_ += static_cast<int64_t>(tokens.size() - 1 - kept);
  tokens_.assign(tokens.begin(), tokens.end() - 1);
  return sum;
}

}  // namespace octet::eval
