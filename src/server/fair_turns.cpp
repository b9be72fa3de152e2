#include "server/fair_turns.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cmath>
#include <utility>

namespace octet::server {

namespace asio = boost::asio;

asio::awaitable<std::shared_ptr<void>> FairTurns::wait(std::string client, Clock::duration most) {
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
  forget_idle();
}

FairTurns::Clock::duration FairTurns::took_of(const Client& client) const {
  const std::chrono::duration<double> since = now_() - client.at;
  const double halves = since / std::chrono::duration<double>(kHalfLife);
  return std::chrono::duration_cast<Clock::duration>(client.took * std::exp2(-halves));
}

size_t FairTurns::places_of_costly() const {
  size_t places = 0;
  for (const auto& [name, client] : clients_) places += is_costly(client) ? client.has : 0;
  return places;
}

bool FairTurns::may(const Client& client) const {
  if (free_ == 0 || client.has >= most_each_) return false;
  return !is_costly(client) || places_of_costly() < most_each_;
}

// The turn that the client has been given.
std::shared_ptr<void> FairTurns::turn_of(const std::string& client) {
  return {this, [self = shared_from_this(), client, begin = now_()](void*) {
            self->leave(client, begin);
          }};
}

void FairTurns::leave(const std::string& name, Clock::time_point begin) {
  ++free_;
  Client& client = clients_.at(name);
  --client.has;
  client.took = took_of(client) + (now_() - begin);
  client.at = now_();
  forget_idle();
  admit();
}

// Of those that are idle: whose turns were short or long ago. The others stay, and are few, since
// each has had a place for long.
void FairTurns::forget_idle() {
  constexpr Clock::duration little = Clock::duration(kMuch) / 16;
  std::erase_if(clients_, [&](const auto& entry) {
    return entry.second.idle() && took_of(entry.second) <= little;
  });
}

// Gives free places to those who wait.
void FairTurns::admit() {
  while (free_ > 0 && (admit_one(false) || admit_one(true))) {
  }
}

// The next of the clients that are costly, or not; false if none of them may.
bool FairTurns::admit_one(bool costly) {
  const auto next = std::ranges::find_if(order_, [&](const std::string& name) {
    const Client& client = clients_.at(name);
    return is_costly(client) == costly && may(client);
  });
  if (next == order_.end()) return false;
  const std::string name = *next;
  order_.erase(next);
  Client& client = clients_.at(name);
  Waiter* waiter = client.waiting.front();
  client.waiting.pop_front();
  ++client.has;
  --free_;
  waiter->admitted = true;
  waiter->timer.cancel();
  if (!client.waiting.empty()) order_.push_back(name);
  return true;
}

size_t FairTurns::waiting() const {
  size_t all = 0;
  for (const auto& [name, client] : clients_) all += client.waiting.size();
  return all;
}

}  // namespace octet::server
