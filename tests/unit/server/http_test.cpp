// The HTTP layer with a toy handler, over real sockets.
#include "server/http.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <future>
#include <thread>

#include "base/error.h"

namespace octet::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What the handler does is in the path.
class Toy {
 public:
  // Runs on the server's thread.
  template <class F>
  auto call(F f) {
    const auto task = std::make_shared<std::packaged_task<decltype(f())()>>(std::move(f));
    auto result = task->get_future();
    asio::post(io_, [task] { (*task)(); });
    return result.get();
  }
  explicit Toy(HttpLimits limits = {}, const std::string& host = "127.0.0.1")
      : http_(io_, host, 0, limits,
              [this](const HttpRequest& request, Responder& responder) {
                return handle(request, responder);
              }),
        host_(host) {
    http_.start();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Toy() {
    release();
    call([this] { http_.abort(); });
    for (int i = 0; i < 200 && call([this] { return http_.connections(); }) > 0; ++i) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    io_.stop();
    thread_.join();
  }

  void stop() {
    call([this] { http_.stop(); });
  }
  size_t busy() {
    return call([this] { return http_.busy(); });
  }
  // Lets what waits on /wait be answered.
  void release() { released_ = true; }
  int port() const { return http_.port(); }
  const std::string& host() const { return host_; }

  std::atomic<int> gone{0}, handled{0}, ended{0};

 private:
  asio::awaitable<void> handle(const HttpRequest& request, Responder& responder) {
    ++handled;
    const std::string path = request.path;
    if (path == "/echo") {
      co_await responder.send(200, request.method + ":" + request.body, "text/plain");
    } else if (path == "/stream") {
      co_await responder.start_stream("text/event-stream");
      for (const char* part : {"one", "two", "three"}) co_await responder.write(part);
      co_await responder.finish();
    } else if (path == "/big") {
      co_await responder.start_stream("text/plain");
      for (int i = 0; i < 4096; ++i) co_await responder.write(std::string(65536, 'x'));
      co_await responder.finish();
    } else if (path == "/throw") {
      throw Fault("the toy broke");
    } else if (path == "/wait") {
      bool here = true;
      const std::shared_ptr<void> watch = responder.watch([this, &here] {
        ++gone;
        here = false;
      });
      for (asio::steady_timer timer(io_); here && !released_;) {
        timer.expires_after(milliseconds(5));
        co_await timer.async_wait(asio::use_awaitable);
      }
      if (here) co_await responder.send(200, "waited", "text/plain");
    }
    ++ended;
  }

  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  HttpServer http_;
  std::string host_;
  std::atomic<bool> released_{false};
  std::thread thread_;
};

class Client {
 public:
  explicit Client(const Toy& toy) : socket_(io_) {
    socket_.connect({asio::ip::make_address(toy.host()), static_cast<uint16_t>(toy.port())});
  }
  void send(std::string_view text) { asio::write(socket_, asio::buffer(text)); }
  // Until `end` has come, or the connection has ended, or 10 s have passed.
  std::string read_until(std::string_view end) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    socket_.non_blocking(true);
    while (end.empty() || seen_.find(end) == seen_.npos) {
      std::array<char, 4096> buffer;
      boost::system::error_code error;
      const size_t count = socket_.read_some(asio::buffer(buffer), error);
      seen_.append(buffer.data(), count);
      if (error == asio::error::would_block) {
        if (std::chrono::steady_clock::now() > deadline) return "TIMED OUT: " + seen_;
        std::this_thread::sleep_for(milliseconds(2));
      } else if (error) {
        break;
      }
    }
    socket_.non_blocking(false);
    const size_t at = end.empty() ? seen_.npos : seen_.find(end);
    const size_t size = at == seen_.npos ? seen_.size() : at + end.size();
    std::string out = seen_.substr(0, size);
    seen_.erase(0, size);
    return out;
  }
  std::string read_all() { return read_until(""); }
  std::string get(const std::string& request, std::string_view end) {
    send(request);
    return read_until(end);
  }
  bool readable() { return socket_.available() > 0; }
  void close() { socket_.close(); }
  void half_close() { socket_.shutdown(tcp::socket::shutdown_send); }

 private:
  asio::io_context io_;
  tcp::socket socket_;
  std::string seen_;
};

std::string post(const std::string& path, const std::string& body, const std::string& more = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\n" + more +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
const std::string kGetEcho = "GET /echo HTTP/1.1\r\nHost: x\r\n\r\n";

template <class F>
bool soon(F holds) {
  for (int i = 0; i < 1000 && !holds(); ++i) std::this_thread::sleep_for(milliseconds(5));
  return holds();
}

TEST(Http, AnswersAndKeepsTheConnection) {
  Toy toy;
  Client client(toy);
  for (int i = 0; i < 3; ++i) {
    const std::string answer =
        client.get(post("/echo?x=1", "hello", "X-Request-Id: r7\r\n"), "POST:hello");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answer, HasSubstr("Content-Length: 10\r\n"));
    EXPECT_THAT(answer, HasSubstr("X-Request-Id: r7\r\n"));
  }
  client.send("GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.read_all(), HasSubstr("Connection: close"));
}

TEST(Http, PipelinedRequestsAreAnsweredInOrder) {
  Toy toy;
  Client client(toy);
  client.send(post("/echo", "a1") + post("/echo", "b2") + post("/echo", "c3"));
  EXPECT_THAT(client.read_until("POST:a1"), HasSubstr("200 OK"));
  EXPECT_THAT(client.read_until("POST:b2"), HasSubstr("200 OK"));
  EXPECT_THAT(client.read_until("POST:c3"), HasSubstr("200 OK"));
}

TEST(Http, StreamsInChunks) {
  Toy toy;
  Client client(toy);
  const std::string answer = client.get("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n", "0\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Transfer-Encoding: chunked"));
  EXPECT_THAT(answer, HasSubstr("3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"));
  EXPECT_THAT(client.get(kGetEcho, "GET:"), HasSubstr("200 OK"));  // and keeps the connection
}

TEST(Http, OldClientsGetAnUnchunkedStream) {
  Toy toy;
  Client client(toy);
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const std::string answer = client.read_all();
  EXPECT_THAT(answer, HasSubstr("\r\n\r\nonetwothree"));
  EXPECT_EQ(answer.find("chunked"), answer.npos);
}

TEST(Http, HeadHasTheLengthAndNoBody) {
  Toy toy;
  Client client(toy);
  const std::string answer = client.get("HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\n", "\r\n\r\n") +
                             client.get(kGetEcho, "GET:");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 5\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\nHTTP/1.1 200"));
}

TEST(Http, ContinuesAfterExpect) {
  Toy toy;
  Client client(toy);
  client.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_THAT(client.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 100 Continue"));
  EXPECT_THAT(client.get("hi", "POST:hi"), HasSubstr("200 OK"));
}

TEST(Http, RefusesWhatIsTooLargeOrMalformed) {
  Toy toy({.header_bytes = 1024, .body_bytes = 1000});
  const auto status = [&](const std::string& request) {
    Client client(toy);
    client.send(request);
    client.half_close();
    return client.read_all();
  };
  EXPECT_THAT(status(post("/echo", std::string(1000, 'x'))), HasSubstr("200 OK"));
  const std::string large = status(post("/echo", std::string(1001, 'x')));
  EXPECT_THAT(large, HasSubstr("HTTP/1.1 413"));
  EXPECT_THAT(large, HasSubstr(R"("code":413)"));
  EXPECT_THAT(large, HasSubstr("1000 bytes"));
  EXPECT_THAT(status("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n" +
                     std::string(0xfff, 'x') + "\r\n0\r\n\r\n"),
              HasSubstr("HTTP/1.1 413"));
  EXPECT_THAT(status("GET /echo HTTP/1.1\r\nX: " + std::string(2000, 'x') + "\r\n\r\n"),
              HasSubstr("HTTP/1.1 431"));
  EXPECT_THAT(status("nonsense\r\n\r\n"), HasSubstr("HTTP/1.1 400"));
  EXPECT_THAT(status("GET /echo HTTP/1.1\r\nContent-Length: -5\r\n\r\n"),
              HasSubstr("HTTP/1.1 400"));
  EXPECT_THAT(status("GET /echo HTTP/9.9\r\n\r\n"), HasSubstr("HTTP/1.1 400"));
  EXPECT_THAT(status(std::string("\0\0\0\0", 4)), HasSubstr("HTTP/1.1 400"));
  EXPECT_EQ(status(""), "");
  EXPECT_EQ(toy.handled, 1);
}

// What frames a chunked body is no part of the parser's limits, and would be kept or read for ever.
class HttpChunked : public testing::Test {
 protected:
  // `more` goes on until the server has answered and closed, or 32 MiB have been sent.
  std::string endless(const std::string& start, const std::string& more) {
    Client client(toy_);
    client.send(kHead + start);
    std::string block;
    while (block.size() < 4096) block += more;
    size_t sent = 0;
    try {
      for (; sent < 32 << 20 && !client.readable(); sent += block.size()) client.send(block);
    } catch (const boost::system::system_error&) {
    }
    EXPECT_LT(sent, 32u << 20) << "nothing stopped it";
    return client.read_all();
  }
  const std::string kHead = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  Toy toy_{{.header_bytes = 1024, .body_bytes = 4000}};
};

TEST_F(HttpChunked, EndlessFramingIsRefused) {
  const std::array<std::string, 2> endless_lines[] = {
      {"1;", "a"},              // an extension
      {"0;", "a"},              // that of the last chunk
      {"", "0"},                // a size
      {"0\r\nX: ", "a"},        // a trailer
      {"0\r\n", "a:\r\n"},      // many
      {"", "1;ab=c\r\nx\r\n"},  // an extension for each byte
  };
  for (const auto& [start, more] : endless_lines) {
    SCOPED_TRACE(start + more);
    const std::string answer = endless(start, more);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 431 "));
    EXPECT_THAT(answer, AllOf(HasSubstr("Connection: close"), HasSubstr("1024 bytes")));
    EXPECT_THAT(answer, HasSubstr("chunk extensions or trailers"));
  }
  // Payload and extensions are within their limits, the zeros are not.
  const std::string zeros = endless("", std::string(900, '0') + "1\r\nx\r\n");
  EXPECT_THAT(zeros, AllOf(StartsWith("HTTP/1.1 413 "), HasSubstr("or than 5024 with all")));
  EXPECT_EQ(toy_.handled, 0);
}

TEST_F(HttpChunked, WithinTheLimitsItIsRead) {
  Client client(toy_);
  const std::string x800(800, 'x');
  const std::string body = "1;" + x800 + "\r\na\r\n" + "001;q=\"1\"\r\nb\r\n" + "0\r\nT: " + x800;
  client.send(kHead + body);
  client.send("\r\n\r\n" + kGetEcho);  // the next request follows at once
  EXPECT_THAT(client.read_until("POST:ab"), HasSubstr("200 OK"));
  EXPECT_THAT(client.read_until("GET:"), HasSubstr("200 OK"));
  std::string tiny;
  for (int i = 0; i < 800; ++i) tiny += "1\r\nx\r\n";  // 4800 bytes
  EXPECT_THAT(client.get(kHead + tiny + "0\r\n\r\n", "POST:" + x800), HasSubstr("200 OK"));
  // The body's limit, in chunks
  const std::string full = "fa0\r\n" + std::string(4000, 'y') + "\r\n0\r\n\r\n";
  EXPECT_THAT(client.get(kHead + full, std::string(4000, 'y')), HasSubstr("200 OK"));
}

TEST(Http, AHeadIsCountedAsAWhole) {
  Toy toy({.header_bytes = 1024});
  const std::string start = "GET /" + std::string(400, 'p') + " HTTP/1.1\r\nHost: x\r\n";
  Client client(toy);
  client.send(start);
  std::this_thread::sleep_for(milliseconds(50));
  client.send("X: " + std::string(900, 'x') + "\r\n\r\n");
  EXPECT_THAT(client.read_all(), AllOf(StartsWith("HTTP/1.1 431 "), HasSubstr("the head is")));
}

// The answer arrives although the client had much more to say.
TEST(Http, ARequestHasOneHost) {
  Toy toy;
  for (const char* head :
       {"GET /echo HTTP/1.1\r\n\r\n", "GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"}) {
    Client client(toy);
    client.send(head);
    EXPECT_THAT(client.read_all(), AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("Host: NAME")));
  }
  EXPECT_EQ(toy.handled, 0);
  Client old(toy);  // HTTP/1.0 has none
  old.send("GET /echo HTTP/1.0\r\n\r\n");
  EXPECT_THAT(old.read_all(), HasSubstr("200 OK"));
}

// A body that ends elsewhere than a proxy thinks would bring a second request, which nobody
// checked.
TEST(Http, ABodyWhoseEndIsUnclearIsRefused) {
  Toy toy;
  const auto refused = [&](const std::string& head) {
    SCOPED_TRACE(head);
    Client client(toy);
    client.send("POST /echo " + head + "\r\n" + kGetEcho);
    const std::string answer = client.read_all();
    EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1."), HasSubstr(" 400 ")));
    EXPECT_EQ(answer.find("GET:"), answer.npos) << "the body was taken for a request";
  };
  for (const char* coding : {"gzip", "identity", "chunked, chunked", "gzip, chunked", "xchunked",
                             "chunked, identity", "chunked;q=1", ""}) {
    const std::string field = fmt::format("Transfer-Encoding: {}\r\n", coding);
    refused("HTTP/1.1\r\nHost: x\r\n" + field);
    refused("HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n" + field);
  }
  refused("HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n");
  refused("HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n");
  refused("HTTP/1.0\r\nTransfer-Encoding: chunked\r\n");
  refused("HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n");
  EXPECT_EQ(toy.handled, 0);
  Client client(toy);
  EXPECT_THAT(client.get("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\t Chunked \r\n\r\n"
                         "1\r\na\r\n0\r\n\r\n",
                         "POST:a"),
              HasSubstr("200 OK"));
}

TEST(Http, ATargetMayHaveSchemeAndHost) {
  Toy toy;
  Client client(toy);
  for (const char* target : {"http://x/echo", "https://x:80/echo?a=/b"}) {
    EXPECT_THAT(client.get(fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", target), "GET:"),
                HasSubstr("200 OK"));
  }
}

TEST(Http, A413SurvivesALargeBody) {
  Toy toy({.body_bytes = 1000});
  Client client(toy);
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n");
  std::this_thread::sleep_for(milliseconds(50));
  try {
    client.send(std::string(8000000, 'x'));
  } catch (const boost::system::system_error&) {
    FAIL() << "the connection was reset";
  }
  EXPECT_THAT(client.read_until("413}}"), HasSubstr("HTTP/1.1 413"));
}

TEST(Http, SlowClientsAreCutOff) {
  Toy toy({.read_timeout = milliseconds(500), .idle_timeout = milliseconds(500)});
  // An idle connection ends without a word, as clients expect; a request that stalls is answered.
  const std::string body = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc";
  const std::pair<std::string, std::string> cases[] = {
      {"", ""}, {"GET /echo HT", "head was not complete"}, {body, "body was not complete"}};
  for (const auto& [part, expected] : cases) {
    SCOPED_TRACE(part);
    Client client(toy);
    client.send(part);
    const std::string answer = client.read_all();
    EXPECT_THAT(answer, StartsWith(expected.empty() ? "" : "HTTP/1.1 408 "));
    EXPECT_THAT(answer, HasSubstr(expected));
    EXPECT_EQ(answer.empty(), expected.empty());
  }
  EXPECT_EQ(toy.handled, 0);
  Client client(toy);
  EXPECT_THAT(client.get(kGetEcho, "GET:"), HasSubstr("200 OK"));
}

// The time is up between two reads, when there is nothing to cancel: no later read may wait.
TEST(Http, ADeadlineIsFinal) {
  Toy toy({.read_timeout = milliseconds(300), .idle_timeout = milliseconds(300)});
  const std::pair<std::string, std::string> cases[] = {
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nabc", "body was not"},
      {"GET /echo HTTP/1.1\r\nHost: x\r\nX: ", "head was not"}};
  for (const auto& [part, expected] : cases) {
    Client client(toy);
    client.send(part);
    std::this_thread::sleep_for(milliseconds(50));
    // The server's thread comes back late, and finds several reads' worth of bytes.
    toy.call([&] {
      client.send(std::string(10000, 'x'));
      std::this_thread::sleep_for(milliseconds(500));
    });
    EXPECT_THAT(client.read_all(), AllOf(StartsWith("HTTP/1.1 408 "), HasSubstr(expected)));
  }
  EXPECT_EQ(toy.handled, 0);
}

TEST(Http, ClientsThatDoNotReadAreCutOff) {
  Toy toy({.write_timeout = milliseconds(150)});
  Client client(toy);
  client.send("GET /big HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(soon([&] { return toy.handled == 1; }));
  EXPECT_TRUE(soon([&] { return toy.busy() == 0; }));
  EXPECT_EQ(toy.ended, 0);  // by an exception
}

TEST(Http, NoticesThatTheClientHasGone) {
  Toy toy;
  const std::string wait = "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n";
  Client closing(toy), half_closing(toy), pipelining(toy), staying(toy);
  for (Client* client : {&closing, &half_closing, &pipelining, &staying}) client->send(wait);
  ASSERT_TRUE(soon([&] { return toy.handled == 4; }));
  closing.close();
  EXPECT_TRUE(soon([&] { return toy.gone == 1 && toy.ended == 1; }));
  half_closing.half_close();
  EXPECT_TRUE(soon([&] { return toy.gone == 2; }));
  // The next request hides the end.
  pipelining.send(wait);
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(toy.gone, 2);
  pipelining.close();
  EXPECT_TRUE(soon([&] { return toy.gone == 3; }));
  toy.release();
  EXPECT_THAT(staying.read_until("waited"), HasSubstr("200 OK"));
  EXPECT_EQ(toy.gone, 3);
}

TEST(Http, AFailingHandlerEndsItsConnectionOnly) {
  Toy toy;
  Client one(toy), other(toy);
  one.send("GET /throw HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(one.read_all(), "");
  EXPECT_THAT(other.get(kGetEcho, "GET:"), HasSubstr("200 OK"));
}

// Stopping: idle connections close, busy ones have their answer first, new ones are refused.
TEST(Http, StopsGently) {
  Toy toy;
  Client idle(toy), busy(toy);
  EXPECT_THAT(idle.get(kGetEcho, "GET:"), HasSubstr("200 OK"));
  busy.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(soon([&] { return toy.handled == 2; }));
  EXPECT_EQ(toy.busy(), 1u);
  toy.stop();
  EXPECT_EQ(idle.read_all(), "");
  toy.release();
  const std::string answer = busy.read_all();
  EXPECT_THAT(answer, HasSubstr("waited"));
  EXPECT_THAT(answer, HasSubstr("Connection: close"));
  EXPECT_THROW(Client{toy}, boost::system::system_error);
}

TEST(Http, ListensOnIPv6AndNames) {
  Toy v6({}, "::1");
  Client client(v6);
  EXPECT_THAT(client.get(kGetEcho, "GET:"), HasSubstr("200 OK"));
  asio::io_context io;
  EXPECT_NO_THROW(HttpServer(io, "localhost", 0, {}, nullptr));
}

TEST(Http, AnAddressInUseIsAnErrorThatNamesIt) {
  Toy toy;
  asio::io_context io;
  try {
    HttpServer second(io, "127.0.0.1", toy.port(), {}, nullptr);
    FAIL() << "the port was taken twice";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("127.0.0.1:" + std::to_string(toy.port())));
    EXPECT_THAT(error.what(), HasSubstr("in use"));
  }
  EXPECT_THROW(HttpServer(io, "203.0.113.77", 0, {}, nullptr), Error);  // not ours
  EXPECT_THROW(HttpServer(io, "no.such.host.invalid", 0, {}, nullptr), Error);
}

}  // namespace
}  // namespace octet::server
