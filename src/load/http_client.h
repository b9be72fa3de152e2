// HTTP/1.1 requests to one server, many at once on one thread, over connections that are kept.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/url.h"
#include "load/request.h"

namespace octet::load {

using Headers = std::vector<std::pair<std::string, std::string>>;
using Clock = std::chrono::steady_clock;

struct HttpAnswer {
  int status = 0;  // 0: no answer came
  std::string content_type;
  Failure failure = Failure::none;  // connect, timeout or broken; a status is no failure here
  std::string message;
};

class HttpClient {
 public:
  // `origin`'s path is not used. `ca_file`: certificates to trust; "" = the system's. Throws Error
  // if they cannot be read.
  HttpClient(boost::asio::io_context& io, hub::Url origin, std::string ca_file = "");
  ~HttpClient();

  // Sends `body` (a GET where it is empty) to `target` and hands each part of the answer's body to
  // `sink` as it comes, with the status. If a kept connection turns out to be closed before
  // anything of the answer has come, the request is sent once more on a new one. `sink` returning
  // false ends the request and its connection: no failure. What it throws is thrown on.
  boost::asio::awaitable<HttpAnswer> request(
      std::string target, const Headers& headers, std::string body, Clock::time_point deadline,
      std::function<bool(int status, std::string_view part)> sink);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace octet::load
