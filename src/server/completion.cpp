#include "server/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <numeric>
#include <stop_token>
#include <utility>

#include "server/answer.h"

namespace octet::server {
namespace {

namespace asio = boost::asio;

// A choice, and whom to cancel.
struct Running {
  uint64_t engine_id = 0;
  Answer answer;
  bool opened = false;  // its first chunk was sent
};

// The choices of a request. When it ends, however it ends, what still runs is cancelled, and all of
// it is logged where a log is kept.
class Ending {
 public:
  Ending(const CompletionContext& context, const CompletionRequest& request,
         const Envelope& envelope, const Asked& asked)
      : context_(context), request_(request), envelope_(envelope), asked_(asked) {}
  ~Ending() {
    for (const Running& choice : choices) {
      if (!choice.answer.done()) context_.engine.cancel(choice.engine_id);
    }
    count();
    if (context_.log && !choices.empty()) context_.log->add(logged());
  }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

  std::vector<Running> choices;
  std::vector<std::shared_ptr<const EncodedPrompt>> prompts;  // of the log alone
  engine::GenRequest generation;                              // as it was resolved
  std::vector<int64_t> most_tokens;                           // of each prompt's choices

 private:
  // A prompt's choices are one request to monitors.
  void count() const {
    const auto each = static_cast<size_t>(request_.best_of);
    for (size_t i = 0; i < most_tokens.size() && i * each < choices.size(); ++i) {
      const size_t end = std::min((i + 1) * each, choices.size());
      int64_t longest = 0;
      for (size_t k = i * each; k < end; ++k) {
        longest = std::max(longest, choices[k].answer.usage().completion_tokens);
      }
      context_.metrics.asked_choices.add(request_.n);
      context_.metrics.asked_tokens.add(static_cast<double>(most_tokens[i]));
      context_.metrics.longest_choice.add(static_cast<double>(longest));
    }
  }
  LoggedRequest logged() {
    LoggedRequest entry{asked_.path, asked_.body, envelope_, request_.best_of};
    entry.generation = std::move(generation);
    entry.prompts = std::move(prompts);
    for (size_t i = 0; i < choices.size(); ++i) {
      const Answer& answer = choices[i].answer;
      entry.choices.push_back(
          {entry.generation.sampling.seed + i % static_cast<size_t>(request_.best_of),
           answer.token_ids(), answer.finish_reason().value_or("abort")});
    }
    return entry;
  }

  const CompletionContext& context_;
  const CompletionRequest& request_;
  const Envelope& envelope_;
  const Asked& asked_;
};

// What no waiting can make fit is the request's own fault, not an overload.
void refuse_too_many(const CompletionContext& context, const CompletionRequest& request) {
  const auto wanted = static_cast<int64_t>(request.choices());
  const int64_t most = context.engine.max_requests();
  if (wanted <= most) return;
  const char* times = request.best_of > request.n ? "best_of" : "n";
  throw ApiError(400,
                 fmt::format("the request asks for {} completions ({} prompts times {} = {}), and "
                             "this server takes at most {} at once (--max-queued-requests and "
                             "--max-num-seqs together); send fewer in one request",
                             wanted, request.prompts.size(), times, request.best_of, most),
                 "BadRequestError",
                 request.best_of > most ? times : std::string(request.format->prompt_field));
}

void submit(const CompletionContext& context, const CompletionRequest& request,
            std::vector<EncodedPrompt> prompts,
            const std::shared_ptr<const text::CompiledGrammar>& grammar, EventQueue& events,
            Ending& all) {
  std::vector<Running>& choices = all.choices;
  engine::GenRequest& common = all.generation = request.generation;
  common.sampling.bad_words =
      tokens_of_bad_words(context.prompts.tokenizer, request.bad_words, context.prompts.vocab);
  const bool kept = request.echo || request.token_ids || request.prompt_logprobs;
  for (EncodedPrompt& prompt : prompts) {
    const auto shared = std::make_shared<const EncodedPrompt>(std::move(prompt));
    if (context.log) all.prompts.push_back(shared);
    const int64_t room = context.prompts.max_model_len - static_cast<int64_t>(shared->ids.size());
    if (!common.max_tokens && request.default_tokens && *request.default_tokens <= room) {
      common.max_tokens = request.default_tokens;
    }
    for (int32_t i = 0; i < request.best_of; ++i) {
      engine::GenRequest generation = common;
      generation.prompt = shared->ids;
      generation.sampling.seed += static_cast<uint64_t>(i);  // or all n would be the same
      if (grammar) generation.constraint = constraint_of(grammar, context.metrics);
      const engine::Submitted submitted = context.engine.submit(
          std::move(generation),
          context.metrics.observe(events.sink(choices.size()), context.arrival));
      if (!submitted.admission.ok()) {
        using Reason = sched::Admission::Reason;
        throw ApiError(400, submitted.admission.message(), "BadRequestError",
                       submitted.admission.reason == Reason::bad_max_tokens
                           ? "min_tokens"  // max_tokens was looked at before
                           : std::string(request.format->prompt_field));
      }
      if (submitted.overloaded) {
        throw ApiError(503, "too many requests are waiting; try again later",
                       "ServiceUnavailableError");
      }
      if (!submitted.unavailable.empty()) {
        throw ApiError(500, "the engine does not run: " + submitted.unavailable,
                       "InternalServerError");
      }
      if (i == 0) all.most_tokens.push_back(submitted.admission.max_tokens);
      choices.push_back(
          {submitted.id, Answer(context.prompts.tokenizer, request, kept ? shared : nullptr)});
    }
  }
}

// The prompt of several choices counts once; of best_of, all that was computed counts.
Usage total_usage(const std::vector<Running>& choices, const CompletionRequest& request) {
  Usage total;
  if (!request.cached_usage) total.cached_tokens.reset();
  for (size_t i = 0; i < choices.size(); ++i) {
    const Usage& usage = choices[i].answer.usage();
    if (i % static_cast<size_t>(request.best_of) == 0) {
      total.prompt_tokens += usage.prompt_tokens;
      if (total.cached_tokens) *total.cached_tokens += usage.cached_tokens.value_or(0);
    }
    total.completion_tokens += usage.completion_tokens;
  }
  return total;
}

// The choices that are given: of each prompt's best_of the n whose tokens are likeliest on average,
// the best first.
std::vector<size_t> best_choices(const std::vector<Running>& choices,
                                 const CompletionRequest& request) {
  std::vector<size_t> all(choices.size());
  std::iota(all.begin(), all.end(), size_t{0});
  if (request.best_of == request.n) return all;
  std::vector<size_t> best;
  const auto score = [&](size_t i) { return choices[i].answer.mean_logprob(); };
  for (auto group = all.begin(); group != all.end(); group += request.best_of) {
    std::stable_sort(group, group + request.best_of,
                     [&](size_t a, size_t b) { return score(a) > score(b); });
    best.insert(best.end(), group, group + request.n);
  }
  return best;
}

std::string sse(const std::string& data) {
  return "data: " + data + "\n\n";
}

}  // namespace

asio::awaitable<void> complete(const CompletionContext& context, const CompletionRequest& request,
                               const Envelope& envelope, const Asked& asked, Responder& responder) {
  const AnswerFormat& format = *request.format;
  const auto events = std::make_shared<EventQueue>(co_await asio::this_coro::executor);
  const OpenQueues::Entry entry(context.open, events);
  std::stop_source gone;
  const std::shared_ptr<void> watch = responder.watch([events, gone]() mutable {
    gone.request_stop();
    events->close(EventQueue::Closed::client_gone);
  });
  Ending all(context, request, envelope, asked);
  std::vector<Running>& choices = all.choices;
  refuse_too_many(context, request);
  {  // the engine has its own copy of the prompts: these end here
    std::vector<EncodedPrompt> prompts = co_await context.prompts.encode(request, gone.get_token());
    std::shared_ptr<const text::CompiledGrammar> grammar;
    if (request.structured && events->closed() == EventQueue::Closed::no) {
      grammar = co_await context.structured.compile(*request.structured);
    }
    if (events->closed() == EventQueue::Closed::no) {
      submit(context, request, std::move(prompts), grammar, *events, all);
    }
  }

  // g++ 12 takes no braced list of temporaries inside a coroutine, so these are functions.
  const auto chunk = [&](Running& choice, size_t index) {
    std::optional<Usage> usage;
    if (request.continuous_usage) usage = choice.answer.usage();
    std::vector<Choice> parts;
    parts.push_back(choice.answer.take(static_cast<int32_t>(index)));
    std::string opening;
    if (format.opening && !std::exchange(choice.opened, true)) {
      opening = sse(format.opening(envelope, parts[0], usage));
    }
    return opening + sse(format.chunk(envelope, parts, usage));
  };
  const auto whole = [&] {
    std::vector<Choice> parts;
    for (const size_t i : best_choices(choices, request)) {
      parts.push_back(choices[i].answer.take(static_cast<int32_t>(parts.size())));
    }
    return format.whole(envelope, parts, total_usage(choices, request));
  };
  const auto usage_chunk = [&] {
    return sse(format.chunk(envelope, std::vector<Choice>(), total_usage(choices, request)));
  };

  if (request.stream) co_await responder.start_stream("text/event-stream; charset=utf-8");
  std::optional<ApiError> failure;
  for (size_t running = request.choices(); running > 0;) {
    const std::optional<EventQueue::Item> item = co_await events->next();
    if (!item && events->closed() == EventQueue::Closed::client_gone) co_return;
    if (!item) {
      failure = ApiError(503, "the server is shutting down", "ServiceUnavailableError");
      break;
    }
    if (!item->event.fault.empty()) {
      failure = ApiError(500, "the engine failed: " + item->event.fault, "InternalServerError");
      break;
    }
    if (item->event.of_model) {
      failure = ApiError(500, item->event.error, "InternalServerError");
      break;
    }
    if (!item->event.error.empty()) {  // what was asked for cannot be had
      failure = ApiError(400, item->event.error);
      break;
    }
    Running& choice = choices[item->choice];
    if (choice.answer.done()) continue;  // what came after its stop string
    if (const std::optional<int32_t> tokens = choice.answer.add(item->event)) {
      context.engine.finish_at(choice.engine_id, *tokens);
    }
    if (choice.answer.done()) --running;
    if (!request.stream || !choice.answer.has_news()) continue;
    std::string part = chunk(choice, item->choice);
    co_await responder.write(std::move(part));
  }

  if (!request.stream) {
    if (failure) throw ApiError(*failure);
    std::string body = whole();
    co_await responder.send(200, std::move(body), "application/json");
    co_return;
  }
  std::string end = sse("[DONE]");
  if (failure) {
    end = sse(error_json(*failure)) + end;
  } else if (request.include_usage) {
    end = usage_chunk() + end;
  }
  co_await responder.write(std::move(end));
  co_await responder.finish();
}

}  // namespace octet::server
