#include "hub/http_get.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <exception>

#include "base/error.h"

namespace octet::hub {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace ssl = asio::ssl;
using tcp = asio::ip::tcp;
constexpr auto kQuiet = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::seconds kConnect{15};

struct Exchange {
  const Url& url;
  const Headers& headers;
  const HttpOptions& options;
  const std::function<bool(const Answer&)>& wants_body;
  const std::function<void(std::span<const char>)>& body;
  Answer answer;

  // Notes a failure; returns whether there was one.
  bool failed(const beast::error_code& error, std::string_view doing) {
    if (!error) return false;
    answer.failure = fmt::format("{}: {}", doing, error.message());
    return true;
  }
};

void read_head(const http::response<http::buffer_body>& message, Answer& answer) {
  answer.status = static_cast<int>(message.result_int());
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    answer.headers[name] = field.value();
  }
}

// The exchange over a stream that is connected.
template <class Stream>
asio::awaitable<void> exchange(Stream& stream, Exchange& x) {
  auto& lowest = beast::get_lowest_layer(stream);
  http::request<http::empty_body> request(http::verb::get, x.url.target, 11);
  const std::string origin = x.url.origin();
  request.set(http::field::host, origin.substr(origin.find("://") + 3));
  request.set(http::field::user_agent, "octet");
  request.set(http::field::accept, "*/*");
  request.set(http::field::connection, "close");
  for (const auto& [name, value] : x.headers) request.set(name, value);
  lowest.expires_after(x.options.idle);
  const auto [write_error, written] = co_await http::async_write(stream, request, kQuiet);
  if (x.failed(write_error, "sending the request")) co_return;

  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  parser.header_limit(64 * 1024);
  const auto [head_error, head] = co_await http::async_read_header(stream, buffer, parser, kQuiet);
  if (x.failed(head_error, "reading the answer")) co_return;
  read_head(parser.get(), x.answer);
  if (!x.wants_body(x.answer)) co_return;

  std::vector<char> part(64 * 1024);
  while (!parser.is_done()) {
    parser.get().body().data = part.data();
    parser.get().body().size = part.size();
    lowest.expires_after(x.options.idle);
    auto [error, bytes] = co_await http::async_read_some(stream, buffer, parser, kQuiet);
    if (error == http::error::need_buffer) error = {};
    const size_t got = part.size() - parser.get().body().size;
    if (got > 0) x.body({part.data(), got});
    if (x.failed(error, "reading the body")) co_return;
  }
}

asio::awaitable<bool> connect(beast::tcp_stream& stream, Exchange& x) {
  tcp::resolver resolver(co_await asio::this_coro::executor);
  const auto [resolve_error, endpoints] =
      co_await resolver.async_resolve(x.url.host, x.url.port, kQuiet);
  if (x.failed(resolve_error, "looking up " + x.url.host)) co_return false;
  stream.expires_after(kConnect);
  const auto [error, endpoint] = co_await stream.async_connect(endpoints, kQuiet);
  co_return !x.failed(error, "connecting to " + x.url.origin());
}

asio::awaitable<void> run_plain(Exchange& x) {
  beast::tcp_stream stream(co_await asio::this_coro::executor);
  if (co_await connect(stream, x)) co_await exchange(stream, x);
}

asio::awaitable<void> run_tls(Exchange& x) {
  ssl::context context(ssl::context::tls_client);
  context.set_verify_mode(ssl::verify_peer);
  beast::error_code error;
  if (x.options.ca_file.empty()) {
    context.set_default_verify_paths(error);
  } else {
    context.load_verify_file(x.options.ca_file, error);
  }
  if (error) {
    throw Error({.what = "cannot read the certificates to trust",
                 .where = x.options.ca_file.empty() ? "the system's" : x.options.ca_file,
                 .value = error.message(),
                 .fix = "install ca-certificates, or name a PEM file with --ca-file"});
  }
  beast::ssl_stream<beast::tcp_stream> stream(co_await asio::this_coro::executor, context);
  if (!co_await connect(beast::get_lowest_layer(stream), x)) co_return;
  stream.set_verify_callback(ssl::host_name_verification(x.url.host));
  SSL_set_tlsext_host_name(stream.native_handle(), x.url.host.c_str());
  beast::get_lowest_layer(stream).expires_after(kConnect);
  const auto [handshake] = co_await stream.async_handshake(ssl::stream_base::client, kQuiet);
  if (x.failed(handshake, "TLS with " + x.url.origin())) {
    // A certificate that is wrong now is wrong in a minute.
    x.answer.permanent = handshake.category() == asio::error::get_ssl_category();
    co_return;
  }
  co_await exchange(stream, x);
}

}  // namespace

Answer http_get(const Url& url, const Headers& headers, const HttpOptions& options,
                const std::function<bool(const Answer&)>& wants_body,
                const std::function<void(std::span<const char>)>& body) {
  Exchange x{url, headers, options, wants_body, body, {}};
  asio::io_context io(1);
  std::exception_ptr thrown;
  asio::co_spawn(io, url.tls ? run_tls(x) : run_plain(x),
                 [&](const std::exception_ptr& error) { thrown = error; });
  io.run();
  if (thrown) std::rethrow_exception(thrown);
  return std::move(x.answer);
}

}  // namespace octet::hub
