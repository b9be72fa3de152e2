// What is served where: paths, methods, who may, and how errors look.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <memory>
#include <random>
#include <string_view>

#include "server/event_queue.h"
#include "server/server.h"

namespace octet::server {

// All of it runs on the event loop.
class Routes {
 public:
  // `workers` runs what would hold up the event loop. All outlive this.
  Routes(const ServerOptions& options, engine::Engine& engine, const ServedText& text,
         boost::asio::any_io_executor workers);

  boost::asio::awaitable<void> handle(const HttpRequest& request, Responder& responder);

  // Requests that are being answered end with an error.
  void end_all() { open_->close_all(EventQueue::Closed::shutdown); }

 private:
  struct Route;
  boost::asio::awaitable<void> dispatch(const HttpRequest& request, Responder& responder);
  boost::asio::awaitable<void> health(const HttpRequest& request, Responder& responder);
  boost::asio::awaitable<void> version(const HttpRequest& request, Responder& responder);
  boost::asio::awaitable<void> models(const HttpRequest& request, Responder& responder);
  boost::asio::awaitable<void> model(const HttpRequest& request, Responder& responder);
  boost::asio::awaitable<void> completions(const HttpRequest& request, Responder& responder);
  boost::asio::awaitable<void> chat(const HttpRequest& request, Responder& responder);
  boost::asio::awaitable<void> answer(const HttpRequest& request, const CompletionRequest& wanted,
                                      const char* id_prefix, Responder& responder);
  void authorize(const HttpRequest& request) const;
  static const Route* find(std::string_view path);

  const ServerOptions& options_;
  engine::Engine& engine_;
  const ServedText text_;
  boost::asio::any_io_executor workers_;
  std::shared_ptr<OpenQueues> open_ = std::make_shared<OpenQueues>();
  ServedModel served_;
  std::mt19937_64 random_;  // of ids and unseeded requests
};

}  // namespace octet::server
