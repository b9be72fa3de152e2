#include "server/fair_turns.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

namespace octet::server {

namespace asio = boost::asio;

asio::awaitable<std::shared_ptr<void>> FairTurns::wait(std::string client,
                                                       std::chrono::steady_clock::duration most) {
  if (Client& mine = clients_[client]; mine.waiting.empty() && may(mine)) {
    ++mine.has;
    --free_;
    co_return turn_of(client);
  }
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  Waiter waiter{asio::steady_timer(executor, most)};
  // Also where the coroutine ends before its time.
  const auto forget = [self = shared_from_this(), client](Waiter* one) {
    self->remove(client, one);
  };
  const std::unique_ptr<Waiter, decltype(forget)> listed(&waiter, forget);
  Client& mine = clients_[client];
  if (mine.waiting.empty()) order_.push_back(client);
  mine.waiting.push_back(&waiter);
  co_await waiter.timer.async_wait(asio::as_tuple(asio::use_awaitable));
  if (waiter.admitted) co_return turn_of(client);
  co_return nullptr;
}

void FairTurns::remove(const std::string& name, Waiter* waiter) {
  const auto found = clients_.find(name);
  if (waiter->admitted || found == clients_.end()) return;
  Client& client = found->second;
  client.waiting.remove(waiter);
  if (client.waiting.empty()) std::erase(order_, name);
  if (client.idle()) clients_.erase(found);
}

// The turn that the client has been given.
std::shared_ptr<void> FairTurns::turn_of(const std::string& client) {
  return {this, [self = shared_from_this(), client](void*) { self->leave(client); }};
}

void FairTurns::leave(const std::string& name) {
  ++free_;
  Client& client = clients_.at(name);
  --client.has;
  if (client.idle()) clients_.erase(name);
  admit();
}

// Gives free places to those who wait, one client after the other.
void FairTurns::admit() {
  for (size_t seen = 0; seen < order_.size() && free_ > 0;) {
    const std::string name = std::move(order_.front());
    order_.pop_front();
    Client& client = clients_.at(name);
    if (!may(client)) {
      order_.push_back(name);
      ++seen;
      continue;
    }
    Waiter* next = client.waiting.front();
    client.waiting.pop_front();
    ++client.has;
    --free_;
    next->admitted = true;
    next->timer.cancel();
    if (!client.waiting.empty()) order_.push_back(name);
    seen = 0;
  }
}

size_t FairTurns::waiting() const {
  size_t all = 0;
  for (const auto& [name, client] : clients_) all += client.waiting.size();
  return all;
}

}  // namespace octet::server
