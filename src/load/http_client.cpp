#include "load/http_client.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <optional>

#include "base/error.h"

namespace octet::load {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace ssl = asio::ssl;
using tcp = asio::ip::tcp;
constexpr auto kQuiet = asio::as_tuple(asio::use_awaitable);
using Plain = beast::tcp_stream;
using Tls = beast::ssl_stream<beast::tcp_stream>;

// One connection, with or without TLS.
struct Connection {
  std::unique_ptr<Plain> plain;
  std::unique_ptr<Tls> tls;
  beast::flat_buffer buffer;
  bool used = false;  // for a request before this one

  Plain& lowest() { return tls ? beast::get_lowest_layer(*tls) : *plain; }
};

// What is under way.
struct Exchange {
  const std::string& target;
  const Headers& headers;
  const std::string& body;
  Clock::time_point deadline;
  const std::function<bool(int, std::string_view)>& sink;
  HttpAnswer answer;
  bool began = false;  // something of the answer has come
  bool keep = false;   // the connection may serve another request

  bool failed(const beast::error_code& error, Failure kind, std::string_view doing) {
    if (!error) return false;
    const bool late = error == beast::error::timeout;
    answer.failure = late ? Failure::timeout : kind;
    answer.message = fmt::format("{}: {}", doing, late ? "no time left" : error.message());
    return true;
  }
};

template <class Stream>
asio::awaitable<void> exchange(Stream& stream, Connection& connection, const hub::Url& origin,
                               Exchange& x) {
  const http::verb verb = x.body.empty() ? http::verb::get : http::verb::post;
  http::request<http::string_body> request(verb, x.target, 11, x.body);
  const std::string name = origin.origin();
  request.set(http::field::host, name.substr(name.find("://") + 3));
  request.set(http::field::user_agent, "octet");
  request.set(http::field::accept, "*/*");
  if (!x.body.empty()) request.set(http::field::content_type, "application/json");
  for (const auto& [key, value] : x.headers) request.set(key, value);
  request.prepare_payload();
  connection.lowest().expires_at(x.deadline);
  const auto [write_error, written] = co_await http::async_write(stream, request, kQuiet);
  if (x.failed(write_error, Failure::broken, "sending the request")) co_return;

  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  const auto [head_error, head] =
      co_await http::async_read_header(stream, connection.buffer, parser, kQuiet);
  x.began = head > 0;
  if (x.failed(head_error, Failure::broken, "waiting for the answer")) co_return;
  x.began = true;
  x.answer.status = static_cast<int>(parser.get().result_int());
  x.answer.content_type = parser.get()[http::field::content_type];

  std::array<char, 8192> part;
  while (!parser.is_done()) {
    parser.get().body().data = part.data();
    parser.get().body().size = part.size();
    auto [error, bytes] = co_await http::async_read_some(stream, connection.buffer, parser, kQuiet);
    if (error == http::error::need_buffer) error = {};
    const size_t got = part.size() - parser.get().body().size;
    if (got > 0 && !x.sink(x.answer.status, {part.data(), got})) co_return;
    // A server that never lets it wait leaves a stream's own timer no turn.
    if (!parser.is_done() && Clock::now() >= x.deadline) error = beast::error::timeout;
    if (x.failed(error, Failure::broken, "reading the answer")) co_return;
  }
  x.keep = parser.keep_alive();
}

}  // namespace

struct HttpClient::Impl {
  asio::io_context& io;
  const hub::Url origin;
  std::optional<ssl::context> context;
  std::vector<std::unique_ptr<Connection>> kept;
  std::optional<tcp::resolver::results_type> endpoints;  // looked up once

  // nullptr after a failure.
  asio::awaitable<std::unique_ptr<Connection>> connect(Exchange& x) {
    if (!endpoints) {
      tcp::resolver resolver(io);
      auto [error, found] = co_await resolver.async_resolve(origin.host, origin.port, kQuiet);
      if (x.failed(error, Failure::connect, "looking up " + origin.host)) co_return nullptr;
      endpoints = std::move(found);
    }
    auto connection = std::make_unique<Connection>();
    if (origin.tls) {
      connection->tls = std::make_unique<Tls>(io, *context);
    } else {
      connection->plain = std::make_unique<Plain>(io);
    }
    Plain& lowest = connection->lowest();
    lowest.expires_at(x.deadline);
    const auto [error, endpoint] = co_await lowest.async_connect(*endpoints, kQuiet);
    if (x.failed(error, Failure::connect, "connecting to " + origin.origin())) co_return nullptr;
    beast::error_code ignored;
    lowest.socket().set_option(tcp::no_delay(true), ignored);
    if (origin.tls) {
      Tls& tls = *connection->tls;
      tls.set_verify_callback(ssl::host_name_verification(origin.host));
      SSL_set_tlsext_host_name(tls.native_handle(), origin.host.c_str());
      const auto [handshake] = co_await tls.async_handshake(ssl::stream_base::client, kQuiet);
      if (x.failed(handshake, Failure::connect, "TLS with " + origin.origin())) co_return nullptr;
    }
    co_return connection;
  }

  asio::awaitable<std::unique_ptr<Connection>> take(Exchange& x) {
    if (kept.empty()) co_return co_await connect(x);
    std::unique_ptr<Connection> connection = std::move(kept.back());
    kept.pop_back();
    co_return connection;
  }
};

HttpClient::HttpClient(asio::io_context& io, hub::Url origin, std::string ca_file)
    : impl_(new Impl{io, std::move(origin), std::nullopt, {}, std::nullopt}) {
  if (!impl_->origin.tls) return;
  ssl::context& context = impl_->context.emplace(ssl::context::tls_client);
  context.set_verify_mode(ssl::verify_peer);
  beast::error_code error;
  if (ca_file.empty()) {
    context.set_default_verify_paths(error);
  } else {
    context.load_verify_file(ca_file, error);
  }
  if (error) {
    throw Error({.what = "cannot read the certificates to trust",
                 .where = ca_file.empty() ? "the system's" : ca_file,
                 .value = error.message(),
                 .fix = "install ca-certificates, or name a PEM file with --ca-file"});
  }
}

HttpClient::~HttpClient() = default;

asio::awaitable<HttpAnswer> HttpClient::request(std::string target, const Headers& headers,
                                                std::string body, Clock::time_point deadline,
                                                std::function<bool(int, std::string_view)> sink) {
  while (true) {
    Exchange x{target, headers, body, deadline, sink, {}};
    std::unique_ptr<Connection> connection = co_await impl_->take(x);
    if (!connection) co_return x.answer;
    if (connection->tls) {
      co_await exchange(*connection->tls, *connection, impl_->origin, x);
    } else {
      co_await exchange(*connection->plain, *connection, impl_->origin, x);
    }
    const bool stale = connection->used && !x.began && x.answer.failure == Failure::broken;
    if (stale) continue;
    if (x.keep && x.answer.failure == Failure::none) {
      connection->used = true;
      impl_->kept.push_back(std::move(connection));
    }
    co_return x.answer;
  }
}

}  // namespace octet::load
