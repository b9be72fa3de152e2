#include "server/microscope.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <functional>
#include <list>
#include <stop_token>
#include <utility>

#include "server/request.h"
#include "server/worker.h"
#include "text/detokenizer.h"

namespace octet::server {
namespace {

namespace asio = boost::asio;

constexpr size_t kMostWaiting = 8;  // requests, the one that runs included
constexpr int kNiceness = 10;       // of the thread: the engine's come first

double mean_of(const std::vector<engine::TokenView>& views, int64_t first,
               double (*value)(const engine::TokenView&)) {
  double sum = 0;
  int64_t count = 0;
  for (size_t i = 0; i < views.size(); ++i) {
    if (static_cast<int64_t>(i) + 1 < first) continue;
    sum += value(views[i]);
    ++count;
  }
  return count > 0 ? sum / static_cast<double>(count) : 0.0;
}

}  // namespace

namespace {

[[noreturn]] void refuse_length(const char* field, int64_t most) {
  refuse(field,
         fmt::format("{} has more tokens than the microscope holds: prompt and output together "
                     "may have {} (--microscope-tokens)",
                     field, most));
}

}  // namespace

MicroscopeRequest parse_microscope(const std::string& text, const ServedModel& served,
                                   int64_t most_tokens) {
  const Json json = parse_json(text, kBodyName);
  const JsonView body(json, kBodyName);
  const std::string model = body.get<std::string>("model", served.name);
  if (model != served.name) refuse_model(model, served.name);
  MicroscopeRequest request;
  if (body.has("tokens") == body.has("prompt")) {
    refuse("tokens",
           "send either tokens, the ids of prompt and output, or prompt and completion as texts");
  }
  if (body.has("tokens")) {
    if (body.has("completion"))
      refuse("completion", "completion goes with prompt, not with tokens");
    const Json& tokens = json.at("tokens");
    if (tokens.is_array() && static_cast<int64_t>(tokens.size()) > most_tokens) {
      refuse_length("tokens", most_tokens);
    }
    request.tokens = token_ids(tokens, "tokens", served.vocab);
    if (request.tokens.empty()) refuse("tokens", "tokens is empty: there is nothing to look at");
    request.prompt_tokens =
        integer(body, "prompt_tokens", 1, 1, static_cast<int32_t>(request.tokens.size()));
  } else {
    request.prompt = body.get<std::string>("prompt");
    request.completion = body.get<std::string>("completion", "");
  }
  if (body.has("position")) request.position = integer(body, "position", 1, 1);
  request.top = static_cast<size_t>(integer(body, "top", 5, 0, 20));
  request.max_tokens = integer(body, "max_tokens", 64, 1, 4096);
  return request;
}

class MicroscopeService::Impl {
 public:
  Impl(engine::Microscope& microscope, std::string baseline, const text::Tokenizer& tokenizer,
       std::vector<int32_t> end_tokens, const ServedModel& served, asio::any_io_executor workers)
      : microscope_(microscope),
        baseline_(std::move(baseline)),
        tokenizer_(tokenizer),
        end_tokens_(std::move(end_tokens)),
        served_(served),
        workers_(std::move(workers)) {
    asio::post(thread_, [this] {
      // Where the system does not allow it, the thread keeps its priority.
      (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);
      microscope_.enter_thread();
    });
  }

  // Runs `work(stop)` on the thread and sends the JSON that it returns; nothing if the client left.
  using Work = std::function<std::optional<OrderedJson>(const std::stop_token& stop)>;
  asio::awaitable<void> answer(Responder& responder, const Work& work);

  // Of a large body off the event loop.
  asio::awaitable<MicroscopeRequest> read(const std::string& body) const;
  std::optional<OrderedJson> view(const MicroscopeRequest& request, const std::stop_token& stop);
  std::optional<OrderedJson> continuation(const MicroscopeRequest& request,
                                          const std::stop_token& stop);

  void stop() {
    open_->stopped = true;
    for (std::stop_source& source : open_->sources) source.request_stop();
  }
  void join() { thread_.join(); }

  std::string describe() const {
    return dump_json(OrderedJson{{"object", "octet.baseline"},
                                 {"baseline", baseline_},
                                 {"max_tokens", microscope_.max_tokens()},
                                 {"parts", microscope_.has_parts()}});
  }

 private:
  // The requests that run or wait. Coroutines may outlive the service by a moment.
  struct Open {
    std::list<std::stop_source> sources;
    bool stopped = false;
  };
  class Entry {
   public:
    explicit Entry(std::shared_ptr<Open> open) : open_(std::move(open)) {
      open_->sources.emplace_front();
      at_ = open_->sources.begin();
    }
    ~Entry() { open_->sources.erase(at_); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    std::stop_source& source() { return *at_; }

   private:
    std::shared_ptr<Open> open_;
    std::list<std::stop_source>::iterator at_;
  };

  // Tokens and where the output begins, within what the microscope holds.
  std::pair<std::vector<int32_t>, int64_t> tokens_of(const MicroscopeRequest& request) const;
  OrderedJson token_json(size_t index, const engine::TokenView& view, std::string text) const;
  OrderedJson head(const char* object) const {
    return {{"object", object}, {"model", served_.name}, {"baseline", baseline_}};
  }

  engine::Microscope& microscope_;
  const std::string baseline_;
  const text::Tokenizer& tokenizer_;
  const std::vector<int32_t> end_tokens_;
  const ServedModel& served_;
  const asio::any_io_executor workers_;
  std::shared_ptr<Open> open_ = std::make_shared<Open>();
  asio::thread_pool thread_{1};
};

asio::awaitable<void> MicroscopeService::Impl::answer(Responder& responder, const Work& work) {
  if (open_->stopped) {
    throw ApiError(503, "the server is shutting down", "ServiceUnavailableError");
  }
  if (open_->sources.size() >= kMostWaiting) {
    throw ApiError(
        503,
        fmt::format("{} requests for the microscope run or wait already; try again later",
                    kMostWaiting),
        "ServiceUnavailableError");
  }
  const std::shared_ptr<Open> open = open_;
  Entry entry(open);
  const std::stop_token stop = entry.source().get_token();
  const auto gone = std::make_shared<bool>(false);
  const std::shared_ptr<void> watch = responder.watch([source = entry.source(), gone]() mutable {
    *gone = true;
    source.request_stop();
  });

  const asio::any_io_executor home = co_await asio::this_coro::executor;
  std::optional<OrderedJson> result;
  std::exception_ptr failure;
  co_await asio::post(asio::bind_executor(thread_.get_executor(), asio::use_awaitable));
  try {
    if (!stop.stop_requested()) result = work(stop);
  } catch (...) {
    failure = std::current_exception();
  }
  co_await asio::post(asio::bind_executor(home, asio::use_awaitable));
  if (failure) std::rethrow_exception(failure);
  if (*gone) co_return;
  if (!result) throw ApiError(503, "the server is shutting down", "ServiceUnavailableError");
  co_await responder.send(200, dump_json(*result), "application/json");
}

std::pair<std::vector<int32_t>, int64_t> MicroscopeService::Impl::tokens_of(
    const MicroscopeRequest& request) const {
  const int64_t most = microscope_.max_tokens();
  if (!request.tokens.empty()) return {request.tokens, request.prompt_tokens};
  std::optional<std::vector<int32_t>> ids =
      tokenizer_.encode_at_most(static_cast<size_t>(most), request.prompt);
  if (!ids) refuse_length("prompt", most);
  const auto prompt_tokens = static_cast<int64_t>(ids->size());
  const auto more = tokenizer_.encode_at_most(static_cast<size_t>(most) - ids->size(),
                                              request.completion, {.add_special_tokens = false});
  if (!more) refuse_length("completion", most);
  ids->insert(ids->end(), more->begin(), more->end());
  if (ids->empty()) refuse("prompt", "prompt has no token: there is nothing to look at");
  for (const int32_t id : *ids) {
    if (id < served_.vocab) continue;
    refuse("prompt", fmt::format("the prompt holds token {}, and the model knows 0 to {} only", id,
                                 served_.vocab - 1));
  }
  return {std::move(*ids), std::max<int64_t>(prompt_tokens, 1)};
}

OrderedJson MicroscopeService::Impl::token_json(size_t index, const engine::TokenView& view,
                                                std::string text) const {
  OrderedJson best = OrderedJson::array();
  for (const engine::Alternative& one : view.alternatives) {
    best.push_back({{"token", tokenizer_.decode({&one.token, 1}, false)},
                    {"id", one.token},
                    {"logprob", one.served},
                    {"baseline_logprob", one.baseline}});
  }
  return {{"index", index},
          {"id", view.token},
          {"token", tokenizer_.decode({&view.token, 1}, false)},
          {"text", std::move(text)},
          {"kl", view.kl},
          {"same_top1", view.same_top1},
          {"logprob", view.served},
          {"baseline_logprob", view.baseline},
          {"alternatives", std::move(best)}};
}

asio::awaitable<MicroscopeRequest> MicroscopeService::Impl::read(const std::string& body) const {
  constexpr size_t is_large = 8 << 10;
  MicroscopeRequest request;
  const auto parse = [&] { request = parse_microscope(body, served_, microscope_.max_tokens()); };
  if (body.size() < is_large) {
    parse();
  } else {
    co_await on_worker(workers_, parse);
  }
  co_return request;
}

std::optional<OrderedJson> MicroscopeService::Impl::view(const MicroscopeRequest& request,
                                                         const std::stop_token& stop) {
  const auto [tokens, prompt_tokens] = tokens_of(request);
  OrderedJson out = head("octet.microscope");
  out["prompt_tokens"] = prompt_tokens;
  if (request.position) {
    if (*request.position >= static_cast<int64_t>(tokens.size())) {
      refuse("position", fmt::format("position must be from 1 to {}, the place of the last token, "
                                     "got {}",
                                     tokens.size() - 1, *request.position));
    }
    if (!microscope_.has_parts()) {
      refuse("position",
             "the baseline has other layers than the model, so that they cannot be compared; leave "
             "position out");
    }
    const auto parts = microscope_.parts(tokens, *request.position, stop);
    if (!parts) return std::nullopt;
    out["position"] = *request.position;
    out["parts"] = OrderedJson::array();
    for (const engine::PartView& part : *parts) {
      out["parts"].push_back({{"layer", part.layer},
                              {"part", name_of(part.part)},
                              {"difference", part.difference},
                              {"added", part.added},
                              {"share", part.share}});
    }
    return out;
  }
  const auto views = microscope_.compare(tokens, request.top, stop);
  if (!views) return std::nullopt;
  // The prompt's first token is predicted by nothing.
  text::Detokenizer detokenizer(tokenizer_, false);
  out["first"] = {{"id", tokens.front()}, {"text", detokenizer.push(tokens.front())}};
  out["tokens"] = OrderedJson::array();
  for (size_t i = 0; i < views->size(); ++i) {
    std::string text = detokenizer.push((*views)[i].token);
    if (i + 1 == views->size()) text += detokenizer.flush();
    out["tokens"].push_back(token_json(i + 1, (*views)[i], std::move(text)));
  }
  out["mean_kl"] = mean_of(*views, prompt_tokens, [](const engine::TokenView& v) { return v.kl; });
  out["top1_agreement"] = mean_of(
      *views, prompt_tokens, [](const engine::TokenView& v) { return v.same_top1 ? 1.0 : 0.0; });
  return out;
}

std::optional<OrderedJson> MicroscopeService::Impl::continuation(const MicroscopeRequest& request,
                                                                 const std::stop_token& stop) {
  const auto [tokens, prompt_tokens] = tokens_of(request);
  text::Detokenizer detokenizer(tokenizer_);
  std::vector<int32_t> ids;
  std::string text;
  const char* reason = "length";
  const bool done = microscope_.continue_baseline(tokens, stop, [&](int32_t token) {
    ids.push_back(token);
    if (std::ranges::find(end_tokens_, token) != end_tokens_.end()) {
      reason = "stop";
      return false;
    }
    text += detokenizer.push(token);
    return static_cast<int32_t>(ids.size()) < request.max_tokens;
  });
  if (!done) return std::nullopt;
  text += detokenizer.flush();
  OrderedJson out = head("octet.baseline");
  out["text"] = text;
  out["token_ids"] = ids;
  out["finish_reason"] = reason;
  return out;
}

MicroscopeService::MicroscopeService(engine::Microscope& microscope, std::string baseline,
                                     const text::Tokenizer& tokenizer,
                                     std::vector<int32_t> end_tokens, const ServedModel& served,
                                     asio::any_io_executor workers)
    : impl_(std::make_unique<Impl>(microscope, std::move(baseline), tokenizer,
                                   std::move(end_tokens), served, std::move(workers))) {}
MicroscopeService::~MicroscopeService() = default;

asio::awaitable<void> MicroscopeService::view(const HttpRequest& request, Responder& responder) {
  const MicroscopeRequest wanted = co_await impl_->read(request.body);
  const Impl::Work work = [this, &wanted](const std::stop_token& stop) {
    return impl_->view(wanted, stop);
  };
  co_await impl_->answer(responder, work);
}

asio::awaitable<void> MicroscopeService::continue_baseline(const HttpRequest& request,
                                                           Responder& responder) {
  const MicroscopeRequest wanted = co_await impl_->read(request.body);
  const Impl::Work work = [this, &wanted](const std::stop_token& stop) {
    return impl_->continuation(wanted, stop);
  };
  co_await impl_->answer(responder, work);
}

std::string MicroscopeService::describe(const MicroscopeService* service) {
  if (service) return service->impl_->describe();
  return dump_json(OrderedJson{{"object", "octet.baseline"}, {"baseline", nullptr}});
}

void MicroscopeService::stop() {
  impl_->stop();
}

void MicroscopeService::join() {
  impl_->join();
}

}  // namespace octet::server
