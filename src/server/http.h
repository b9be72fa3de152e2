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
  // Of the head: 431. So for the extensions of all chunks of a body together, and for its trailers.
  size_t header_bytes = 16 << 10;
  // Of the body: 413. As it is sent, with what frames its chunks, it may have header_bytes more.
  size_t body_bytes = 8 << 20;
  std::chrono::milliseconds read_timeout{30'000};   // from a request's head to its last byte: 408
  std::chrono::milliseconds idle_timeout{75'000};   // until a head is complete: 408, or the end if
                                                    // none has begun
  std::chrono::milliseconds write_timeout{30'000};  // of one write to a client that does not read
};

struct HttpRequest {
  std::string method, path, body;                                // path without the query
  std::string authorization, request_id, origin, if_none_match;  // of these headers, or ""
  std::string client;                                            // its address, without the port
};

// Bytes of an X-Request-Id that the response repeats; a handler may refuse a longer one.
inline constexpr size_t kMostRequestId = 128;

// Writes the one response of a request: either send(), or start_stream() and write() until
// finish(). Every call throws boost::system::system_error when the client is gone or too slow.
class Responder {
 public:
  virtual ~Responder() = default;

  // A header of the response, before it starts.
  virtual void header(std::string name, std::string value) = 0;
  virtual boost::asio::awaitable<void> send(int status, std::string body,
                                            std::string_view content_type = "application/json") = 0;
  virtual boost::asio::awaitable<void> start_stream(std::string_view content_type) = 0;
  virtual boost::asio::awaitable<void> write(std::string data) = 0;
  virtual boost::asio::awaitable<void> finish() = 0;
  virtual bool started() const = 0;  // a status line has been sent

  // Calls `gone` once if the client closes the connection, or only its sending side, while the
  // returned object lives.
  virtual std::shared_ptr<void> watch(std::function<void()> gone) = 0;
};

using HttpHandler =
    std::function<boost::asio::awaitable<void>(const HttpRequest& request, Responder& responder)>;

class HttpServer {
 public:
  // Binds host:port (port 0: any free one); host is an address or a name. Throws Error if it cannot
  // be used.
  HttpServer(boost::asio::io_context& io, const std::string& host, int port, HttpLimits limits,
             HttpHandler handler);

  int port() const;
  // Accepts connections from now on. Throws Error as the constructor does.
  void start();
  // Connections close after their response, those that are accepted from now on, too.
  void drain();
  // Accepts no more, and closes the connections on which no request is being answered; the others
  // close after their response.
  void stop();
  // Closes the others as well, in the middle of their response.
  void abort();
  // Connections on which a request is being answered.
  size_t busy() const;
  size_t connections() const;

 private:
  struct Shared;
  boost::asio::io_context& io_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::string place_;               // "host:port", in errors
  std::shared_ptr<Shared> shared_;  // with the coroutines, which may outlive this

  static boost::asio::awaitable<void> accept(std::shared_ptr<Shared> shared,
                                             boost::asio::ip::tcp::acceptor& acceptor);
  static boost::asio::awaitable<void> serve(std::shared_ptr<Shared> shared,
                                            boost::asio::ip::tcp::socket socket);
};

}  // namespace octet::server
