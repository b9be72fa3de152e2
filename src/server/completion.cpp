#include "server/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
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

// Cancels what is still running when the request ends, however it ends.
class Cancelling {
 public:
  Cancelling(engine::Engine& engine, const std::vector<Running>& choices)
      : engine_(engine), choices_(choices) {}
  ~Cancelling() {
    for (const Running& choice : choices_) {
      if (!choice.answer.done()) engine_.cancel(choice.engine_id);
    }
  }
  Cancelling(const Cancelling&) = delete;
  Cancelling& operator=(const Cancelling&) = delete;

 private:
  engine::Engine& engine_;
  const std::vector<Running>& choices_;
};

using Ids = std::vector<int32_t>;

// A text is encoded up to the longest prompt that can be admitted and no further.
Ids encode_text(const CompletionContext& context, const CompletionRequest& request,
                const std::string& text, std::span<const size_t> walls = {}) {
  const int64_t most = context.served.max_model_len - 1;  // one is for the output
  std::optional<Ids> ids = context.tokenizer.encode_at_most(
      static_cast<size_t>(most), text, {.add_special_tokens = request.add_special, .walls = walls});
  if (ids) return std::move(*ids);
  throw ApiError(400,
                 fmt::format("The prompt has more than {} tokens ({} bytes of text); the maximum "
                             "context length is {} tokens, of which at least 1 is for the output.",
                             most, text.size(), context.served.max_model_len),
                 "BadRequestError", std::string(request.format->prompt_field));
}

Ids encode_prompt(const CompletionContext& context, const CompletionRequest& request,
                  const Prompt& prompt) {
  if (const auto* ids = std::get_if<Ids>(&prompt)) return *ids;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    return encode_text(context, request, *text);
  }
  const text::RenderedChat chat = context.chat->render(std::get<text::ChatInput>(prompt));
  return encode_text(context, request, chat.text, chat.walls);
}

// Ends early, with fewer prompts than asked for, once the client has `gone`.
std::vector<Ids> encode_all(const CompletionContext& context, const CompletionRequest& request,
                            const std::stop_token& gone) {
  std::vector<Ids> all;
  for (const Prompt& prompt : request.prompts) {
    if (gone.stop_requested()) return all;
    all.push_back(encode_prompt(context, request, prompt));
  }
  for (const Ids& ids : all) {
    for (const int32_t id : ids) {
      if (id >= 0 && id < context.served.vocab) continue;
      throw ApiError(400,
                     fmt::format("the prompt holds token {}, and the model knows 0 to {} only: its "
                                 "tokenizer has more tokens than its embedding",
                                 id, context.served.vocab - 1),
                     "BadRequestError", std::string(request.format->prompt_field));
    }
  }
  return all;
}

// Short prompts are encoded here and now. Long ones and templates would hold up every other
// connection, so they have a worker.
asio::awaitable<std::vector<Ids>> encode(const CompletionContext& context,
                                         const CompletionRequest& request, std::stop_token gone) {
  constexpr size_t is_long = 32 << 10;
  size_t bytes = 0;
  for (const Prompt& prompt : request.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) bytes += text->size();
    if (std::holds_alternative<text::ChatInput>(prompt)) bytes = is_long;
  }
  if (bytes < is_long) co_return encode_all(context, request, gone);

  const asio::any_io_executor home = co_await asio::this_coro::executor;
  std::vector<Ids> all;
  std::exception_ptr failure;
  co_await asio::post(asio::bind_executor(context.workers, asio::use_awaitable));
  try {
    all = encode_all(context, request, gone);
  } catch (...) {
    failure = std::current_exception();
  }
  co_await asio::post(asio::bind_executor(home, asio::use_awaitable));
  if (failure) std::rethrow_exception(failure);
  co_return all;
}

// What no waiting can make fit is the request's own fault, not an overload.
void refuse_too_many(const CompletionContext& context, const CompletionRequest& request) {
  const int64_t wanted = static_cast<int64_t>(request.prompts.size()) * request.n;
  const int64_t most = context.engine.max_requests();
  if (wanted <= most) return;
  throw ApiError(400,
                 fmt::format("the request asks for {} completions ({} prompts times n = {}), and "
                             "this server takes at most {} at once (--max-queued-requests and "
                             "--max-num-seqs together); send fewer in one request",
                             wanted, request.prompts.size(), request.n, most),
                 "BadRequestError",
                 request.n > most ? "n" : std::string(request.format->prompt_field));
}

void submit(const CompletionContext& context, const CompletionRequest& request,
            const std::vector<Ids>& prompts, EventQueue& events, std::vector<Running>& choices) {
  for (const Ids& ids : prompts) {
    for (int32_t i = 0; i < request.n; ++i) {
      engine::GenRequest generation = request.generation;
      generation.prompt = ids;
      generation.sampling.seed += static_cast<uint64_t>(i);  // or all n would be the same
      const engine::Submitted submitted =
          context.engine.submit(std::move(generation), events.sink(choices.size()));
      if (!submitted.admission.ok()) {
        throw ApiError(400, submitted.admission.message(), "BadRequestError",
                       std::string(request.format->prompt_field));
      }
      if (submitted.overloaded) {
        throw ApiError(503, "too many requests are waiting; try again later",
                       "ServiceUnavailableError");
      }
      if (!submitted.unavailable.empty()) {
        throw ApiError(500, "the engine does not run: " + submitted.unavailable,
                       "InternalServerError");
      }
      choices.push_back({submitted.id, Answer(context.tokenizer, request)});
    }
  }
}

// The prompt of n choices counts once.
Usage total_usage(const std::vector<Running>& choices, int32_t n) {
  Usage total;
  for (size_t i = 0; i < choices.size(); ++i) {
    const Usage& usage = choices[i].answer.usage();
    if (i % static_cast<size_t>(n) == 0) {
      total.prompt_tokens += usage.prompt_tokens;
      total.cached_tokens += usage.cached_tokens;
    }
    total.completion_tokens += usage.completion_tokens;
  }
  return total;
}

std::string sse(const std::string& data) {
  return "data: " + data + "\n\n";
}

}  // namespace

asio::awaitable<void> complete(const CompletionContext& context, const CompletionRequest& request,
                               const std::string& id, Responder& responder) {
  const Envelope envelope{id, context.served.name,
                          std::chrono::duration_cast<std::chrono::seconds>(
                              std::chrono::system_clock::now().time_since_epoch())
                              .count()};
  const AnswerFormat& format = *request.format;
  const auto events = std::make_shared<EventQueue>(co_await asio::this_coro::executor);
  const OpenQueues::Entry entry(context.open, events);
  std::stop_source gone;
  const std::shared_ptr<void> watch = responder.watch([events, gone]() mutable {
    gone.request_stop();
    events->close(EventQueue::Closed::client_gone);
  });
  std::vector<Running> choices;
  const Cancelling cancelling(context.engine, choices);
  refuse_too_many(context, request);
  {  // the engine has its own copy of the prompts: these end here
    const std::vector<Ids> prompts = co_await encode(context, request, gone.get_token());
    if (events->closed() == EventQueue::Closed::no) {
      submit(context, request, prompts, *events, choices);
    }
  }

  // g++ 12 takes no braced list of temporaries inside a coroutine, so these are functions.
  const auto chunk = [&](Running& choice, size_t index) {
    std::optional<Usage> usage;
    if (request.continuous_usage) usage = choice.answer.usage();
    std::string opening;
    if (format.opening && !std::exchange(choice.opened, true)) {
      opening = sse(format.opening(envelope, static_cast<int32_t>(index), usage));
    }
    std::vector<Choice> parts;
    parts.push_back(choice.answer.take(static_cast<int32_t>(index)));
    return opening + sse(format.chunk(envelope, parts, usage));
  };
  const auto whole = [&] {
    std::vector<Choice> parts;
    parts.reserve(choices.size());
    for (size_t i = 0; i < choices.size(); ++i) {
      parts.push_back(choices[i].answer.take(static_cast<int32_t>(i)));
    }
    return format.whole(envelope, parts, total_usage(choices, request.n));
  };
  const auto usage_chunk = [&] {
    return sse(format.chunk(envelope, std::vector<Choice>(), total_usage(choices, request.n)));
  };

  if (request.stream) co_await responder.start_stream("text/event-stream; charset=utf-8");
  std::optional<ApiError> failure;
  for (size_t running = request.prompts.size() * static_cast<size_t>(request.n); running > 0;) {
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
