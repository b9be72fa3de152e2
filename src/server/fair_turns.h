// Turns at few places, taken in a fair order: each client's next after each other client's next,
// and one client never has all places.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>

namespace octet::server {

// On the event loop alone.
class FairTurns : public std::enable_shared_from_this<FairTurns> {
 public:
  explicit FairTurns(size_t places) : free_(places), most_each_(places > 1 ? places - 1 : 1) {}

  // The turn of a client, at once or when it comes; it ends with the returned object. Null if it
  // has not come within `most`.
  boost::asio::awaitable<std::shared_ptr<void>> wait(std::string client,
                                                     std::chrono::steady_clock::duration most);

  size_t waiting() const;

 private:
  struct Waiter {
    boost::asio::steady_timer timer;
    bool admitted = false;
  };
  struct Client {
    size_t has = 0;              // places
    std::list<Waiter*> waiting;  // in the order in which they came
    bool idle() const { return has == 0 && waiting.empty(); }
  };

  bool may(const Client& client) const { return free_ > 0 && client.has < most_each_; }
  std::shared_ptr<void> turn_of(const std::string& client);
  void remove(const std::string& name, Waiter* waiter);
  void admit();
  void leave(const std::string& name);

  size_t free_, most_each_;
  std::map<std::string, Client> clients_;  // those that are not idle
  std::deque<std::string> order_;          // of those that wait: whose turn is next
};

}  // namespace octet::server
