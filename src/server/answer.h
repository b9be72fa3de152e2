// One choice of a completion as it grows: sampled tokens in, text, tool calls and log-probabilities
// out. No network, no engine, no clock.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/openai.h"
#include "server/prompt.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace octet::server {

// What is promised, however the tokens arrive:
//   * all parts joined are what one part would have been: text, calls, log-probabilities, offsets;
//   * there are as many log-probabilities as completion_tokens: the token that a stop string cuts
//     through counts, one behind the cut does not, and an end token, whose text is not shown, does;
//     with echo, those of the prompt come before them;
//   * a part is never empty, except that the last may be.
//
// So log-probabilities are held back together with text that may begin a stop string:
//
//   text     |   shown      | held: may begin a stop string |
//   tokens   | t0 |  t1  |   t2   |   t3  |   t4   |
//              shown ---------->    held: the cut may come before them
class Answer {
 public:
  // Tokenizer and request outlive the answer. The prompt is needed where the request echoes it or
  // asks for its ids or log-probabilities.
  Answer(const text::Tokenizer& tokenizer, const CompletionRequest& request,
         std::shared_ptr<const EncodedPrompt> prompt = nullptr);

  // Takes an event of the engine that is no fault. If a stop string is complete now and the engine
  // does not know the end yet: after how many tokens it is. Not after done().
  std::optional<int32_t> add(const engine::TokenEvent& event);

  const std::optional<std::string>& finish_reason() const { return finish_reason_; }
  bool done() const { return finish_reason_.has_value(); }
  bool has_news() const { return !text_.empty() || !calls_.empty() || done(); }
  // What has become certain since the last call.
  Choice take(int32_t index);
  const Usage& usage() const { return usage_; }
  // Of the tokens that count, so far.
  const std::vector<int32_t>& token_ids() const { return token_ids_; }
  // The mean log-probability of these, which best_of compares; the engine must have been asked for
  // any. No token: 0, the best there is.
  double mean_logprob() const;

 private:
  struct Held {
    size_t start;  // bytes of text before the token
    int32_t id;
    float logprob;
    std::optional<TokenLogprob> shown;
  };
  void add_prompt(const std::vector<engine::SampledToken>& tokens);
  void add_text(std::string_view text);
  void add_calls(std::vector<ToolCallPart> parts);
  void show(const text::StopMatcher::Result& result);
  void release(size_t count);
  void end(const text::StopMatcher::Result& stop, int32_t output_tokens);
  void finish(std::string reason);
  TokenLogprob describe(engine::SampledToken token, size_t text_offset) const;

  const text::Tokenizer& tokenizer_;
  const CompletionRequest& request_;
  std::shared_ptr<const EncodedPrompt> prompt_;
  text::Detokenizer detokenizer_;
  text::StopMatcher stops_;
  std::unique_ptr<ToolParser> tools_;  // null: all text is content
  int32_t tokens_ = 0;                 // taken so far
  int32_t unmatched_ = 0;         // of these, those within min_tokens: no stop string begins there
  size_t bytes_ = 0, chars_ = 0;  // of the text of all tokens so far; the prompt's in `chars_` only
  size_t shown_bytes_ = 0;
  size_t scored_ = 0;                   // tokens of the prompt that have come
  std::string text_;                    // shown, not taken yet
  std::vector<ToolCallDelta> calls_;    // the same
  std::vector<TokenLogprob> logprobs_;  // the same
  OrderedJson prompt_logprobs_;         // an array, if they were asked for
  int32_t all_calls_ = 0;
  std::deque<Held> held_;
  std::vector<int32_t> token_ids_;  // those that left `held_`
  size_t taken_ids_ = 0;            // of these, those in a part
  double logprob_sum_ = 0;          // of the same
  bool first_part_ = true;
  Usage usage_;
  std::optional<std::string> finish_reason_;
  std::optional<OrderedJson> stop_reason_;
};

}  // namespace octet::server
