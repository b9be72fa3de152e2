#include "server/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <charconv>
#include <chrono>

#include "base/log.h"
#include "server/chat.h"
#include "server/completion.h"
#include "server/features.h"
#include "server/tokenize.h"
#include "server/web/page.h"
#include "server/worker.h"

namespace octet::server {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::system_clock;

constexpr std::string_view kModelPath = "/v1/models/";  // of one model
constexpr std::string_view kGet = "GET, HEAD, OPTIONS", kPost = "POST, OPTIONS",
                           kBoth = "GET, HEAD, POST, OPTIONS";

// Compares in a time that does not depend on where the two differ.
bool equal_secret(std::string_view given, std::string_view secret) {
  uint8_t difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < secret.size(); ++i) {
    const char other = i < given.size() ? given[i] : '\0';
    difference |= static_cast<uint8_t>(other ^ secret[i]);
  }
  return difference == 0;
}

// "org%2Fmodel" -> "org/model"; what is no such escape stays.
std::string unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size()) {
      const char* end = text.data() + i + 3;
      if (std::from_chars(text.data() + i + 1, end, value, 16).ptr == end) {
        out += static_cast<char>(value);
        i += 2;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

// As a label: a client may not make one of each method that it invents.
std::string counted_method(const std::string& method) {
  constexpr std::string_view known[] = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"};
  return std::ranges::find(known, method) == std::end(known) ? "other" : method;
}

bool allows(std::string_view methods, std::string_view method) {
  for (size_t at = 0; at <= methods.size(); at += 2) {  // ", "
    const size_t end = std::min(methods.find(',', at), methods.size());
    if (methods.substr(at, end - at) == method) return true;
    at = end;
  }
  return false;
}

}  // namespace

// Who may ask: everybody, or those that have a key where the server has one.
enum class Access : uint8_t { open, key };

struct Routes::Route {
  std::string_view path, methods;
  Access access;
  Done (Routes::*answer)(const HttpRequest&, Responder&);
};

const Routes::Route* Routes::find(std::string_view path) {
  static constexpr Route kRoutes[] = {
      {"/health", kGet, Access::open, &Routes::health},
      {"/ping", kGet, Access::open, &Routes::health},
      {"/version", kGet, Access::open, &Routes::version},
      {"/metrics", kGet, Access::open, &Routes::metrics},
      {"/v1/models", kGet, Access::key, &Routes::models},
      {"/v1/completions", kPost, Access::key, &Routes::completions},
      {"/v1/chat/completions", kPost, Access::key, &Routes::chat},
      {"/tokenize", kPost, Access::key, &Routes::tokenize},
      {"/detokenize", kPost, Access::key, &Routes::detokenize},
      {"/tokenizer_info", kGet, Access::key, &Routes::tokenizer_info},
      {"/debug/kernels", kGet, Access::key, &Routes::kernels},
      {"/v1/octet/baseline", kBoth, Access::key, &Routes::baseline},
      {"/v1/octet/microscope", kPost, Access::key, &Routes::microscope},
  };
  // The page says nothing of the model, so it needs no key; what it asks for does.
  static constexpr Route kPage = {"/", kGet, Access::open, &Routes::page};
  static constexpr Route kModel = {kModelPath, kGet, Access::key, &Routes::model};
  const auto* route = std::ranges::find(kRoutes, path, &Route::path);
  if (route != std::end(kRoutes)) return route;
  if (find_asset(path)) return &kPage;
  return path.starts_with(kModelPath) ? &kModel : nullptr;
}

Routes::Routes(const ServerOptions& options, engine::Engine& engine, const ServedText& text,
               asio::any_io_executor workers, asio::any_io_executor grammar_workers,
               BoundedLog* log, const ServedBaseline* baseline)
    : options_(options),
      engine_(engine),
      text_(text),
      workers_(std::move(workers)),
      grammar_workers_(std::move(grammar_workers)),
      metrics_(engine, {.model_name = options.served_name,
                        .vllm_names = options.vllm_metrics,
                        .facts = features_in_force(engine, text)}),
      random_(std::random_device{}()),
      seeds_(options.seed ? static_cast<uint64_t>(*options.seed) : random_()) {
  if (log) log_.emplace(*log, workers_, options_.model_hash);
  served_.name = options.served_name;
  served_.root = options.root;
  served_.created =
      std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count();
  served_.max_model_len = engine.max_model_len();
  served_.max_logprobs = engine.max_logprobs();
  served_.vocab = engine.model().config().vocab;
  served_.priorities = engine.scheduling().policy == sched::Policy::priority;
  served_.defaults = options.defaults;
  served_.force_usage = options.force_usage;
  served_.cached_usage = options.cached_usage;
  served_.tools = text.tools;
  if (!baseline) return;
  microscope_ =
      std::make_unique<MicroscopeService>(baseline->microscope, baseline->name, text_.tokenizer,
                                          engine.model().config().eos, served_, workers_);
}

void Routes::end_all() {
  open_->close_all(EventQueue::Closed::shutdown);
  if (microscope_) microscope_->stop();
}

void Routes::join() {
  if (microscope_) microscope_->join();
}

asio::awaitable<void> Routes::handle(const HttpRequest& request, Responder& to) {
  const auto begin = engine::RequestMetrics::Clock::now();
  StatusResponder responder(to);
  const auto count = [&] {
    const std::chrono::duration<double> took = engine::RequestMetrics::Clock::now() - begin;
    const Route* route = find(request.path);
    metrics_.count_http(route ? std::string(route->path) : "other", counted_method(request.method),
                        responder.status(), took.count());
  };
  try {
    co_await answer_any(request, responder);
  } catch (...) {
    count();
    throw;
  }
  count();
}

// Every failure becomes an answer, but for that of a client who left.
asio::awaitable<void> Routes::answer_any(const HttpRequest& request, Responder& responder) {
  std::optional<ApiError> failure;
  allow_origin(request, responder);
  try {
    co_await dispatch(request, responder);
  } catch (const ApiError& error) {
    failure = error;
  } catch (const Error& error) {
    failure = to_api_error(error);
  } catch (const boost::system::system_error&) {
    throw;  // the client is gone
  } catch (const std::exception& error) {
    log::error("{} {}: {}", request.method, request.path, error.what());
    failure = ApiError(500, "internal error", "InternalServerError");
  }
  if (!failure) co_return;
  if (responder.started()) throw ApiError(*failure);  // too late for a status: the connection ends
  if (failure->status == 401) responder.header("WWW-Authenticate", "Bearer");
  if (failure->status == 503) responder.header("Retry-After", "1");
  co_await responder.send(failure->status, error_json(*failure));
}

// A script of another origin sees an answer only if this lets it.
void Routes::allow_origin(const HttpRequest& request, Responder& responder) const {
  const std::vector<std::string>& allowed = options_.allowed_origins;
  if (allowed.empty()) return;
  const bool all = std::ranges::find(allowed, "*") != allowed.end();
  if (!all) responder.header("Vary", "Origin");
  if (!all && std::ranges::find(allowed, request.origin) == allowed.end()) return;
  responder.header("Access-Control-Allow-Origin", all ? "*" : request.origin);
  responder.header("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  if (request.method != "OPTIONS") return;
  responder.header("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
  responder.header("Access-Control-Allow-Headers", "Authorization, Content-Type, *");
  responder.header("Access-Control-Max-Age", "600");
}

// What is not said to be open to all needs a key, also a path that leads nowhere.
asio::awaitable<void> Routes::dispatch(const HttpRequest& request, Responder& responder) {
  const Route* route = find(request.path);
  const bool asks_only = request.method == "OPTIONS";
  if (request.request_id.size() > kMostRequestId) {
    throw ApiError(400,
                   fmt::format("the header X-Request-Id has {} bytes; accepted: at most {}",
                               request.request_id.size(), kMostRequestId),
                   "BadRequestError");
  }
  if (!(route && route->access == Access::open) && !has_key(request)) {
    if (!asks_only) refuse_without_key();
    // A browser asks without a key; which paths there are is not told.
    co_await responder.send(200, "", "");
    co_return;
  }
  if (!route) {
    throw ApiError(404,
                   fmt::format("there is nothing at {} {}; try /v1/completions, "
                               "/v1/chat/completions, /v1/models, /health or /version",
                               request.method, shortened(request.path, 200)),
                   "NotFoundError");
  }
  if (!allows(route->methods, request.method) || asks_only) {
    responder.header("Allow", std::string(route->methods));
  }
  if (!allows(route->methods, request.method)) {
    throw ApiError(405,
                   fmt::format("{} takes {}, not {}", request.path, route->methods, request.method),
                   "MethodNotAllowedError");
  }
  if (asks_only) {
    co_await responder.send(200, "", "");
  } else {
    co_await (this->*route->answer)(request, responder);
  }
}

// Whether the request has one of the server's keys, or the server has none.
bool Routes::has_key(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return true;
  constexpr std::string_view scheme = "Bearer ";
  const std::string_view given = request.authorization;
  bool known = false;
  if (boost::beast::iequals(given.substr(0, scheme.size()), scheme)) {
    // All of them are compared, whichever it is.
    for (const std::string& key : options_.api_keys) {
      known |= equal_secret(given.substr(scheme.size()), key);
    }
  }
  return known;
}

void Routes::refuse_without_key() {
  throw ApiError(401, "this server needs an API key: send it as 'Authorization: Bearer KEY'",
                 "AuthenticationError");
}

// Who asks: a header that is not checked could be made up for each request.
std::string Routes::client_of(const HttpRequest& request) const {
  return options_.api_keys.empty() ? request.client : request.authorization + '\n' + request.client;
}

void Routes::refuse_if_draining() const {
  if (!draining_) return;
  throw ApiError(503, "the server is shutting down", "ServiceUnavailableError");
}

std::shared_ptr<void> Routes::begin() {
  refuse_if_draining();
  ++*running_;
  return {nullptr, [running = running_](void*) { --*running; }};
}

// Alive means that steps end while there is work. Reads published numbers only, so that it is never
// behind work.
asio::awaitable<void> Routes::health(const HttpRequest&, Responder& responder) {
  refuse_if_draining();
  const engine::EngineStats stats = engine_.stats();
  if (!stats.fault.empty()) {
    throw ApiError(503, "the engine failed: " + stats.fault, "InternalServerError");
  }
  if (stats.seconds_since_step > options_.health_timeout_s) {
    throw ApiError(503,
                   fmt::format("no step has ended for {:.0f} s though work is pending",
                               stats.seconds_since_step),
                   "InternalServerError");
  }
  co_await responder.send(200, "", "text/plain");
}

asio::awaitable<void> Routes::version(const HttpRequest&, Responder& responder) {
  co_await responder.send(200, R"({"version":"0.1.0"})");
}

// Published numbers: at once, whatever the engine does.
asio::awaitable<void> Routes::metrics(const HttpRequest&, Responder& responder) {
  std::string text = metrics_.text();
  co_await responder.send(200, std::move(text), "text/plain; version=0.0.4; charset=utf-8");
}

asio::awaitable<void> Routes::models(const HttpRequest&, Responder& responder) {
  co_await responder.send(200, models_json(served_));
}

asio::awaitable<void> Routes::model(const HttpRequest& request, Responder& responder) {
  const std::string name = unescape(std::string_view(request.path).substr(kModelPath.size()));
  if (name != served_.name) refuse_model(name, served_.name);
  co_await responder.send(200, model_json(served_));
}

asio::awaitable<void> Routes::page(const HttpRequest& request, Responder& responder) {
  co_await send_asset(*find_asset(request.path), request, responder);
}

asio::awaitable<void> Routes::baseline(const HttpRequest& request, Responder& responder) {
  if (request.method != "POST") {
    co_await responder.send(200, MicroscopeService::describe(microscope_.get()));
    co_return;
  }
  const std::shared_ptr<void> running = begin();
  co_await microscope_of().continue_baseline(request, responder);
}

asio::awaitable<void> Routes::microscope(const HttpRequest& request, Responder& responder) {
  const std::shared_ptr<void> running = begin();
  co_await microscope_of().view(request, responder);
}

MicroscopeService& Routes::microscope_of() const {
  if (microscope_) return *microscope_;
  throw ApiError(404, "this server has no baseline to compare with; start it with --baseline MODEL",
                 "NotFoundError");
}

asio::awaitable<void> Routes::completions(const HttpRequest& request, Responder& responder) {
  co_await answer(request, parse_completion, "cmpl", responder);
}

asio::awaitable<void> Routes::chat(const HttpRequest& request, Responder& responder) {
  if (!text_.chat) throw ApiError(400, text_.why_no_chat, "BadRequestError", "messages");
  co_await answer(request, parse_chat, "chatcmpl", responder);
}

asio::awaitable<void> Routes::tokenize(const HttpRequest& request, Responder& responder) {
  std::string body;
  co_await on_worker(workers_, [&] {
    body = tokenize_json(request.body, served_, text_.tokenizer, text_.chat, text_.why_no_chat);
  });
  co_await responder.send(200, std::move(body));
}

asio::awaitable<void> Routes::detokenize(const HttpRequest& request, Responder& responder) {
  std::string body;
  co_await on_worker(workers_,
                     [&] { body = detokenize_json(request.body, served_, text_.tokenizer); });
  co_await responder.send(200, std::move(body));
}

asio::awaitable<void> Routes::tokenizer_info(const HttpRequest&, Responder& responder) {
  co_await responder.send(200, tokenizer_info_json(text_.tokenizer, text_.chat));
}

asio::awaitable<void> Routes::kernels(const HttpRequest&, Responder& responder) {
  co_await responder.send(200, text_.kernels);
}

// Once for each name, and for some hundred names at most: clients choose them.
void Routes::tell_unknown(const HttpRequest& request, const CompletionRequest& wanted) {
  for (const std::string& field : wanted.unknown_fields) {
    const std::string name = dump_json(OrderedJson(shortened(field, 60)));
    if (told_fields_.size() >= 200 || !told_fields_.insert(name).second) continue;
    log::info("{}: the field {} is not known and has no effect; told once", request.path, name);
  }
}

// X-Request-Id wins over the body's request_id, as vLLM has it.
Envelope Routes::envelope(const HttpRequest& request, const CompletionRequest& wanted,
                          const char* id_prefix) {
  Envelope envelope;
  envelope.nonce = fmt::format("{:016x}{:016x}", random_(), random_());
  const std::string& own = request.request_id.empty() ? wanted.id : request.request_id;
  envelope.id = fmt::format("{}-{}", id_prefix, own.empty() ? envelope.nonce : own);
  envelope.model = served_.name;
  envelope.created =
      std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count();
  return envelope;
}

asio::awaitable<void> Routes::answer(const HttpRequest& request, Parse parse, const char* id_prefix,
                                     Responder& responder) {
  const std::shared_ptr<void> running = begin();
  const auto arrival = engine::RequestMetrics::Clock::now();
  constexpr size_t is_large = 8 << 10;  // some 50 us of parsing
  CompletionRequest wanted;
  const uint64_t seed = seeds_();
  const auto read = [&] { wanted = parse(request.body, served_, seed); };
  if (request.body.size() < is_large) {
    read();
  } else {
    co_await on_worker(workers_, read);
  }
  tell_unknown(request, wanted);
  const Envelope known = envelope(request, wanted, id_prefix);
  const PromptEncoder prompts{text_.tokenizer, text_.chat, served_.max_model_len, served_.vocab,
                              workers_};
  const CompletionContext context{
      engine_,
      prompts,
      open_,
      log_ ? &*log_ : nullptr,
      {text_.grammars, text_.why_no_grammar, grammar_workers_, grammar_turns_, client_of(request)},
      metrics_.requests,
      arrival};
  const Asked asked{request.path, request.body};
  co_await complete(context, wanted, known, asked, responder);
}

}  // namespace octet::server
