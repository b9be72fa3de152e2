#include "server/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <charconv>
#include <chrono>

#include "base/log.h"
#include "server/chat.h"
#include "server/completion.h"

namespace octet::server {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::system_clock;

constexpr std::string_view kModelPath = "/v1/models/";  // of one model
constexpr std::string_view kGet = "GET, HEAD, OPTIONS", kPost = "POST, OPTIONS";

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

bool allows(std::string_view methods, std::string_view method) {
  for (size_t at = 0; at <= methods.size(); at += 2) {  // ", "
    const size_t end = std::min(methods.find(',', at), methods.size());
    if (methods.substr(at, end - at) == method) return true;
    at = end;
  }
  return false;
}

}  // namespace

struct Routes::Route {
  std::string_view path, methods;
  asio::awaitable<void> (Routes::*answer)(const HttpRequest&, Responder&);
};

const Routes::Route* Routes::find(std::string_view path) {
  static constexpr Route kRoutes[] = {
      {"/health", kGet, &Routes::health},
      {"/ping", kGet, &Routes::health},
      {"/version", kGet, &Routes::version},
      {"/v1/models", kGet, &Routes::models},
      {"/v1/completions", kPost, &Routes::completions},
      {"/v1/chat/completions", kPost, &Routes::chat},
  };
  static constexpr Route kModel = {kModelPath, kGet, &Routes::model};
  const auto* route = std::ranges::find(kRoutes, path, &Route::path);
  if (route != std::end(kRoutes)) return route;
  return path.starts_with(kModelPath) ? &kModel : nullptr;
}

Routes::Routes(const ServerOptions& options, engine::Engine& engine, const ServedText& text,
               asio::any_io_executor workers)
    : options_(options),
      engine_(engine),
      text_(text),
      workers_(std::move(workers)),
      random_(std::random_device{}()) {
  served_.name = options.served_name;
  served_.root = options.root;
  served_.created =
      std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count();
  served_.max_model_len = engine.max_model_len();
  served_.max_logprobs = engine.max_logprobs();
  served_.vocab = engine.model().config().vocab;
}

asio::awaitable<void> Routes::handle(const HttpRequest& request, Responder& responder) {
  std::optional<ApiError> failure;
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

// Everything that reaches the model lies under /v1 and is guarded; the rest says nothing of it.
asio::awaitable<void> Routes::dispatch(const HttpRequest& request, Responder& responder) {
  const Route* route = find(request.path);
  const bool asks_only = request.method == "OPTIONS";
  if (request.path.starts_with("/v1") && !asks_only) authorize(request);
  if (!route) {
    throw ApiError(404,
                   fmt::format("there is nothing at {} {}; try /v1/completions, "
                               "/v1/chat/completions, /v1/models, /health or /version",
                               request.method, request.path),
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

void Routes::authorize(const HttpRequest& request) const {
  if (options_.api_key.empty()) return;
  constexpr std::string_view scheme = "Bearer ";
  const std::string_view given = request.authorization;
  if (boost::beast::iequals(given.substr(0, scheme.size()), scheme) &&
      equal_secret(given.substr(scheme.size()), options_.api_key)) {
    return;
  }
  throw ApiError(401, "this server needs an API key: send it as 'Authorization: Bearer KEY'",
                 "AuthenticationError");
}

// Alive means that steps end while there is work. Reads published numbers only, so that it is never
// behind work.
asio::awaitable<void> Routes::health(const HttpRequest&, Responder& responder) {
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

asio::awaitable<void> Routes::models(const HttpRequest&, Responder& responder) {
  co_await responder.send(200, models_json(served_));
}

asio::awaitable<void> Routes::model(const HttpRequest& request, Responder& responder) {
  const std::string name = unescape(std::string_view(request.path).substr(kModelPath.size()));
  if (name != served_.name) refuse_model(name, served_.name);
  co_await responder.send(200, model_json(served_));
}

asio::awaitable<void> Routes::completions(const HttpRequest& request, Responder& responder) {
  const CompletionRequest wanted = parse_completion(request.body, served_, random_());
  co_await answer(request, wanted, "cmpl", responder);
}

asio::awaitable<void> Routes::chat(const HttpRequest& request, Responder& responder) {
  const CompletionRequest wanted = parse_chat(request.body, served_, random_());
  if (!text_.chat) throw ApiError(400, text_.why_no_chat, "BadRequestError", "messages");
  co_await answer(request, wanted, "chatcmpl", responder);
}

asio::awaitable<void> Routes::answer(const HttpRequest& request, const CompletionRequest& wanted,
                                     const char* id_prefix, Responder& responder) {
  for (const std::string& field : wanted.unknown_fields) {
    log::debug("{}: the field '{}' is not known and has no effect", request.path, field);
  }
  const std::string id = fmt::format("{}-{:016x}{:016x}", id_prefix, random_(), random_());
  const CompletionContext context{engine_, text_.tokenizer, text_.chat, served_, workers_, open_};
  co_await complete(context, wanted, id, responder);
}

}  // namespace octet::server
