#include "server/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <chrono>
#include <utility>

#include "server/event_queue.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace octet::server {
namespace {

namespace asio = boost::asio;

// One prompt's answer as it grows.
struct Answer {
  Answer(const text::Tokenizer& tokenizer, const CompletionRequest& request)
      : detokenizer(tokenizer, request.skip_special), stops(request.stop, request.include_stop) {}

  uint64_t engine_id = 0;
  text::Detokenizer detokenizer;
  text::StopMatcher stops;
  LogprobsBuilder logprobs;
  std::string pending;    // text that has not been sent yet
  size_t text_bytes = 0;  // of all tokens so far: where the next token's text begins
  Usage usage;
  bool done = false;
  std::string finish_reason;
  std::optional<OrderedJson> stop_reason;
};

// Cancels what is still running when the request ends, however it ends.
class Cancelling {
 public:
  Cancelling(engine::Engine& engine, const std::vector<Answer>& answers)
      : engine_(engine), answers_(answers) {}
  ~Cancelling() {
    for (const Answer& answer : answers_) {
      if (answer.engine_id != 0 && !answer.done) engine_.cancel(answer.engine_id);
    }
  }
  Cancelling(const Cancelling&) = delete;
  Cancelling& operator=(const Cancelling&) = delete;

 private:
  engine::Engine& engine_;
  const std::vector<Answer>& answers_;
};

std::vector<int32_t> encode(const CompletionContext& context, const CompletionRequest& request,
                            const Prompt& prompt) {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) return *ids;
  return context.tokenizer.encode(std::get<std::string>(prompt),
                                  {.add_special_tokens = request.add_special});
}

void submit(const CompletionContext& context, const CompletionRequest& request, EventQueue& events,
            std::vector<Answer>& answers) {
  for (const Prompt& prompt : request.prompts) {
    const std::vector<int32_t> ids = encode(context, request, prompt);
    for (int32_t i = 0; i < request.n; ++i) {
      engine::GenRequest generation = request.generation;
      generation.prompt = ids;
      generation.sampling.seed += static_cast<uint64_t>(i);  // or all n would be the same
      const engine::Submitted submitted =
          context.engine.submit(std::move(generation), events.sink(answers.size()));
      if (submitted.overloaded) {
        throw ApiError(503, "too many requests are waiting; try again later",
                       "ServiceUnavailableError");
      }
      if (!submitted.admission.ok()) {
        throw ApiError(400, submitted.admission.message(), "BadRequestError", "prompt");
      }
      answers.emplace_back(context.tokenizer, request);
      answers.back().engine_id = submitted.id;
    }
  }
}

// Takes an event into the answer: its text, its log-probabilities, its end. Returns the error if
// the engine failed.
std::optional<ApiError> absorb(const CompletionContext& context, const CompletionRequest& request,
                               Answer& answer, const engine::TokenEvent& event) {
  if (!event.fault.empty()) {
    return ApiError(500, "the engine failed: " + event.fault, "InternalServerError");
  }
  answer.usage = {event.prompt_tokens, event.output_tokens, event.cached_tokens};
  for (const engine::SampledToken& token : event.tokens) {
    if (request.generation.sampling.logprobs >= 0) {
      answer.logprobs.add(context.tokenizer, token, answer.text_bytes);
    }
    // The token that stopped it counts, and is not shown.
    if (event.stop_token == token.token) continue;
    const std::string piece = answer.detokenizer.push(token.token);
    answer.text_bytes += piece.size();
    const text::StopMatcher::Result result = answer.stops.push(piece);
    answer.pending += result.text;
    if (!result.stopped) continue;
    answer.done = true;
    answer.finish_reason = "stop";
    answer.stop_reason = request.stop[static_cast<size_t>(result.stop)];
    answer.usage.completion_tokens = std::min<int64_t>(event.output_tokens, result.kept_tokens);
    context.engine.finish_at(answer.engine_id,
                             static_cast<int32_t>(answer.usage.completion_tokens));
    return std::nullopt;
  }
  if (!event.finish) return std::nullopt;
  const text::StopMatcher::Result rest = answer.stops.flush(answer.detokenizer.flush());
  answer.pending += rest.text;
  answer.done = true;
  answer.finish_reason = finish_reason(*event.finish);
  if (event.stop_token && request.generation.stop_ids.end() !=
                              std::ranges::find(request.generation.stop_ids, *event.stop_token)) {
    answer.stop_reason = *event.stop_token;
  }
  if (rest.stopped) {
    answer.finish_reason = "stop";
    answer.stop_reason = request.stop[static_cast<size_t>(rest.stop)];
  }
  return std::nullopt;
}

// What the answer has to say now.
Choice take_choice(Answer& answer, size_t index) {
  Choice choice{.index = static_cast<int32_t>(index)};
  choice.text = std::exchange(answer.pending, {});
  if (!answer.logprobs.empty()) choice.logprobs = answer.logprobs.take();
  if (answer.done) {
    choice.finish_reason = answer.finish_reason;
    choice.stop_reason = answer.stop_reason;
  }
  return choice;
}

// The prompt of n choices counts once.
Usage total_usage(const std::vector<Answer>& answers, int32_t n) {
  Usage total;
  for (size_t i = 0; i < answers.size(); ++i) {
    if (i % static_cast<size_t>(n) == 0) {
      total.prompt_tokens += answers[i].usage.prompt_tokens;
      total.cached_tokens += answers[i].usage.cached_tokens;
    }
    total.completion_tokens += answers[i].usage.completion_tokens;
  }
  return total;
}

std::string sse(const std::string& data) {
  return "data: " + data + "\n\n";
}

}  // namespace

asio::awaitable<void> complete(const CompletionContext& context, const CompletionRequest& request,
                               const std::string& id, Responder& responder) {
  const int64_t created = std::chrono::duration_cast<std::chrono::seconds>(
                              std::chrono::system_clock::now().time_since_epoch())
                              .count();
  const auto events = std::make_shared<EventQueue>(co_await asio::this_coro::executor);
  std::vector<Answer> answers;
  const Cancelling cancelling(context.engine, answers);
  submit(context, request, *events, answers);
  const std::shared_ptr<void> watch = responder.watch([events] { events->close(); });

  // g++ 12 takes no braced list of temporaries inside a coroutine, so these are functions.
  const auto chunk = [&](Answer& answer, size_t index) {
    std::vector<Choice> choices;
    choices.push_back(take_choice(answer, index));
    return sse(completion_json(id, context.served, created, choices, std::nullopt));
  };
  const auto whole = [&] {
    std::vector<Choice> choices;
    for (size_t i = 0; i < answers.size(); ++i) choices.push_back(take_choice(answers[i], i));
    return completion_json(id, context.served, created, choices, total_usage(answers, request.n));
  };

  if (request.stream) co_await responder.start_stream("text/event-stream; charset=utf-8");
  std::string end = sse("[DONE]");
  for (size_t running = answers.size(); running > 0;) {
    const std::optional<EventQueue::Item> item = co_await events->next();
    if (!item) co_return;  // the client is gone
    Answer& answer = answers[item->choice];
    if (answer.done) continue;  // what came after its stop string
    std::optional<ApiError> failure = absorb(context, request, answer, item->event);
    if (failure && !request.stream) throw *failure;
    if (failure) {
      end = sse(error_json(*failure)) + end;
      break;
    }
    if (answer.done) --running;
    if (!request.stream || (answer.pending.empty() && !answer.done)) continue;
    std::string part = chunk(answer, item->choice);
    co_await responder.write(std::move(part));
    if (running == 0 && request.include_usage) {
      end = sse(completion_json(id, context.served, created, std::vector<Choice>(),
                                total_usage(answers, request.n))) +
            end;
    }
  }

  if (request.stream) {
    co_await responder.write(std::move(end));
    co_await responder.finish();
  } else {
    std::string body = whole();
    co_await responder.send(200, std::move(body), "application/json");
  }
}

}  // namespace octet::server
