#include "server/http.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
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
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace octet::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
constexpr auto kQuiet = asio::as_tuple(asio::use_awaitable);

struct Connection {
  explicit Connection(tcp::socket socket) : stream(std::move(socket)) {}
  beast::tcp_stream stream;
  bool busy = false;  // a request is being answered
};

// Notices that the client of a connection has gone while nobody reads from it.
class Watcher : public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(tcp::socket& socket, std::function<void()> gone)
      : socket_(socket), timer_(socket.get_executor()), gone_(std::move(gone)) {}

  void start() {
    socket_.async_wait(tcp::socket::wait_read,
                       asio::bind_cancellation_slot(
                           cancel_.slot(), [self = shared_from_this()](beast::error_code error) {
                             if (!error) self->look();
                           }));
  }

  // Handlers may still be queued: they see that nobody listens, and do not touch the socket.
  void stop() {
    gone_ = nullptr;
    timer_.cancel();
    cancel_.emit(asio::cancellation_type::terminal);
  }

 private:
  void look() {
    if (!gone_) return;
    pollfd state{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
    if (::poll(&state, 1, 0) > 0) {
      std::exchange(gone_, nullptr)();
      return;
    }
    // Readable and not closed: the next request is here already, and an end behind it would wake
    // nobody.
    timer_.expires_after(std::chrono::milliseconds(500));
    timer_.async_wait([self = shared_from_this()](beast::error_code error) {
      if (!error) self->look();
    });
  }

  tcp::socket& socket_;
  asio::steady_timer timer_;
  asio::cancellation_signal cancel_;
  std::function<void()> gone_;
};

// Ends what waits on a stream after a time, and leaves the stream open: its own timer would close
// it, and the client could not be told why. If nothing waits at that moment, nothing is ended: ask
// passed() before each further operation.
class Deadline {
 public:
  Deadline(beast::tcp_stream& stream, std::chrono::milliseconds time)
      : state_(std::make_shared<State>(State{&stream})), timer_(stream.get_executor(), time) {
    stream.expires_never();
    timer_.async_wait([state = state_](beast::error_code error) {
      if (error || !state->stream) return;
      state->passed = true;
      state->stream->cancel();
    });
  }
  // The handler may be queued already: it sees that nobody waits any more.
  ~Deadline() { state_->stream = nullptr; }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  bool passed() const { return state_->passed; }

 private:
  struct State {
    beast::tcp_stream* stream;
    bool passed = false;
  };
  std::shared_ptr<State> state_;
  asio::steady_timer timer_;
};

class BeastResponder final : public Responder {
 public:
  struct Head {
    unsigned version = 11;
    bool keep_alive = false;
    bool body = true;  // false: the answer to HEAD
    std::string request_id;
  };

  BeastResponder(beast::tcp_stream& stream, const HttpLimits& limits, Head head,
                 const bool& closing)
      : stream_(stream), limits_(limits), head_(std::move(head)), closing_(closing) {}

  void header(std::string name, std::string value) override {
    headers_.emplace_back(std::move(name), std::move(value));
  }

  asio::awaitable<void> send(int status, std::string body, std::string_view content_type) override {
    http::response<http::string_body> response;
    fill(response, status, content_type);
    if (status != 304) response.content_length(body.size());  // there, it would be of the file
    if (head_.body) response.body() = std::move(body);
    started_ = true;
    stream_.expires_after(limits_.write_timeout);
    co_await http::async_write(stream_, response, asio::use_awaitable);
  }

  asio::awaitable<void> start_stream(std::string_view content_type) override {
    http::response<http::empty_body> response;
    chunked_ = head_.version >= 11;  // HTTP/1.0 knows an end of the connection only
    if (!chunked_) head_.keep_alive = false;
    fill(response, 200, content_type);
    response.set(http::field::cache_control, "no-cache");
    response.chunked(chunked_);
    started_ = true;
    http::response_serializer<http::empty_body> serializer(response);
    stream_.expires_after(limits_.write_timeout);
    co_await http::async_write_header(stream_, serializer, asio::use_awaitable);
  }

  asio::awaitable<void> write(std::string data) override {
    stream_.expires_after(limits_.write_timeout);
    if (chunked_) {
      co_await asio::async_write(stream_, http::make_chunk(asio::buffer(data)),
                                 asio::use_awaitable);
    } else {
      co_await asio::async_write(stream_, asio::buffer(data), asio::use_awaitable);
    }
  }

  asio::awaitable<void> finish() override {
    if (!chunked_) co_return;
    stream_.expires_after(limits_.write_timeout);
    co_await asio::async_write(stream_, http::make_chunk_last(), asio::use_awaitable);
  }

  bool started() const override { return started_; }
  bool keep_alive() const { return head_.keep_alive && !closing_; }

  std::shared_ptr<void> watch(std::function<void()> gone) override {
    auto watcher = std::make_shared<Watcher>(stream_.socket(), std::move(gone));
    watcher->start();
    return std::shared_ptr<void>(watcher.get(), [watcher](void*) { watcher->stop(); });
  }

 private:
  template <typename Response>
  void fill(Response& response, int status, std::string_view content_type) {
    response.result(static_cast<unsigned>(status));
    response.version(head_.version);
    response.set(http::field::server, "octet");
    if (!content_type.empty()) {
      response.set(http::field::content_type,
                   beast::string_view(content_type.data(), content_type.size()));
    }
    if (!head_.request_id.empty()) response.set("X-Request-Id", head_.request_id);
    for (const auto& [name, value] : headers_) response.set(name, value);
    response.keep_alive(keep_alive());
  }

  beast::tcp_stream& stream_;
  const HttpLimits& limits_;
  Head head_;
  const bool& closing_;
  std::vector<std::pair<std::string, std::string>> headers_;
  bool started_ = false, chunked_ = false;
};

std::string to_string(beast::string_view text) {
  return {text.data(), text.size()};
}

// What a request that cannot be parsed is answered with; 0 = nothing, the connection just ends.
int status_of(const beast::error_code& error) {
  if (error == http::error::body_limit) return 413;
  if (error == http::error::header_limit) return 431;
  if (error == http::error::end_of_stream || error == http::error::partial_message) return 0;
  return error.category() == make_error_code(http::error::bad_method).category() ? 400 : 0;
}

// Of a request's target, which a proxy may send with the scheme and the host (RFC 9112, 3.2.2).
std::string path_of(std::string target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    const size_t slash = target.find('/', scheme.size());
    target = slash == target.npos ? "/" : target.substr(slash);
    break;
  }
  return target.substr(0, target.find('?'));
}

std::string late_message(const char* part, std::chrono::milliseconds time) {
  return fmt::format("the request's {} was not complete within {} s", part,
                     static_cast<double>(time.count()) / 1000.0);
}

// A request that never reaches the handler. Status 0: there is nobody to tell.
struct Refusal {
  int status = 0;
  std::string message;
  std::string body() const {
    return fmt::format(
        R"({{"error":{{"message":"{}","type":"BadRequestError","param":null,"code":{}}}}})",
        message, status);
  }
};

using Parser = http::request_parser<http::string_body>;

// The body as it is sent, with the framing of its chunks and its trailers.
size_t sent_bytes(const HttpLimits& limits) {
  return limits.body_bytes + limits.header_bytes;
}

// Of a request that cannot be parsed.
Refusal refusal_of(const beast::error_code& error, const Parser& parser, const HttpLimits& limits) {
  const int status = status_of(error);
  if (status == 413) {
    std::string message = fmt::format("the body is larger than {} bytes", limits.body_bytes);
    if (parser.chunked()) {
      message += fmt::format(", or than {} with all that its chunks add", sent_bytes(limits));
    }
    return {status, message};
  }
  if (status == 431) {
    return {status, fmt::format("the {} larger than {} bytes",
                                parser.eager() ? "chunk extensions or trailers are" : "head is",
                                limits.header_bytes)};
  }
  return {status, "this is no valid HTTP/1.1 request: " + error.message()};
}

// Reads the head, or if the parser is eager the rest of the request. Ends with timed_out if the
// deadline has passed, and with `too_much` if what was parsed is larger than `most` bytes on the
// wire: the parser's own limits know nothing of what frames a chunk. What it cannot parse yet stays
// within the buffer's max_size. (http::async_read counts neither, and asks no deadline.)
asio::awaitable<beast::error_code> read_part(beast::tcp_stream& stream, beast::flat_buffer& buffer,
                                             Parser& parser, const Deadline& deadline, size_t most,
                                             http::error too_much) {
  size_t parsed = 0;
  while (parser.eager() ? !parser.is_done() : !parser.is_header_done()) {
    if (buffer.size() > 0) {
      beast::error_code error;
      const size_t used = parser.put(buffer.data(), error);
      buffer.consume(used);
      parsed += used;
      if (error && error != http::error::need_more) co_return error;
      if (parsed > most) co_return too_much;
      if (!error) continue;
    }
    if (deadline.passed()) co_return asio::error::timed_out;
    const size_t room = beast::read_size(buffer, 65536);
    if (room == 0) co_return http::error::header_limit;
    auto [error, count] = co_await stream.async_read_some(buffer.prepare(room), kQuiet);
    buffer.commit(count);
    if (error && deadline.passed()) co_return asio::error::timed_out;
    if (error) co_return error;
  }
  co_return beast::error_code{};
}

// Whether the body ends where the parser will end it. It passes over a Transfer-Encoding that does
// not end with `chunked`, or has it twice, and would take the body for the next request; whoever
// forwards requests to us may read it otherwise (RFC 9112, 6.1 and 11.2).
bool framed_as_read(const Parser& parser) {
  const auto [first, last] = parser.get().equal_range(http::field::transfer_encoding);
  if (first == last) return true;
  return std::next(first) == last && beast::iequals(first->value(), "chunked") &&
         parser.get().version() >= 11;
}

// Reads one request; nothing if it is whole and may be handled.
asio::awaitable<std::optional<Refusal>> read_request(beast::tcp_stream& stream,
                                                     beast::flat_buffer& buffer, Parser& parser,
                                                     const HttpLimits& limits) {
  parser.header_limit(static_cast<uint32_t>(limits.header_bytes));
  parser.body_limit(limits.body_bytes);
  {
    const Deadline deadline(stream, limits.idle_timeout);
    const beast::error_code error = co_await read_part(
        stream, buffer, parser, deadline, limits.header_bytes, http::error::header_limit);
    if (error == asio::error::timed_out && deadline.passed()) {
      // An idle connection just ends; one in the middle of a request is told.
      const bool began = parser.got_some() || buffer.size() > 0;
      co_return Refusal{began ? 408 : 0, late_message("head", limits.idle_timeout)};
    }
    if (error) co_return refusal_of(error, parser, limits);
  }
  if (parser.get().version() >= 11 && parser.get().count(http::field::host) != 1) {
    co_return Refusal{400,
                      "an HTTP/1.1 request has one Host header (RFC 9112, 3.2): send 'Host: NAME'"};
  }
  if (!framed_as_read(parser)) {
    co_return Refusal{400,
                      "the only Transfer-Encoding taken is 'chunked', alone and in HTTP/1.1; send "
                      "the body so, or with a Content-Length"};
  }
  const Deadline deadline(stream, limits.read_timeout);
  if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    http::response<http::empty_body> go_on(http::status::continue_, 11);
    co_await http::async_write(stream, go_on, asio::use_awaitable);
  }
  size_t extensions = 0;
  auto count_extensions = [&](uint64_t, beast::string_view text, beast::error_code& error) {
    extensions += text.size();
    if (extensions > limits.header_bytes) error = http::error::header_limit;
  };
  parser.on_chunk_header(count_extensions);
  parser.eager(true);
  const beast::error_code error = co_await read_part(stream, buffer, parser, deadline,
                                                     sent_bytes(limits), http::error::body_limit);
  if (error == asio::error::timed_out && deadline.passed()) {
    co_return Refusal{408, late_message("body", limits.read_timeout)};
  }
  if (error) co_return refusal_of(error, parser, limits);
  co_return std::nullopt;
}

// Ends a connection whose client may still be sending: to close it at once would reset it, and the
// answer could be lost on its way.
asio::awaitable<void> linger(beast::tcp_stream& stream) {
  beast::error_code ignored;
  stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  constexpr auto kTime = std::chrono::seconds(2);  // for all of it
  const auto end = std::chrono::steady_clock::now() + kTime;
  stream.expires_after(kTime);
  std::array<char, 16384> waste;
  for (size_t left = size_t{256} << 20; left > 0 && std::chrono::steady_clock::now() < end;) {
    auto [error, count] = co_await stream.async_read_some(asio::buffer(waste), kQuiet);
    if (error) break;
    left -= std::min(left, count);
  }
}

// An address is taken as it is; of a name, its first IPv4 address or else the first.
tcp::endpoint resolve(asio::io_context& io, const std::string& host, int port) {
  beast::error_code error;
  const auto number = static_cast<uint16_t>(port);
  const asio::ip::address address = asio::ip::make_address(host, error);
  if (!error) return {address, number};
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, "", tcp::resolver::passive, error);
  if (error || found.empty()) {
    throw Error({.what = "no address to listen on",
                 .where = "--host",
                 .value = host,
                 .accepted = "an address of this machine, such as 127.0.0.1, ::1 or 0.0.0.0"});
  }
  asio::ip::address best = found.begin()->endpoint().address();
  for (const auto& entry : found) {
    if (best.is_v4()) break;
    if (entry.endpoint().address().is_v4()) best = entry.endpoint().address();
  }
  return {best, number};
}

[[noreturn]] void cannot_listen(const std::string& place,
                                const boost::system::system_error& failure) {
  throw Error({.what = "cannot listen on this address",
               .where = place,
               .value = failure.code().message(),
               .fix = "choose another --port or --host, or stop the process that uses it"});
}

}  // namespace

struct HttpServer::Shared {
  asio::io_context& io;
  HttpLimits limits;
  HttpHandler handler;
  std::unordered_set<Connection*> connections;
  bool closing = false;   // connections close after their response
  bool stopping = false;  // and nobody is accepted
};

HttpServer::HttpServer(asio::io_context& io, const std::string& host, int port, HttpLimits limits,
                       HttpHandler handler)
    : io_(io), acceptor_(io), place_(fmt::format("{}:{}", host, port)) {
  shared_ = std::make_shared<Shared>(Shared{io, limits, std::move(handler), {}});
  const tcp::endpoint endpoint = resolve(io, host, port);
  try {
    acceptor_.open(endpoint.protocol());
    acceptor_.set_option(asio::socket_base::reuse_address(true));
    acceptor_.bind(endpoint);
  } catch (const boost::system::system_error& failure) {
    cannot_listen(place_, failure);
  }
}

int HttpServer::port() const {
  return acceptor_.local_endpoint().port();
}

void HttpServer::start() {
  try {
    acceptor_.listen();
  } catch (const boost::system::system_error& failure) {
    cannot_listen(place_, failure);
  }
  asio::co_spawn(io_, accept(shared_, acceptor_), asio::detached);
}

void HttpServer::drain() {
  shared_->closing = true;
}

void HttpServer::stop() {
  shared_->closing = shared_->stopping = true;
  beast::error_code ignored;
  acceptor_.close(ignored);
  for (Connection* connection : shared_->connections) {
    if (!connection->busy) connection->stream.close();
  }
}

void HttpServer::abort() {
  stop();
  for (Connection* connection : shared_->connections) connection->stream.close();
}

size_t HttpServer::busy() const {
  return static_cast<size_t>(std::ranges::count_if(shared_->connections, &Connection::busy));
}

size_t HttpServer::connections() const {
  return shared_->connections.size();
}

asio::awaitable<void> HttpServer::accept(std::shared_ptr<Shared> shared, tcp::acceptor& acceptor) {
  asio::steady_timer pause(shared->io);
  for (;;) {
    auto [error, socket] = co_await acceptor.async_accept(kQuiet);
    if (shared->stopping) co_return;
    if (!error) {
      asio::co_spawn(shared->io, serve(shared, std::move(socket)), asio::detached);
      continue;
    }
    // Out of descriptors, most likely: give connections time to end instead of spinning.
    log::warning("accept: {}", error.message());
    pause.expires_after(std::chrono::milliseconds(100));
    co_await pause.async_wait(kQuiet);
    if (shared->stopping) co_return;
  }
}

asio::awaitable<void> HttpServer::serve(std::shared_ptr<Shared> shared, tcp::socket socket) {
  beast::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);  // a token a packet: Nagle would hold it back
  const tcp::endpoint other = socket.remote_endpoint(ignored);
  const std::string client = other.address().to_string();
  Connection connection(std::move(socket));
  shared->connections.insert(&connection);
  const auto remove = [shared](Connection* c) { shared->connections.erase(c); };
  const std::unique_ptr<Connection, decltype(remove)> listed(&connection, remove);
  const HttpLimits& limits = shared->limits;
  beast::tcp_stream& stream = connection.stream;
  beast::flat_buffer buffer(limits.header_bytes);
  try {
    while (!shared->stopping) {
      Parser parser;
      const std::optional<Refusal> refusal = co_await read_request(stream, buffer, parser, limits);
      if (refusal) {
        if (refusal->status == 0) break;
        BeastResponder responder(stream, limits, {}, shared->closing);
        co_await responder.send(refusal->status, refusal->body(), "application/json");
        co_await linger(stream);
        break;
      }

      connection.busy = true;
      auto message = parser.release();
      HttpRequest request{.method = to_string(message.method_string()),
                          .path = path_of(to_string(message.target())),
                          .body = std::move(message.body()),
                          .authorization = to_string(message[http::field::authorization]),
                          .request_id = to_string(message["X-Request-Id"]),
                          .origin = to_string(message[http::field::origin]),
                          .if_none_match = to_string(message[http::field::if_none_match]),
                          .client = client};
      BeastResponder::Head head;
      head.version = message.version();
      head.keep_alive = message.keep_alive();
      head.body = message.method() != http::verb::head;
      if (request.request_id.size() <= kMostRequestId) head.request_id = request.request_id;
      BeastResponder responder(stream, limits, std::move(head), shared->closing);
      co_await shared->handler(request, responder);
      connection.busy = false;
      if (!responder.keep_alive() || !responder.started()) break;
    }
  } catch (const boost::system::system_error& gone) {
    // The client went away, or did not read: its requests have been cancelled by their handler.
    log::debug("connection: {}", gone.what());
  } catch (const std::exception& error) {
    log::error("connection: {}", error.what());
  }
  stream.socket().shutdown(tcp::socket::shutdown_both, ignored);
}

}  // namespace octet::server
