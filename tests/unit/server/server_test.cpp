// The whole server in one process, over a tiny model and real sockets.
#include "server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/write.hpp>
#include <ctime>
#include <future>
#include <map>

#include "unit/engine/rig.h"

namespace octet::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ::testing::HasSubstr;

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer instance =
      text::Tokenizer::load(std::string(OCTET_SOURCE_DIR) + "/models/octet-demo");
  return instance;
}

class Serving {
 public:
  explicit Serving(ServerOptions options = {}, engine::EngineOptions engine_options = {})
      : engine(*rig.model, rig.backend, engine_options) {
    options.port = 0;
    options.served_name = "org/tiny";
    server_ = std::make_unique<Server>(options);
    std::promise<void> ready;
    thread_ = std::thread([this, &ready] {
      exit_code = server_->run(engine, {tokenizer()}, [&] { ready.set_value(); });
    });
    ready.get_future().wait();
  }
  ~Serving() { join(); }
  void stop() { server_->stop(); }
  void join() {
    if (!thread_.joinable()) return;
    stop();
    thread_.join();
  }
  // Ends by itself.
  void wait() { thread_.join(); }
  int port() const { return server_->port(); }

  engine::Rig rig;
  engine::Engine engine;
  int exit_code = -1;

 private:
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

struct Reply {
  int status = 0;
  std::string head, body;
  Json json() const { return Json::parse(body); }
};

class Client {
 public:
  explicit Client(const Serving& serving) : socket_(io_) {
    socket_.connect({asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(serving.port())});
  }
  void send(const std::string& method, const std::string& path, const std::string& body = "",
            const std::string& more = "") {
    const std::string text = method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" +
                             more + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                             body;
    asio::write(socket_, asio::buffer(text));
  }
  std::string read_some() {
    std::array<char, 65536> buffer;
    boost::system::error_code error;
    const size_t count = socket_.read_some(asio::buffer(buffer), error);
    return {buffer.data(), count};
  }
  Reply read() {
    std::string all;
    for (std::string part = read_some(); !part.empty(); part = read_some()) all += part;
    Reply reply;
    if (all.size() < 12) return reply;
    reply.status = std::stoi(all.substr(9, 3));
    const size_t end = all.find("\r\n\r\n");
    reply.head = all.substr(0, end);
    reply.body = all.substr(end + 4);
    return reply;
  }

 private:
  asio::io_context io_;
  tcp::socket socket_;
};

Reply ask(const Serving& serving, const std::string& method, const std::string& path,
          const std::string& body = "", const std::string& more = "") {
  Client client(serving);
  client.send(method, path, body, more);
  return client.read();
}
Reply complete(const Serving& serving, const std::string& fields) {
  return ask(serving, "POST", "/v1/completions",
             R"({"prompt":[5,6,7],"temperature":0,"ignore_eos":true,)" + fields + "}");
}

// The objects of a stream; its end is checked.
std::vector<Json> events_of(const Reply& reply) {
  std::string text;  // without the chunks' frames
  for (size_t at = 0; at < reply.body.size();) {
    const size_t line = reply.body.find("\r\n", at);
    const size_t size = std::stoul(reply.body.substr(at, line - at), nullptr, 16);
    text += reply.body.substr(line + 2, size);
    at = line + 2 + size + 2;
  }
  EXPECT_TRUE(text.ends_with("data: [DONE]\n\n")) << text;
  std::vector<Json> events;
  for (size_t at = 0; text.compare(at, 12, "data: [DONE]") != 0;) {
    const size_t end = text.find("\n\n", at);
    if (end == text.npos) break;
    events.push_back(Json::parse(text.substr(at + 6, end - at - 6)));
    at = end + 2;
  }
  return events;
}

TEST(Routes, PathsAndMethods) {
  const Serving serving;
  EXPECT_EQ(ask(serving, "GET", "/health").status, 200);
  EXPECT_EQ(ask(serving, "GET", "/ping?x=1").status, 200);
  EXPECT_TRUE(ask(serving, "GET", "/version").json().contains("version"));
  EXPECT_EQ(ask(serving, "GET", "/v1/models").json()["data"][0]["id"], "org/tiny");
  EXPECT_EQ(ask(serving, "GET", "/v1/models/org/tiny").json()["max_model_len"], 64);
  EXPECT_EQ(ask(serving, "GET", "/v1/models/org%2ftiny").status, 200);
  const Reply other = ask(serving, "GET", "/v1/models/gpt");
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(other.json()["error"]["param"], "model");
  EXPECT_EQ(ask(serving, "GET", "/nowhere").status, 404);
  EXPECT_EQ(ask(serving, "GET", "/v1").status, 404);
  const Reply wrong = ask(serving, "GET", "/v1/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_THAT(wrong.head, HasSubstr("Allow: POST, OPTIONS"));
  EXPECT_EQ(ask(serving, "DELETE", "/health").status, 405);
  const Reply options = ask(serving, "OPTIONS", "/v1/models");
  EXPECT_EQ(options.status, 200);
  EXPECT_THAT(options.head, HasSubstr("Allow: GET, HEAD, OPTIONS"));
  const Reply head = ask(serving, "HEAD", "/v1/models");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
}

TEST(Routes, TheKeyGuardsAllThatIsNotSaidToBeOpen) {
  const Serving serving({.api_keys = {"other", "secret"}});
  for (const char* path : {"/health", "/ping", "/version"}) {
    EXPECT_EQ(ask(serving, "GET", path).status, 200) << path;
  }
  for (const char* path : {"/v1/models", "/v1/completions", "/v1/models/org/tiny", "/v1/nothing",
                           "/v1/chat/completions", "/tokenize", "/detokenize", "/tokenizer_info",
                           "/debug/kernels", "/invocations", "/nothing", "//v1/models"}) {
    const Reply reply = ask(serving, "GET", path);
    EXPECT_EQ(reply.status, 401) << path;
    EXPECT_THAT(reply.head, HasSubstr("WWW-Authenticate: Bearer"));
  }
  for (const char* wrong :
       {"Bearer", "Bearer ", "Bearer secre", "Bearer secretx", "secret", "Basic secret"}) {
    EXPECT_EQ(ask(serving, "GET", "/v1/models", "", std::string("Authorization: ") + wrong + "\r\n")
                  .status,
              401)
        << wrong;
  }
  EXPECT_EQ(ask(serving, "GET", "/v1/models", "", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(ask(serving, "GET", "/v1/models", "", "Authorization: bearer secret\r\n").status, 200);
  EXPECT_EQ(ask(serving, "GET", "/v1/models", "", "Authorization: Bearer other\r\n").status, 200);
}

TEST(Routes, OtherOriginsOnlyIfTheyAreAllowed) {
  const auto head = [](const std::vector<std::string>& allowed, const std::string& method,
                       const std::string& origin) {
    const Serving serving({.allowed_origins = allowed});
    const Reply reply = ask(serving, method, "/v1/models", "", "Origin: " + origin + "\r\n");
    EXPECT_EQ(reply.status, 200);
    return reply.head;
  };
  using ::testing::Not;
  const std::string page = "https://a.example";
  EXPECT_THAT(head({}, "GET", page), Not(HasSubstr("Access-Control")));
  EXPECT_THAT(head({"https://b.example"}, "GET", page), Not(HasSubstr("Access-Control")));
  EXPECT_THAT(head({"https://b.example", page}, "GET", page),
              HasSubstr("Access-Control-Allow-Origin: https://a.example\r\n"));
  EXPECT_THAT(head({page}, "GET", page), HasSubstr("Vary: Origin"));
  EXPECT_THAT(head({"*"}, "GET", page), HasSubstr("Access-Control-Allow-Origin: *\r\n"));
  EXPECT_THAT(head({page}, "GET", page), Not(HasSubstr("Allow-Headers")));
  EXPECT_THAT(head({page}, "OPTIONS", page),
              HasSubstr("Access-Control-Allow-Headers: Authorization"));
}

TEST(Routes, TokenizeShowsWhatTheModelGets) {
  const Serving serving;
  const auto post = [&](const std::string& path, const std::string& body) {
    return ask(serving, "POST", path, body);
  };
  const Json said = post("/tokenize", R"({"prompt":"def add","return_token_strs":true})").json();
  EXPECT_EQ(said["count"], 3);  // with BOS
  EXPECT_EQ(said["max_model_len"], 64);
  EXPECT_EQ(said["token_strs"][2], " add");
  EXPECT_EQ(said["tokens"].size(), 3u);
  const Json bare = post("/tokenize", R"({"prompt":"def add","add_special_tokens":false})").json();
  EXPECT_EQ(bare["count"], 2);
  EXPECT_TRUE(bare["token_strs"].is_null());
  const std::string ids = R"({"tokens":[5,6,7]})";
  EXPECT_EQ(post("/detokenize", ids).json()["prompt"], tokenizer().decode({{5, 6, 7}}, false));
  for (const char* bad :
       {"{}", "[]", R"({"prompt":7})", R"({"prompt":"a","messages":[]})", R"({"model":"x"})",
        R"({"prompt":"a","add_special_tokens":1})", R"({"messages":[]})"}) {
    EXPECT_GE(post("/tokenize", bad).status, 400) << bad;
  }
  for (const char* bad : {"{}", R"({"tokens":"a"})", R"({"tokens":[-1]})", R"({"tokens":[1e9]})"}) {
    EXPECT_EQ(post("/detokenize", bad).status, 400) << bad;
  }
  EXPECT_EQ(ask(serving, "GET", "/tokenize").status, 405);
}

TEST(Completions, TheRequestsIdIsInTheAnswers) {
  const Serving serving;
  const std::string body = R"({"prompt":[5],"max_tokens":1,"request_id":"mine"})";
  EXPECT_EQ(ask(serving, "POST", "/v1/completions", body).json()["id"], "cmpl-mine");
  const Reply named = ask(serving, "POST", "/v1/completions", body, "X-Request-Id: header\r\n");
  EXPECT_EQ(named.json()["id"], "cmpl-header");
  EXPECT_THAT(named.head, HasSubstr("X-Request-Id: header"));
}

TEST(Completions, BestOfGivesTheLikeliestOfAll) {
  const Serving serving;
  const std::string common = R"({"prompt":[5,6],"seed":3,"max_tokens":6,"logprobs":0,"n":)";
  const Json all = ask(serving, "POST", "/v1/completions", common + "5}").json();
  const Json best = ask(serving, "POST", "/v1/completions", common + R"(2,"best_of":5})").json();
  std::vector<std::pair<double, Json>> scored;
  for (const Json& choice : all["choices"]) {
    double sum = 0;
    const Json& logprobs = choice["logprobs"]["token_logprobs"];
    for (const Json& logprob : logprobs) sum += logprob.get<double>();
    scored.emplace_back(-sum / static_cast<double>(logprobs.size()), choice["text"]);
  }
  std::ranges::sort(scored);
  ASSERT_EQ(best["choices"].size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(best["choices"][i]["index"], i);
    EXPECT_EQ(best["choices"][i]["text"], scored[i].second);
  }
  EXPECT_EQ(best["usage"]["completion_tokens"], all["usage"]["completion_tokens"]);
  EXPECT_EQ(best["usage"]["prompt_tokens"], 2);
}

// Bodies of many kilobytes are read by a worker, and answered all the same.
TEST(Completions, LargeBodies) {
  const Serving serving;
  const std::string pad = R"(,"user":")" + std::string(100000, 'u') + R"("})";
  const std::string body = R"({"prompt":[5],"temperature":0,"max_tokens":2)";
  const Reply large = ask(serving, "POST", "/v1/completions", body + pad);
  EXPECT_EQ(large.status, 200);
  EXPECT_EQ(large.json()["choices"],
            ask(serving, "POST", "/v1/completions", body + "}").json()["choices"]);
  EXPECT_EQ(ask(serving, "POST", "/v1/completions", R"({"prompt":[-1])" + pad).status, 400);
  EXPECT_EQ(ask(serving, "POST", "/v1/completions", R"({"prompt":[)" + pad).status, 400);
}

TEST(Completions, StreamsAndWholesAgree) {
  const Serving serving;
  const std::string fields = R"("max_tokens":12,"logprobs":2,"n":2,"temperature":1,"seed":5)";
  const auto body = [&](const std::string& more) {
    return R"({"prompt":[[5,6,7],[8,9]],"ignore_eos":true,)" + fields + more + "}";
  };
  const Reply whole = ask(serving, "POST", "/v1/completions", body(""));
  ASSERT_EQ(whole.status, 200) << whole.body;
  const Reply streamed = ask(serving, "POST", "/v1/completions",
                             body(R"(,"stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_EQ(streamed.status, 200) << streamed.body;
  EXPECT_THAT(streamed.head, HasSubstr("text/event-stream; charset=utf-8"));

  std::map<int, std::string> texts;
  std::map<int, Json> tokens, offsets;
  Json usage;
  for (const Json& event : events_of(streamed)) {
    if (event.contains("usage")) {
      EXPECT_TRUE(event["choices"].empty());
      usage = event["usage"];
      continue;
    }
    const Json& choice = event["choices"][0];
    const int index = choice["index"];
    texts[index] += choice["text"].get<std::string>();
    for (const Json& token : choice["logprobs"]["tokens"]) tokens[index].push_back(token);
    for (const Json& offset : choice["logprobs"]["text_offset"]) offsets[index].push_back(offset);
  }
  const Json expected = whole.json();
  ASSERT_EQ(expected["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const Json& choice = expected["choices"][static_cast<size_t>(i)];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["text"], texts[i]);
    EXPECT_EQ(tokens[i], choice["logprobs"]["tokens"]);
    EXPECT_EQ(offsets[i], choice["logprobs"]["text_offset"]);
    EXPECT_EQ(choice["finish_reason"], "length");
  }
  EXPECT_NE(texts[0], texts[1]);         // the second of n has its own seed
  EXPECT_EQ(usage["prompt_tokens"], 5);  // once for n choices
  EXPECT_EQ(usage["completion_tokens"], 48);
  EXPECT_EQ(usage["total_tokens"], expected["usage"]["total_tokens"]);
}

TEST(Completions, UsageInAStreamOnlyIfAskedFor) {
  const Serving serving;
  const auto usages = [&](const std::string& fields) {
    size_t count = 0;
    const auto events = events_of(complete(serving, R"("stream":true,"max_tokens":5,)" + fields));
    for (const Json& event : events) count += event.contains("usage");
    return std::pair(count, events.size());
  };
  EXPECT_EQ(usages(R"("stream_options":{})").first, 0u);
  EXPECT_EQ(usages(R"("stream_options":{"include_usage":true})").first, 1u);
  const auto [count, events] =
      usages(R"("stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  EXPECT_EQ(count, events);
}

TEST(Completions, RefusalsHaveNumbers) {
  const Serving serving;
  const Reply large = complete(serving, R"("max_tokens":62)");
  EXPECT_EQ(large.status, 400);
  EXPECT_THAT(large.body, HasSubstr("The prompt has 3 tokens and max_tokens is 62"));
  EXPECT_THAT(large.body, HasSubstr("64 tokens"));
  EXPECT_EQ(large.json()["error"]["param"], "prompt");
  const Reply none = ask(serving, "POST", "/v1/completions", R"({"prompt":[[]]})");
  EXPECT_EQ(none.status, 400);
  EXPECT_THAT(none.body, HasSubstr("no tokens"));
  EXPECT_EQ(ask(serving, "POST", "/v1/completions", "{").status, 400);
  // One bad prompt of several: nothing runs on.
  EXPECT_EQ(ask(serving, "POST", "/v1/completions", R"({"prompt":[[5,6],[]]})").status, 400);
  EXPECT_EQ(complete(serving, R"("max_tokens":3)").status, 200);
}

// A long prompt is encoded on a worker, and the answer comes all the same.
TEST(Completions, LongPromptsAreEncodedElsewhere) {
  const Serving serving;
  std::string text;
  while (text.size() < 300000) text += "many words and more ";
  const Reply reply = ask(serving, "POST", "/v1/completions", R"({"prompt":")" + text + "\"}");
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_THAT(reply.body, HasSubstr("The prompt has more than"));
}

// Time and memory are bounded by what the model takes, not by what a client sends.
TEST(Completions, AnOverlongPromptIsRefusedAtOnce) {
  ServerOptions options;
  options.limits.body_bytes = size_t{32} << 20;
  const Serving serving(options);
  const std::string text(size_t{24} << 20, 'a');  // one run, the slowest text for its size
  Reply reply;
  const auto cpu_seconds = [&](const std::string& fields) {
    const std::clock_t begin = std::clock();
    reply = ask(serving, "POST", "/v1/completions", "{" + fields + text + "\"}");
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  // What it costs to read so much is the measure: sanitizers make all of it slow.
  const double reading = cpu_seconds(R"("prompt":[5],"max_tokens":1,"user":")");
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_LT(cpu_seconds(R"("prompt":")"), 4 * reading + 1);
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_THAT(reply.body, HasSubstr("25165824 bytes of text"));
}

TEST(Completions, OverloadIs503) {
  Serving serving({}, {.max_num_seqs = 1, .max_queued_requests = 2});
  serving.rig.backend.hold();
  Client first(serving);
  first.send("POST", "/v1/completions", R"({"prompt":[5],"max_tokens":2,"n":3})");
  EXPECT_TRUE(serving.rig.backend.wait_for_steps(1));
  const Reply reply = complete(serving, R"("max_tokens":2)");
  EXPECT_EQ(reply.status, 503);
  EXPECT_THAT(reply.head, HasSubstr("Retry-After"));
  // Neither health nor models wait for the step.
  EXPECT_EQ(ask(serving, "GET", "/health").status, 200);
  EXPECT_EQ(ask(serving, "GET", "/v1/models").status, 200);
  serving.rig.backend.let_go();
  EXPECT_EQ(first.read().status, 200);
  EXPECT_EQ(complete(serving, R"("max_tokens":2)").status, 200);
}

// Trying again later would not help: 503 and Retry-After would be a lie.
TEST(Completions, MoreChoicesThanEverFitAre400) {
  const Serving serving({}, {.max_num_seqs = 1, .max_queued_requests = 2});
  EXPECT_EQ(complete(serving, R"("max_tokens":2,"n":3)").status, 200);
  const Reply many = complete(serving, R"("max_tokens":2,"n":4)");
  EXPECT_EQ(many.status, 400) << many.body;
  EXPECT_THAT(many.body, HasSubstr("at most 3 at once"));
  const Reply prompts =
      ask(serving, "POST", "/v1/completions", R"({"prompt":[[5],[6]],"n":2,"max_tokens":2})");
  EXPECT_EQ(prompts.status, 400) << prompts.body;
  EXPECT_THAT(prompts.body, HasSubstr("2 prompts times n = 2"));
}

TEST(Completions, AClientThatGoesAwayCancelsItsChoices) {
  Serving serving({}, {.max_num_seqs = 1});
  serving.rig.backend.hold();
  {
    Client running(serving), queued(serving);
    running.send("POST", "/v1/completions", R"({"prompt":[5],"max_tokens":60,"n":3})");
    ASSERT_TRUE(serving.rig.backend.wait_for_steps(1));
    queued.send("POST", "/v1/completions", R"({"prompt":[5],"max_tokens":60,"stream":true})");
    EXPECT_THAT(queued.read_some(), HasSubstr("200 OK"));
  }
  // The server's thread takes what happens on its sockets in turn: when it has answered a few
  // requests that came after the ends of those two, it has seen the ends.
  for (int i = 0; i < 4; ++i) EXPECT_EQ(ask(serving, "GET", "/health").status, 200);
  serving.rig.backend.let_go();
  EXPECT_EQ(complete(serving, R"("max_tokens":2)").status, 200);
  // The numbers are published after each step, a moment after its answers are delivered.
  engine::soon([&] {
    const auto stats = serving.engine.stats().scheduler;
    return stats.finished_cancelled == 4 && stats.blocks_held == 0;
  });
  EXPECT_EQ(serving.engine.stats().scheduler.finished_cancelled, 4);
  EXPECT_EQ(serving.engine.stats().scheduler.blocks_held, 0);
}

TEST(Server, AStepThatHangsFailsHealth) {
  Serving serving({.health_timeout_s = 0.2});
  EXPECT_EQ(ask(serving, "GET", "/health").status, 200);  // idle time is no age
  serving.rig.backend.hold();
  Client client(serving);
  client.send("POST", "/v1/completions", R"({"prompt":[5],"max_tokens":2})");
  ASSERT_TRUE(serving.rig.backend.wait_for_steps(1));
  ASSERT_TRUE(engine::soon([&] { return ask(serving, "GET", "/health").status == 503; }));
  EXPECT_THAT(ask(serving, "GET", "/health").body, HasSubstr("no step has ended"));
  serving.rig.backend.let_go();
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(ask(serving, "GET", "/health").status, 200);
}

TEST(Server, AFaultEndsStreamsHealthAndTheProcess) {
  Serving serving({.shutdown_grace_s = 0.2});
  serving.rig.backend.hold();
  Client stream(serving), whole(serving);
  stream.send("POST", "/v1/completions", R"({"prompt":[5],"max_tokens":60,"stream":true})");
  whole.send("POST", "/v1/completions", R"({"prompt":[5],"max_tokens":60})");
  ASSERT_TRUE(engine::soon([&] { return serving.engine.pending() == 2; }));
  serving.rig.backend.break_after(3);
  serving.rig.backend.let_go();
  const Reply streamed = stream.read();
  EXPECT_THAT(streamed.body, HasSubstr("caught fire"));
  EXPECT_THAT(streamed.body, HasSubstr("data: [DONE]"));
  const Reply failed = whole.read();
  EXPECT_EQ(failed.status, 500);
  EXPECT_THAT(failed.body, HasSubstr("caught fire"));
  serving.wait();
  EXPECT_EQ(serving.exit_code, 1);
}

TEST(Server, StopLetsRequestsEnd) {
  Serving serving({.shutdown_grace_s = 20});
  serving.rig.backend.hold();
  Client client(serving);
  client.send("POST", "/v1/completions", R"({"prompt":[5],"max_tokens":6,"ignore_eos":true})");
  ASSERT_TRUE(serving.rig.backend.wait_for_steps(1));
  serving.stop();
  // Those that come meanwhile are told, and do not hang.
  ASSERT_TRUE(engine::soon([&] { return ask(serving, "GET", "/health").status == 503; }));
  const Reply late = complete(serving, R"("max_tokens":1)");
  EXPECT_EQ(late.status, 503);
  EXPECT_THAT(late.head, HasSubstr("Retry-After"));
  EXPECT_THAT(late.head, HasSubstr("Connection: close"));
  EXPECT_EQ(ask(serving, "GET", "/version").status, 200);
  serving.rig.backend.let_go();
  const Reply reply = client.read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.json()["usage"]["completion_tokens"], 6);
  serving.wait();
  EXPECT_EQ(serving.exit_code, 0);
}

TEST(Server, StopEndsWhatTakesTooLongWithAnError) {
  Serving serving({.shutdown_grace_s = 0.1});
  serving.rig.backend.hold();
  Client stream(serving), whole(serving);
  stream.send("POST", "/v1/completions", R"({"prompt":[5],"max_tokens":60,"stream":true})");
  whole.send("POST", "/v1/completions", R"({"prompt":[5],"max_tokens":60})");
  ASSERT_TRUE(engine::soon([&] { return serving.engine.pending() == 2; }));
  serving.stop();
  EXPECT_THAT(stream.read().body, HasSubstr("shutting down"));
  EXPECT_EQ(whole.read().status, 503);
  serving.rig.backend.let_go();
  serving.wait();
  EXPECT_EQ(serving.exit_code, 0);
}

}  // namespace
}  // namespace octet::server
