// Carries token events from the engine's thread to the coroutine of a request.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>

#include "engine/engine.h"

namespace octet::server {

// Events of several choices in one queue. It holds at most what the request generates, so it needs
// no bound of its own. All but what sink() returns is for the executor's thread.
//
// A sink posts to the executor: stop the engine before the io_context goes.
class EventQueue : public std::enable_shared_from_this<EventQueue> {
 public:
  struct Item {
    size_t choice = 0;
    engine::TokenEvent event;
  };

  explicit EventQueue(const boost::asio::any_io_executor& executor)
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

  // Why next() has nothing more to give.
  enum class Closed : uint8_t { no, client_gone, shutdown };
  void close(Closed why) {
    if (closed_ != Closed::no) return;
    closed_ = why;
    wake_.cancel();
  }
  Closed closed() const { return closed_; }

  // The next event; nullopt once closed.
  boost::asio::awaitable<std::optional<Item>> next() {
    while (items_.empty() && closed_ == Closed::no) {
      co_await wake_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
    }
    if (closed_ != Closed::no) co_return std::nullopt;
    Item item = std::move(items_.front());
    items_.pop_front();
    co_return item;
  }

 private:
  boost::asio::any_io_executor executor_;
  boost::asio::steady_timer wake_;
  std::deque<Item> items_;
  Closed closed_ = Closed::no;
};

// The queues of the requests that are being answered, so that a shutdown can end them.
class OpenQueues {
 public:
  // Those that are listed from now on are closed at once, too.
  void close_all(EventQueue::Closed why) {
    closed_ = why;
    for (EventQueue* queue : queues_) queue->close(why);
  }

  // Lists a queue while it lives.
  class Entry {
   public:
    Entry(std::shared_ptr<OpenQueues> all, std::shared_ptr<EventQueue> queue)
        : all_(std::move(all)), queue_(std::move(queue)) {
      all_->queues_.insert(queue_.get());
      if (all_->closed_ != EventQueue::Closed::no) queue_->close(all_->closed_);
    }
    ~Entry() { all_->queues_.erase(queue_.get()); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    std::shared_ptr<OpenQueues> all_;
    std::shared_ptr<EventQueue> queue_;
  };

 private:
  std::unordered_set<EventQueue*> queues_;
  EventQueue::Closed closed_ = EventQueue::Closed::no;
};

}  // namespace octet::server
