// Carries token events from the engine's thread to the coroutine of a request.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "engine/engine.h"

namespace octet::server {

// Events of several choices in one queue. It holds at most what the request generates, so it needs
// no bound of its own.
class EventQueue : public std::enable_shared_from_this<EventQueue> {
 public:
  struct Item {
    size_t choice = 0;
    engine::TokenEvent event;
  };

  explicit EventQueue(boost::asio::any_io_executor executor)
      : executor_(executor), wake_(executor, boost::asio::steady_timer::time_point::max()) {}

  // For the engine: may be called on any thread, and outlives the request.
  engine::EventSink sink(size_t choice) {
    return [self = shared_from_this(), choice](engine::TokenEvent event) {
      boost::asio::post(self->executor_, [self, choice, event = std::move(event)]() mutable {
        self->items_.push_back({choice, std::move(event)});
        self->wake_.cancel();
      });
    };
  }

  // Ends the wait of next(); on the executor's thread.
  void close() {
    closed_ = true;
    wake_.cancel();
  }

  // The next event; nullopt once closed.
  boost::asio::awaitable<std::optional<Item>> next() {
    while (items_.empty() && !closed_) {
      co_await wake_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
    }
    if (closed_) co_return std::nullopt;
    Item item = std::move(items_.front());
    items_.pop_front();
    co_return item;
  }

 private:
  boost::asio::any_io_executor executor_;
  boost::asio::steady_timer wake_;
  std::deque<Item> items_;
  bool closed_ = false;
};

}  // namespace octet::server
