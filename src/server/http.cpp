#include "server/http.h"

#include <fmt/format.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "base/error.h"
#include "base/log.h"

namespace octet::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

class BeastResponder final : public Responder {
 public:
  BeastResponder(beast::tcp_stream& stream, const HttpLimits& limits, unsigned version,
                 bool keep_alive, std::string request_id)
      : stream_(stream),
        limits_(limits),
        version_(version),
        keep_alive_(keep_alive),
        request_id_(std::move(request_id)) {}

  asio::awaitable<void> send(int status, std::string body, std::string_view content_type) override {
    http::response<http::string_body> response;
    head(response, status, content_type);
    response.body() = std::move(body);
    response.prepare_payload();
    started_ = true;
    stream_.expires_after(limits_.write_timeout);
    co_await http::async_write(stream_, response, asio::use_awaitable);
  }

  asio::awaitable<void> start_stream(std::string_view content_type) override {
    http::response<http::empty_body> response;
    head(response, 200, content_type);
    response.set(http::field::cache_control, "no-cache");
    response.chunked(true);
    started_ = true;
    http::response_serializer<http::empty_body> serializer(response);
    stream_.expires_after(limits_.write_timeout);
    co_await http::async_write_header(stream_, serializer, asio::use_awaitable);
  }

  asio::awaitable<void> write(std::string data) override {
    stream_.expires_after(limits_.write_timeout);
    co_await asio::async_write(stream_, http::make_chunk(asio::buffer(data)), asio::use_awaitable);
  }

  asio::awaitable<void> finish() override {
    stream_.expires_after(limits_.write_timeout);
    co_await asio::async_write(stream_, http::make_chunk_last(), asio::use_awaitable);
  }

  bool started() const override { return started_; }
  bool keep_alive() const { return keep_alive_; }

  std::shared_ptr<void> watch(std::function<void()> gone) override {
    stream_.expires_never();  // generating may take longer than any time-out
    auto watcher = std::make_shared<Watcher>();
    watcher->gone = std::move(gone);
    stream_.socket().async_wait(
        tcp::socket::wait_read,
        asio::bind_cancellation_slot(watcher->cancel.slot(), [this, watcher](auto error) {
          if (error || !watcher->gone) return;
          // Readable: either the next request of this connection, or its end.
          char byte;
          const ssize_t got =
              ::recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
          if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) watcher->gone();
        }));
    // The handler may still be queued when this goes: it sees that nobody listens any more.
    return std::shared_ptr<void>(watcher.get(), [watcher](void*) {
      watcher->gone = nullptr;
      watcher->cancel.emit(asio::cancellation_type::terminal);
    });
  }

 private:
  struct Watcher {
    std::function<void()> gone;
    asio::cancellation_signal cancel;
  };

  template <typename Response>
  void head(Response& response, int status, std::string_view content_type) {
    response.result(static_cast<unsigned>(status));
    response.version(version_);
    response.set(http::field::server, "octet");
    response.set(http::field::content_type,
                 beast::string_view(content_type.data(), content_type.size()));
    if (!request_id_.empty()) response.set("X-Request-Id", request_id_);
    response.keep_alive(keep_alive_);
  }

  beast::tcp_stream& stream_;
  const HttpLimits& limits_;
  unsigned version_;
  bool keep_alive_;
  std::string request_id_;
  bool started_ = false;
};

std::string to_string(beast::string_view text) {
  return {text.data(), text.size()};
}

// What a request that cannot be parsed is answered with; 0 = nothing, the connection just ends.
int status_of(const beast::error_code& error) {
  if (error == http::error::body_limit) return 413;
  if (error == http::error::header_limit) return 431;
  if (error == http::error::end_of_stream || error == beast::error::timeout) return 0;
  return error.category() == make_error_code(http::error::bad_method).category() ? 400 : 0;
}

std::string error_body(int status, std::string_view message) {
  return fmt::format(
      R"({{"error":{{"message":"{}","type":"BadRequestError","param":null,"code":{}}}}})", message,
      status);
}

}  // namespace

HttpServer::HttpServer(asio::io_context& io, const std::string& host, int port, HttpLimits limits,
                       HttpHandler handler)
    : io_(io), acceptor_(io), limits_(limits), handler_(std::move(handler)) {
  beast::error_code error;
  const auto address = asio::ip::make_address(host, error);
  if (error) {
    throw Error({.what = "this is no IP address to listen on",
                 .where = "--host",
                 .value = host,
                 .accepted = "an IPv4 or IPv6 address, such as 127.0.0.1 or 0.0.0.0"});
  }
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(port));
  try {
    acceptor_.open(endpoint.protocol());
    acceptor_.set_option(asio::socket_base::reuse_address(true));
    acceptor_.bind(endpoint);
    acceptor_.listen();
  } catch (const boost::system::system_error& failure) {
    throw Error({.what = "cannot listen on this address",
                 .where = fmt::format("{}:{}", host, port),
                 .value = failure.code().message(),
                 .fix = "choose another --port, or stop the process that uses it"});
  }
}

int HttpServer::port() const {
  return acceptor_.local_endpoint().port();
}

void HttpServer::start() {
  asio::co_spawn(io_, accept(), asio::detached);
}

asio::awaitable<void> HttpServer::accept() {
  asio::steady_timer pause(io_);
  for (;;) {
    auto [error, socket] = co_await acceptor_.async_accept(asio::as_tuple(asio::use_awaitable));
    if (!error) {
      asio::co_spawn(io_, serve(std::move(socket)), asio::detached);
      continue;
    }
    if (error == asio::error::operation_aborted) co_return;
    // Out of descriptors, most likely: give connections time to end instead of spinning.
    log::warning("accept: {}", error.message());
    pause.expires_after(std::chrono::milliseconds(100));
    co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

asio::awaitable<void> HttpServer::serve(tcp::socket socket) {
  beast::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);  // a token a packet: Nagle would hold it back
  beast::tcp_stream stream(std::move(socket));
  beast::flat_buffer buffer;
  constexpr auto quiet = asio::as_tuple(asio::use_awaitable);
  try {
    for (;;) {
      http::request_parser<http::string_body> parser;
      parser.header_limit(static_cast<uint32_t>(limits_.header_bytes));
      parser.body_limit(limits_.body_bytes);
      stream.expires_after(limits_.idle_timeout);
      auto [error, count] = co_await http::async_read_header(stream, buffer, parser, quiet);
      if (!error) {
        stream.expires_after(limits_.read_timeout);
        if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
          http::response<http::empty_body> go_on(http::status::continue_, 11);
          co_await http::async_write(stream, go_on, asio::use_awaitable);
        }
        std::tie(error, count) = co_await http::async_read(stream, buffer, parser, quiet);
      }
      if (error) {
        const int status = status_of(error);
        if (status == 0) break;
        BeastResponder responder(stream, limits_, 11, false, {});
        co_await responder.send(status, error_body(status, error.message()), "application/json");
        break;
      }

      const auto& message = parser.get();
      const std::string target = to_string(message.target());
      HttpRequest request{.method = to_string(message.method_string()),
                          .path = target.substr(0, target.find('?')),
                          .body = parser.get().body(),
                          .authorization = to_string(message[http::field::authorization]),
                          .request_id = to_string(message["X-Request-Id"]),
                          .origin = to_string(message[http::field::origin])};
      BeastResponder responder(stream, limits_, message.version(), message.keep_alive(),
                               request.request_id.substr(0, 128));
      co_await handler_(request, responder);
      if (!responder.keep_alive()) break;
    }
  } catch (const boost::system::system_error&) {
    // The client went away, or did not read: its requests have been cancelled by their handler.
  } catch (const std::exception& error) {
    log::error("connection: {}", error.what());
  }
  stream.socket().shutdown(tcp::socket::shutdown_both, ignored);
}

}  // namespace octet::server
