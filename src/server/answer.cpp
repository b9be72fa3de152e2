#include "server/answer.h"

#include <algorithm>
#include <utility>

namespace octet::server {
namespace {

// Of valid UTF-8: every byte that does not continue one.
size_t count_chars(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

Answer::Answer(const text::Tokenizer& tokenizer, const CompletionRequest& request)
    : tokenizer_(tokenizer),
      request_(request),
      detokenizer_(tokenizer, request.skip_special),
      stops_(request.stop, request.include_stop) {}

void Answer::show(const text::StopMatcher::Result& result) {
  text_ += result.text;
  shown_bytes_ += result.text.size();
}

// The next `count` log-probabilities are certain to stay.
void Answer::release(size_t count) {
  for (; count > 0 && !held_.empty(); --count) {
    logprobs_.push_back(std::move(held_.front().logprob));
    held_.pop_front();
    ++released_;
  }
}

void Answer::end(const text::StopMatcher::Result& stop, int32_t output_tokens) {
  usage_.completion_tokens = std::min(output_tokens, unmatched_ + stop.kept_tokens);
  finish_reason_ = "stop";
  stop_reason_ = request_.stop[static_cast<size_t>(stop.stop)];
  release(static_cast<size_t>(std::max<int64_t>(0, usage_.completion_tokens - released_)));
  held_.clear();
}

std::optional<int32_t> Answer::add(const engine::TokenEvent& event) {
  usage_ = {event.prompt_tokens, event.output_tokens, event.cached_tokens};
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    const engine::SampledToken& token = event.tokens[i];
    ++tokens_;
    if (request_.generation.sampling.logprobs >= 0) {
      held_.push_back({bytes_, token_logprob(tokenizer_, token, chars_)});
    }
    // The token that stopped it counts, and is not shown.
    const bool stopped_it = i + 1 == event.tokens.size() && event.stop_token == token.token;
    if (stopped_it && !request_.include_stop) continue;
    std::string piece = detokenizer_.push(token.token);
    bytes_ += piece.size();
    chars_ += count_chars(piece);
    if (tokens_ <= request_.generation.min_tokens) {
      ++unmatched_;
      shown_bytes_ += piece.size();
      text_ += piece;
      continue;
    }
    const text::StopMatcher::Result result = stops_.push(piece);
    show(result);
    if (!result.stopped) continue;
    end(result, event.output_tokens);
    if (event.finish) return std::nullopt;
    return static_cast<int32_t>(usage_.completion_tokens);
  }
  // A cut comes at the end of what was shown or later: what begins before it stays.
  const auto open =
      std::ranges::find_if(held_, [&](const Held& held) { return held.start >= shown_bytes_; });
  release(static_cast<size_t>(open - held_.begin()));
  if (!event.finish) return std::nullopt;

  const text::StopMatcher::Result rest = stops_.flush(detokenizer_.flush());
  show(rest);
  if (rest.stopped) {
    end(rest, event.output_tokens);
    return std::nullopt;
  }
  release(held_.size());
  finish_reason_ = finish_reason(*event.finish);
  const std::vector<int32_t>& stop_ids = request_.generation.stop_ids;
  if (event.stop_token && std::ranges::find(stop_ids, *event.stop_token) != stop_ids.end()) {
    stop_reason_ = *event.stop_token;
  }
  return std::nullopt;
}

Choice Answer::take(int32_t index) {
  Choice choice{.index = index};
  choice.text = std::exchange(text_, {});
  if (request_.generation.sampling.logprobs >= 0) {
    choice.logprobs = request_.format->logprobs(std::exchange(logprobs_, {}));
  }
  choice.finish_reason = finish_reason_;
  choice.stop_reason = stop_reason_;
  return choice;
}

}  // namespace octet::server
