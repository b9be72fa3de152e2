// What is served where: paths, methods, who may, and how errors look.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>

#include "server/event_queue.h"
#include "server/fair_turns.h"
#include "server/metrics.h"
#include "server/microscope.h"
#include "server/request_log.h"
#include "server/server.h"

namespace octet::server {

inline constexpr size_t kGrammarWorkers = 2;

// All of it runs on the event loop.
class Routes {
 public:
  // `workers` runs what would hold up the event loop, `grammar_workers`, of which there are
  // kGrammarWorkers, what may take seconds. `log` and `baseline` may be null. All outlive this.
  Routes(const ServerOptions& options, engine::Engine& engine, const ServedText& text,
         boost::asio::any_io_executor workers, boost::asio::any_io_executor grammar_workers,
         BoundedLog* log, const ServedBaseline* baseline);

  boost::asio::awaitable<void> handle(const HttpRequest& request, Responder& responder);

  // New requests are answered with 503, and so is /health.
  void drain() { draining_ = true; }
  // Requests that are being answered.
  size_t running() const { return *running_; }
  // They end with an error.
  void end_all();
  // Waits for what runs on a thread of its own. After end_all().
  void join();

 private:
  using Done = boost::asio::awaitable<void>;
  using Parse = CompletionRequest (*)(const std::string& body, const ServedModel& served,
                                      uint64_t default_seed);
  struct Route;
  static const Route* find(std::string_view path);
  Done answer_any(const HttpRequest& request, Responder& responder);
  Done dispatch(const HttpRequest& request, Responder& responder);
  void allow_origin(const HttpRequest& request, Responder& responder) const;
  bool has_key(const HttpRequest& request) const;
  [[noreturn]] static void refuse_without_key();
  std::string client_of(const HttpRequest& request) const;
  void refuse_if_draining() const;
  // Counts a request as being answered while the result lives. ApiError 503 while draining.
  std::shared_ptr<void> begin();

  Done health(const HttpRequest& request, Responder& responder);
  Done version(const HttpRequest& request, Responder& responder);
  Done metrics(const HttpRequest& request, Responder& responder);
  Done models(const HttpRequest& request, Responder& responder);
  Done model(const HttpRequest& request, Responder& responder);
  Done completions(const HttpRequest& request, Responder& responder);
  Done chat(const HttpRequest& request, Responder& responder);
  Done tokenize(const HttpRequest& request, Responder& responder);
  Done detokenize(const HttpRequest& request, Responder& responder);
  Done tokenizer_info(const HttpRequest& request, Responder& responder);
  Done kernels(const HttpRequest& request, Responder& responder);
  Done page(const HttpRequest& request, Responder& responder);
  Done baseline(const HttpRequest& request, Responder& responder);
  Done microscope(const HttpRequest& request, Responder& responder);
  MicroscopeService& microscope_of() const;  // ApiError 404 without a baseline
  // Reads the body, on a worker if it is large, and answers it.
  Done answer(const HttpRequest& request, Parse parse, const char* id_prefix, Responder& responder);
  Envelope envelope(const HttpRequest& request, const CompletionRequest& wanted,
                    const char* id_prefix);
  void tell_unknown(const HttpRequest& request, const CompletionRequest& wanted);

  const ServerOptions& options_;
  engine::Engine& engine_;
  const ServedText text_;
  boost::asio::any_io_executor workers_, grammar_workers_;
  std::shared_ptr<FairTurns> grammar_turns_ = std::make_shared<FairTurns>(kGrammarWorkers);
  Metrics metrics_;
  std::optional<RequestLog> log_;
  std::shared_ptr<OpenQueues> open_ = std::make_shared<OpenQueues>();
  bool draining_ = false;
  std::shared_ptr<size_t> running_ = std::make_shared<size_t>(0);  // with the coroutines
  ServedModel served_;
  std::mt19937_64 random_;                         // of ids
  std::mt19937_64 seeds_;                          // of unseeded requests
  std::set<std::string> told_fields_;              // unknown ones, each of which is told once
  std::unique_ptr<MicroscopeService> microscope_;  // null: no baseline
};

}  // namespace octet::server
