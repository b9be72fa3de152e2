#include "server/server.h"

#include <fmt/format.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <csignal>
#include <random>

#include "base/log.h"
#include "server/completion.h"

namespace octet::server {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::system_clock;

// Compares in a time that does not depend on where the two differ.
bool equal_secret(std::string_view given, std::string_view secret) {
  uint8_t difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < secret.size(); ++i) {
    const char other = i < given.size() ? given[i] : '\0';
    difference |= static_cast<uint8_t>(other ^ secret[i]);
  }
  return difference == 0;
}

class Routes {
 public:
  Routes(const ServerOptions& options, engine::Engine& engine, const text::Tokenizer& tokenizer)
      : options_(options), engine_(engine), tokenizer_(tokenizer), random_(std::random_device{}()) {
    served_.name = options.served_name;
    served_.root = options.root;
    served_.created =
        std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count();
    served_.max_model_len = engine.max_model_len();
    served_.vocab = engine.model().config().vocab;
  }

  asio::awaitable<void> handle(const HttpRequest& request, Responder& responder) {
    std::optional<ApiError> failure;
    try {
      co_await route(request, responder);
    } catch (const ApiError& error) {
      failure = error;
    } catch (const Error& error) {
      failure = to_api_error(error);
    } catch (const Fault& fault) {
      log::error("{} {}: {}", request.method, request.path, fault.what());
      failure = ApiError(500, "internal error", "InternalServerError");
    }
    if (!failure) co_return;
    if (responder.started()) throw *failure;  // too late for a status: the connection ends
    co_await responder.send(failure->status, error_json(*failure));
  }

 private:
  // Everything that reaches the model lies under /v1 and is guarded; the rest says nothing of it.
  asio::awaitable<void> route(const HttpRequest& request, Responder& responder) {
    if (request.path.starts_with("/v1")) authorize(request);
    if (request.path == "/health" || request.path == "/ping") {
      need(request, "GET");
      co_await health(responder);
    } else if (request.path == "/version") {
      need(request, "GET");
      co_await responder.send(200, R"({"version":"0.1.0"})");
    } else if (request.path == "/v1/models") {
      need(request, "GET");
      co_await responder.send(200, models_json(served_));
    } else if (request.path == "/v1/completions") {
      need(request, "POST");
      const CompletionRequest wanted = parse_completion(request.body, served_, random_());
      for (const std::string& field : wanted.unknown_fields) {
        log::debug("/v1/completions: the field '{}' is not known and has no effect", field);
      }
      const std::string id = fmt::format("cmpl-{:016x}{:016x}", random_(), random_());
      co_await complete({engine_, tokenizer_, served_}, wanted, id, responder);
    } else {
      throw ApiError(404,
                     fmt::format("there is nothing at {} {}; try /v1/completions, /v1/models, "
                                 "/health or /version",
                                 request.method, request.path),
                     "NotFoundError");
    }
  }

  static void need(const HttpRequest& request, std::string_view method) {
    if (request.method == method) return;
    throw ApiError(405, fmt::format("{} takes {}, not {}", request.path, method, request.method),
                   "MethodNotAllowedError");
  }

  void authorize(const HttpRequest& request) const {
    if (options_.api_key.empty()) return;
    constexpr std::string_view scheme = "Bearer ";
    const std::string_view given = request.authorization;
    if (given.starts_with(scheme) && equal_secret(given.substr(scheme.size()), options_.api_key)) {
      return;
    }
    throw ApiError(401, "this server needs an API key: send it as 'Authorization: Bearer KEY'",
                   "AuthenticationError");
  }

  // Alive means that steps end while there is work. Reads published numbers only, so that it is
  // never behind work.
  asio::awaitable<void> health(Responder& responder) {
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

  const ServerOptions& options_;
  engine::Engine& engine_;
  const text::Tokenizer& tokenizer_;
  ServedModel served_;
  std::mt19937_64 random_;  // of ids and unseeded requests; on the io thread only
};

// Ends the process soon after the engine has failed: streams get their error event first.
asio::awaitable<void> watch_engine(asio::io_context& io, engine::Engine& engine, int& exit_code) {
  asio::steady_timer timer(io);
  for (;;) {
    timer.expires_after(std::chrono::milliseconds(250));
    co_await timer.async_wait(asio::use_awaitable);
    const std::string fault = engine.stats().fault;
    if (fault.empty()) continue;
    log::error("the engine failed: {}", fault);
    exit_code = 1;
    timer.expires_after(std::chrono::seconds(2));
    co_await timer.async_wait(asio::use_awaitable);
    io.stop();
  }
}

}  // namespace

int serve(const ServerOptions& options, engine::Engine& engine, const text::Tokenizer& tokenizer,
          const std::function<void(int port)>& ready) {
  asio::io_context io(1);
  int exit_code = 0;
  Routes routes(options, engine, tokenizer);
  HttpServer http(io, options.host, options.port, options.limits,
                  [&routes](const HttpRequest& request, Responder& responder) {
                    return routes.handle(request, responder);
                  });
  asio::signal_set signals(io, SIGINT, SIGTERM);
  signals.async_wait([&io](auto error, int) {
    if (!error) io.stop();
  });
  asio::co_spawn(io, watch_engine(io, engine, exit_code), asio::detached);
  http.start();
  ready(http.port());
  io.run();
  return exit_code;
}

}  // namespace octet::server
