#include "server/answer.h"

#include <algorithm>
#include <utility>

namespace octet::server {

Answer::Answer(const text::Tokenizer& tokenizer, const CompletionRequest& request,
               std::shared_ptr<const EncodedPrompt> prompt)
    : tokenizer_(tokenizer),
      request_(request),
      prompt_(std::move(prompt)),
      detokenizer_(tokenizer, request.skip_special),
      stops_(request.stop, request.include_stop) {
  if (request.tools) tools_ = make_tool_parser(*request.tools, request.tool_names);
  if (request.prompt_logprobs) prompt_logprobs_ = OrderedJson::array({nullptr});
  if (!request.echo) return;
  text_ = prompt_->text;
  chars_ = count_chars(text_);
  // Nothing comes before the first token that could make it likely.
  if (request.logprobs && !prompt_->ids.empty()) {
    TokenLogprob first = describe({.token = prompt_->ids[0]}, 0);
    first.logprob.reset();
    logprobs_.push_back(std::move(first));
  }
}

TokenLogprob Answer::describe(engine::SampledToken token, size_t text_offset) const {
  // There may be more, for prompt_logprobs.
  const auto most = static_cast<size_t>(std::max(request_.generation.sampling.logprobs, 0));
  token.top.resize(std::min(token.top.size(), most));
  return token_logprob(tokenizer_, token, text_offset, request_.tokens_as_ids);
}

void Answer::add_prompt(const std::vector<engine::SampledToken>& tokens) {
  for (const engine::SampledToken& token : tokens) {
    ++scored_;
    if (request_.prompt_logprobs) {
      prompt_logprobs_.push_back(prompt_logprob_json(tokenizer_, token, *request_.prompt_logprobs));
    }
    if (request_.echo && request_.logprobs) {
      logprobs_.push_back(describe(token, prompt_->offsets.at(scored_)));
    }
  }
}

void Answer::add_text(std::string_view text) {
  if (!tools_) {
    text_ += text;
    return;
  }
  ToolText found = tools_->push(text);
  text_ += found.content;
  add_calls(std::move(found.calls));
}

void Answer::add_calls(std::vector<ToolCallPart> parts) {
  for (ToolCallPart& part : parts) {
    if (!part.name.empty()) {
      calls_.push_back({all_calls_++, std::move(part.name), std::move(part.arguments)});
    } else if (!calls_.empty()) {
      calls_.back().arguments += part.arguments;
    } else if (!part.arguments.empty()) {
      calls_.push_back({all_calls_ - 1, "", std::move(part.arguments)});
    }
  }
}

void Answer::show(const text::StopMatcher::Result& result) {
  add_text(result.text);
  shown_bytes_ += result.text.size();
}

// The next `count` tokens are certain to stay.
void Answer::release(size_t count) {
  for (; count > 0 && !held_.empty(); --count) {
    Held& held = held_.front();
    if (held.shown) logprobs_.push_back(std::move(*held.shown));
    token_ids_.push_back(held.id);
    logprob_sum_ += held.logprob;
    held_.pop_front();
  }
}

void Answer::finish(std::string reason) {
  if (tools_) {
    ToolText rest = tools_->finish();
    text_ += rest.content;
    add_calls(std::move(rest.calls));
  }
  // OpenAI's rule: a call of the function that the request named is a plain end.
  const bool called = all_calls_ > 0 && !request_.names_tool && reason == "stop";
  finish_reason_ = called ? "tool_calls" : std::move(reason);
}

void Answer::end(const text::StopMatcher::Result& stop, int32_t output_tokens) {
  usage_.completion_tokens = std::min(output_tokens, unmatched_ + stop.kept_tokens);
  stop_reason_ = request_.stop[static_cast<size_t>(stop.stop)];
  const auto released = static_cast<int64_t>(token_ids_.size());
  release(static_cast<size_t>(std::max<int64_t>(0, usage_.completion_tokens - released)));
  held_.clear();
  finish("stop");
}

std::optional<int32_t> Answer::add(const engine::TokenEvent& event) {
  usage_ = {event.prompt_tokens, event.output_tokens, std::nullopt};
  if (request_.cached_usage) usage_.cached_tokens = event.cached_tokens;
  add_prompt(event.prompt);
  if (request_.echo_alone) {  // the engine cannot but draw a token, which nobody asked for
    usage_.completion_tokens = 0;
    if (event.finish) {
      const bool drawn = *event.finish == sched::Finish::stop;
      finish(std::string(server::finish_reason(drawn ? sched::Finish::length : *event.finish)));
    }
    return std::nullopt;
  }
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    const engine::SampledToken& token = event.tokens[i];
    ++tokens_;
    Held& held = held_.emplace_back(Held{bytes_, token.token, token.logprob, std::nullopt});
    if (request_.logprobs) held.shown = describe(token, chars_);
    // The token that stopped it counts, and is not shown.
    const bool stopped_it = i + 1 == event.tokens.size() && event.stop_token == token.token;
    if (stopped_it && !request_.include_stop) continue;
    std::string piece = detokenizer_.push(token.token);
    bytes_ += piece.size();
    chars_ += count_chars(piece);
    if (tokens_ <= request_.generation.min_tokens) {
      ++unmatched_;
      shown_bytes_ += piece.size();
      add_text(piece);
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
  const std::vector<int32_t>& stop_ids = request_.generation.stop_ids;
  if (event.stop_token && std::ranges::find(stop_ids, *event.stop_token) != stop_ids.end()) {
    stop_reason_ = *event.stop_token;
  }
  finish(std::string(server::finish_reason(*event.finish)));
  return std::nullopt;
}

double Answer::mean_logprob() const {
  return token_ids_.empty() ? 0 : logprob_sum_ / static_cast<double>(token_ids_.size());
}

Choice Answer::take(int32_t index) {
  Choice choice{.index = index};
  choice.text = std::exchange(text_, {});
  choice.calls = std::exchange(calls_, {});
  if (request_.logprobs) choice.logprobs = request_.format->logprobs(std::exchange(logprobs_, {}));
  if (request_.token_ids) {
    choice.token_ids.emplace(token_ids_.begin() + static_cast<std::ptrdiff_t>(taken_ids_),
                             token_ids_.end());
    if (first_part_) choice.prompt_token_ids = prompt_->ids;
  }
  taken_ids_ = token_ids_.size();
  first_part_ = false;
  choice.prompt_logprobs = std::exchange(prompt_logprobs_, nullptr);
  choice.finish_reason = finish_reason_;
  choice.stop_reason = stop_reason_;
  return choice;
}

}  // namespace octet::server
