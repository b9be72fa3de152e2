// HTTP/1.1 on Boost.Beast: connections, limits, time-outs. Knows nothing of what is served.
//
// One thread runs all connections as coroutines; handlers must not block it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace octet::server {

struct HttpLimits {
  size_t header_bytes = 16 << 10;
  size_t body_bytes = 32 << 20;
  std::chrono::seconds read_timeout{30};   // from the first byte of a request to its last
  std::chrono::seconds idle_timeout{75};   // between requests of one connection
  std::chrono::seconds write_timeout{30};  // of one write to a client that does not read
};

struct HttpRequest {
  std::string method, path, body;  // path without the query
  std::string authorization, request_id, origin;
};

// Writes the one response of a request: either send(), or start_stream() and write() until
// finish(). Every call throws boost::system::system_error when the client is gone or too slow.
class Responder {
 public:
  virtual ~Responder() = default;

  virtual boost::asio::awaitable<void> send(int status, std::string body,
                                            std::string_view content_type = "application/json") = 0;
  virtual boost::asio::awaitable<void> start_stream(std::string_view content_type) = 0;
  virtual boost::asio::awaitable<void> write(std::string data) = 0;
  virtual boost::asio::awaitable<void> finish() = 0;
  virtual bool started() const = 0;  // a status line has been sent

  // Calls `gone` once if the client closes the connection while the returned object lives.
  virtual std::shared_ptr<void> watch(std::function<void()> gone) = 0;
};

using HttpHandler =
    std::function<boost::asio::awaitable<void>(const HttpRequest& request, Responder& responder)>;

class HttpServer {
 public:
  // Listens on host:port (port 0: any free one). Throws Error if the address cannot be used.
  HttpServer(boost::asio::io_context& io, const std::string& host, int port, HttpLimits limits,
             HttpHandler handler);

  int port() const;
  // Accepts connections until the io_context stops.
  void start();

 private:
  boost::asio::awaitable<void> accept();
  boost::asio::awaitable<void> serve(boost::asio::ip::tcp::socket socket);

  boost::asio::io_context& io_;
  boost::asio::ip::tcp::acceptor acceptor_;
  HttpLimits limits_;
  HttpHandler handler_;
};

}  // namespace octet::server
