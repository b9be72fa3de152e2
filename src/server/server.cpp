#include "server/server.h"

#include <fmt/format.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>

#include "base/log.h"
#include "server/request_log.h"
#include "server/routes.h"

namespace octet::server {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

class Server::Impl {
 public:
  explicit Impl(ServerOptions options)
      : options_(std::move(options)),
        io_(1),
        http_(io_, options_.host, options_.port, options_.limits,
              [this](const HttpRequest& request, Responder& responder) {
                return routes_->handle(request, responder);
              }) {
    if (!options_.request_log.empty()) {
      request_log_.emplace(options_.request_log, options_.request_log_bytes);
    }
  }

  int port() const { return http_.port(); }
  void stop() {
    asio::post(io_, [this] { begin_stop("asked to"); });
  }
  int run(engine::Engine& engine, const ServedText& text, const std::function<void()>& ready,
          const ServedBaseline* baseline);

 private:
  asio::awaitable<void> watch_engine(engine::Engine& engine);
  asio::awaitable<void> drain();
  void begin_stop(const std::string& why);
  void on_signal();
  void close_connections();

  const ServerOptions options_;
  // From run() on; they outlive the coroutines. Grammars have threads of their own, so that none of
  // them holds up a prompt.
  std::optional<asio::thread_pool> workers_, grammar_workers_;
  asio::io_context io_;  // destroyed after the coroutines' owners
  asio::signal_set signals_{io_};
  std::unique_ptr<Routes> routes_;
  HttpServer http_;
  bool stopping_ = false;
  int exit_code_ = 0;
  std::optional<BoundedLog> request_log_;
};

// Ends the process soon after the engine has failed: streams get their error event first.
asio::awaitable<void> Server::Impl::watch_engine(engine::Engine& engine) {
  asio::steady_timer timer(io_);
  while (!stopping_) {
    timer.expires_after(std::chrono::milliseconds(250));
    co_await timer.async_wait(asio::use_awaitable);
    const std::string fault = engine.stats().fault;
    if (fault.empty()) continue;
    log::error("the engine failed: {}", fault);
    exit_code_ = 1;
    begin_stop("the engine failed");
  }
}

void Server::Impl::on_signal() {
  signals_.async_wait([this](auto error, int signal) {
    if (error) return;
    if (stopping_) {
      log::warning("a second signal: ending at once");
      std::_Exit(128 + signal);
    }
    begin_stop(signal == SIGINT ? "SIGINT" : signal == SIGHUP ? "SIGHUP" : "SIGTERM");
    on_signal();
  });
}

void Server::Impl::begin_stop(const std::string& why) {
  if (stopping_) return;
  stopping_ = true;
  http_.drain();
  routes_->drain();
  log::info("stopping ({}): {} requests are being answered and have {:.0f} s to end", why,
            routes_->running(), options_.shutdown_grace_s);
  asio::co_spawn(io_, drain(), asio::detached);
}

// Waits for running requests, which those that come meanwhile do not prolong; then ends them, then
// the event loop.
asio::awaitable<void> Server::Impl::drain() {
  asio::steady_timer timer(io_);
  const auto wait = [&timer] {
    timer.expires_after(std::chrono::milliseconds(20));
    return timer.async_wait(asio::use_awaitable);
  };
  const auto after = [](double seconds) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
  };
  const Clock::time_point grace = after(options_.shutdown_grace_s);
  while (routes_->running() > 0 && Clock::now() < grace) co_await wait();
  http_.stop();
  routes_->end_all();
  const Clock::time_point end = after(1.0);  // to send the error, or the rest of an answer
  while (http_.busy() > 0 && Clock::now() < end) co_await wait();
  io_.stop();
}

// Whatever is still open is closed, and its coroutines end while all that they refer to is there.
void Server::Impl::close_connections() {
  http_.abort();
  routes_->end_all();
  routes_->join();
  io_.restart();
  const Clock::time_point end = Clock::now() + std::chrono::seconds(1);
  while (http_.connections() > 0 && Clock::now() < end) {
    io_.run_one_for(std::chrono::milliseconds(10));
  }
}

int Server::Impl::run(engine::Engine& engine, const ServedText& text,
                      const std::function<void()>& ready, const ServedBaseline* baseline) {
  workers_.emplace(1);
  grammar_workers_.emplace(kGrammarWorkers);
  routes_ = std::make_unique<Routes>(options_, engine, text, workers_->get_executor(),
                                     grammar_workers_->get_executor(),
                                     request_log_ ? &*request_log_ : nullptr, baseline);
  signals_.add(SIGINT);
  signals_.add(SIGTERM);
  // The terminal went away; ignored under nohup, and then it stays so.
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) signals_.add(SIGHUP);
  on_signal();
  asio::co_spawn(io_, watch_engine(engine), asio::detached);
  http_.start();
  ready();
  io_.run();
  close_connections();
  workers_->join();
  grammar_workers_->join();
  signals_.clear();  // a signal from now on ends the process, however long the last step takes
  engine.stop();     // its sinks post to io_
  return exit_code_;
}

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() = default;

int Server::port() const {
  return impl_->port();
}

int Server::run(engine::Engine& engine, const ServedText& text, const std::function<void()>& ready,
                const ServedBaseline* baseline) {
  return impl_->run(engine, text, ready, baseline);
}

void Server::stop() {
  impl_->stop();
}

}  // namespace octet::server
