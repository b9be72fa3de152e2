// Turns at few places, taken in a fair order: each client's next after each other client's next,
// and one client never has all places. Nor have those together whose turns were long lately: where
// there are two places or more, one is left to the others, who also come first. So who can be
// served at once waits at most for the end of one turn, however many others fill theirs.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace octet::server {

// On the event loop alone.
class FairTurns : public std::enable_shared_from_this<FairTurns> {
 public:
  using Clock = std::chrono::steady_clock;

  // `now` is for tests.
  explicit FairTurns(size_t places, std::function<Clock::time_point()> now = Clock::now)
      : now_(std::move(now)), free_(places), most_each_(places > 1 ? places - 1 : 1) {}

  // Long is what took more than kMuch together; what was taken is forgotten by halves.
  static constexpr std::chrono::seconds kMuch{1}, kHalfLife{30};

  // The turn of a client, at once or when it comes; it ends with the returned object. Null if it
  // has not come within `most`.
  boost::asio::awaitable<std::shared_ptr<void>> wait(std::string client, Clock::duration most);

  size_t waiting() const;

 private:
  struct Waiter {
    boost::asio::steady_timer timer;
    bool admitted = false;
  };
  struct Client {
    size_t has = 0;              // places
    std::list<Waiter*> waiting;  // in the order in which they came
    Clock::duration took{};      // by `at`, of turns that have ended
    Clock::time_point at{};
    bool idle() const { return has == 0 && waiting.empty(); }
  };

  Clock::duration took_of(const Client& client) const;  // by now
  bool is_costly(const Client& client) const { return took_of(client) > kMuch; }
  size_t places_of_costly() const;
  bool may(const Client& client) const;
  std::shared_ptr<void> turn_of(const std::string& client);
  void remove(const std::string& name, Waiter* waiter);
  void admit();
  bool admit_one(bool costly);
  void leave(const std::string& name, Clock::time_point begin);
  void forget_idle();

  std::function<Clock::time_point()> now_;
  size_t free_, most_each_;
  std::map<std::string, Client> clients_;  // those that are not idle, or took something lately
  std::deque<std::string> order_;          // of those that wait: whose turn is next
};

}  // namespace octet::server
