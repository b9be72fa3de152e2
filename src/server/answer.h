// One choice of a completion as it grows: sampled tokens in, text and log-probabilities out. No
// network, no engine, no clock.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/openai.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace octet::server {

// What is promised, however the tokens arrive:
//   * all parts joined are what one part would have been: text, log-probabilities and offsets;
//   * there are as many log-probabilities as completion_tokens: the token that a stop string cuts
//     through counts, one behind the cut does not, and an end token, whose text is not shown, does;
//   * a part is never empty, except that the last may be.
//
// So log-probabilities are held back together with text that may begin a stop string:
//
//   text     |   shown      | held: may begin a stop string |
//   tokens   | t0 |  t1  |   t2   |   t3  |   t4   |
//              shown ---------->    held: the cut may come before them
class Answer {
 public:
  // Both outlive the answer.
  Answer(const text::Tokenizer& tokenizer, const CompletionRequest& request);

  // Takes an event of the engine that is no fault. If a stop string is complete now and the engine
  // does not know the end yet: after how many tokens it is. Not after done().
  std::optional<int32_t> add(const engine::TokenEvent& event);

  bool done() const { return finish_reason_.has_value(); }
  bool has_news() const { return !text_.empty() || done(); }
  // What has become certain since the last call.
  Choice take(int32_t index);
  const Usage& usage() const { return usage_; }

 private:
  struct Held {
    size_t start;  // bytes of text before the token
    TokenLogprob logprob;
  };
  void show(const text::StopMatcher::Result& result);
  void release(size_t count);
  void end(const text::StopMatcher::Result& stop, int32_t output_tokens);

  const text::Tokenizer& tokenizer_;
  const CompletionRequest& request_;
  text::Detokenizer detokenizer_;
  text::StopMatcher stops_;
  int32_t tokens_ = 0;            // taken so far
  int32_t unmatched_ = 0;         // of these, those within min_tokens: no stop string begins there
  size_t bytes_ = 0, chars_ = 0;  // of the text of all tokens so far
  size_t shown_bytes_ = 0;
  std::string text_;                    // shown, not taken yet
  std::vector<TokenLogprob> logprobs_;  // the same
  std::deque<Held> held_;
  int32_t released_ = 0;  // log-probabilities that left `held_`
  Usage usage_;
  std::optional<std::string> finish_reason_;
  std::optional<OrderedJson> stop_reason_;
};

}  // namespace octet::server
