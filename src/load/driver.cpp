#include "load/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <thread>

#include "base/error.h"
#include "load/sse.h"

namespace octet::load {
namespace {

namespace asio = boost::asio;
constexpr double kPlainSeconds = 30;      // of a call that is no request of the test
constexpr size_t kErrorBytes = 64 << 10;  // of an error body that are looked at

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

Clock::time_point later(Clock::time_point from, double seconds) {
  return from + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Reads one answer as it comes.
class Reader {
 public:
  // `most_prompt` and `most_output`: tokens that an honest usage may report.
  Reader(Api api, Clock::time_point sent, int64_t most_prompt, int64_t most_output,
         Outcome& outcome, Live& live)
      : api_(api),
        sent_(sent),
        last_(sent),
        most_prompt_(most_prompt),
        most_output_(most_output),
        outcome_(outcome),
        live_(live) {}

  // False: nothing more is wanted.
  bool take(int status, std::string_view part) {
    if (status != 200) {
      error_body_ += part.substr(0, kErrorBytes - std::min(kErrorBytes, error_body_.size()));
      return true;
    }
    const Clock::time_point now = Clock::now();
    const bool fits = sse_.feed(part, [&](std::string_view data) { event(data, now); });
    if (!fits) fail(Failure::invalid, "an event of more than 16 MiB");
    return outcome_.ok();
  }

  void end(const HttpAnswer& answer) {
    outcome_.status = answer.status;
    if (!outcome_.ok()) return;
    if (answer.failure != Failure::none) return fail(answer.failure, answer.message);
    if (answer.status != 200) {
      const std::string why = error_message(error_body_);
      return fail(Failure::status,
                  fmt::format("HTTP {}{}{}", answer.status, why.empty() ? "" : ": ", why));
    }
    if (events_ == 0) {
      return fail(Failure::invalid, fmt::format("no server-sent event in the answer (Content-Type: "
                                                "{})",
                                                answer.content_type));
    }
    if (!done_) return fail(Failure::broken, "the stream ended before data: [DONE]");
    if (tokens_ == 0) return fail(Failure::empty, "the stream had no token");
    outcome_.latency = seconds_between(sent_, last_);
    const int64_t most = std::max(most_output_, tokens_);
    outcome_.by_usage = usage_ && *usage_ >= 1 && *usage_ <= most;
    outcome_.output_tokens = outcome_.by_usage ? *usage_ : tokens_;
  }

 private:
  void event(std::string_view data, Clock::time_point now) {
    if (!outcome_.ok() || done_) return;
    ++events_;
    const std::optional<Chunk> chunk = parse_chunk(api_, data);
    if (!chunk) {
      return fail(Failure::invalid,
                  "an event that is no chunk: " + shortened(std::string(data), 200));
    }
    if (!chunk->error.empty()) return fail(Failure::error, chunk->error);
    done_ = chunk->done;
    if (chunk->completion_tokens) usage_ = chunk->completion_tokens;
    const int64_t prompt = chunk->prompt_tokens.value_or(-1);
    if (prompt >= 0 && prompt <= most_prompt_) outcome_.prompt_tokens = prompt;
    outcome_.text += chunk->text;
    if (!chunk->has_token) return;
    if (tokens_++ == 0) {
      outcome_.ttft = seconds_between(sent_, now);
      live_.first_token(outcome_.ttft);
    } else {
      outcome_.itls.push_back(seconds_between(last_, now));
    }
    last_ = now;
    live_.token();
  }

  void fail(Failure kind, std::string message) {
    outcome_.failure = kind;
    outcome_.message = std::move(message);
  }

  const Api api_;
  const Clock::time_point sent_;
  Clock::time_point last_;
  const int64_t most_prompt_, most_output_;
  Outcome& outcome_;
  Live& live_;
  SseParser sse_;
  std::string error_body_;
  std::optional<int64_t> usage_;
  int64_t events_ = 0, tokens_ = 0;
  bool done_ = false;
};

// One run; its coroutines share it.
struct Run {
  const Target& target;
  const RunPlan& plan;
  Live& live;
  asio::io_context& io;
  HttpClient& client;
  Clock::time_point begin = Clock::now();
  size_t next = 0;  // request to be sent
  size_t left = 0;  // senders that have not ended
  std::vector<Outcome> outcomes;
  std::vector<char> ended;  // whether each has
  std::exception_ptr thrown = nullptr;
};

asio::awaitable<void> send(Run& run, size_t index) {
  const LoadRequest& request = run.plan.requests[index];
  Outcome& outcome = run.outcomes[index];
  outcome.group = request.group;
  outcome.prompt_tokens = request.prompt_tokens;
  std::string body = request_body(request, run.target.body);
  // A token is a byte of the body or more, but for those that a server's chat template adds.
  const auto most_prompt = static_cast<int64_t>(body.size()) + (int64_t{1} << 16);
  const Clock::time_point sent = Clock::now();
  outcome.start = seconds_between(run.begin, sent);
  run.live.sent();
  Reader reader(run.target.body.api, sent, most_prompt, request.output_tokens, outcome, run.live);
  const HttpAnswer answer = co_await run.client.request(
      target_path(run.target.base, run.target.endpoint), run.target.headers, std::move(body),
      later(sent, run.target.timeout_s),
      [&](int status, std::string_view part) { return reader.take(status, part); });
  reader.end(answer);
  run.ended[index] = 1;
  run.live.ended(outcome.ok());
}

// Takes requests in order, each when it is due. With as many senders as requests may run at once,
// a request that finds none free waits: that is the limit on concurrency.
asio::awaitable<void> sender(Run& run) {
  asio::steady_timer timer(run.io);
  while (run.next < run.plan.requests.size()) {
    const size_t index = run.next++;
    const double due = run.plan.arrivals.empty() ? 0 : run.plan.arrivals[index];
    const Clock::time_point time = later(run.begin, due);
    if (time > Clock::now()) {
      timer.expires_at(time);
      co_await timer.async_wait(asio::use_awaitable);
    }
    run.outcomes[index].arrival = due;
    co_await send(run, index);
  }
}

asio::awaitable<void> draw(Run& run) {
  asio::steady_timer timer(run.io);
  while (run.left > 0) {
    run.live.draw();
    timer.expires_after(std::chrono::milliseconds(100));
    co_await timer.async_wait(asio::use_awaitable);
  }
}

}  // namespace

std::string target_path(const hub::Url& base, std::string_view endpoint) {
  std::string_view path = base.target;
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);
  return std::string(path) + std::string(endpoint);
}

Driver::Driver(Target target)
    : target_(std::move(target)),
      io_(std::make_unique<asio::io_context>(1)),
      client_(std::make_unique<HttpClient>(*io_, target_.base, target_.ca_file)) {}

Driver::~Driver() = default;
Driver::Driver(Driver&&) noexcept = default;

void Driver::finish(std::exception_ptr& thrown) {
  io_->restart();
  while (!io_->stopped() && !stopped_) {
    stopped_ = stop_ && stop_();
    if (!stop_) {
      io_->run();
    } else if (!stopped_) {
      io_->run_for(std::chrono::milliseconds(50));
    }
  }
  if (!thrown && !stopped_) return;
  client_.reset();
  io_ = std::make_unique<asio::io_context>(1);
  client_ = std::make_unique<HttpClient>(*io_, target_.base, target_.ca_file);
  if (thrown) std::rethrow_exception(thrown);
}

RunResult Driver::run(const RunPlan& plan, Live& live) {
  Run run{target_, plan, live, *io_, *client_};
  run.outcomes.resize(plan.requests.size());
  run.ended.resize(plan.requests.size());
  const size_t most =
      plan.max_concurrency > 0 ? static_cast<size_t>(plan.max_concurrency) : plan.requests.size();
  const size_t senders = std::min(most, plan.requests.size());
  run.left = senders;
  double seconds = 0;
  for (size_t i = 0; i < senders; ++i) {
    asio::co_spawn(*io_, sender(run), [&](const std::exception_ptr& error) {
      if (error) {
        run.thrown = error;
        io_->stop();
      }
      if (--run.left == 0) seconds = seconds_between(run.begin, Clock::now());
    });
  }
  if (live.shown()) asio::co_spawn(*io_, draw(run), asio::detached);
  finish(run.thrown);
  if (!stopped_) return {std::move(run.outcomes), seconds};
  RunResult part{{}, seconds_between(run.begin, Clock::now()), true};
  for (size_t i = 0; i < run.outcomes.size(); ++i) {
    if (run.ended[i] != 0) part.outcomes.push_back(std::move(run.outcomes[i]));
  }
  return part;
}

Outcome Driver::run_one(const LoadRequest& request) {
  Live silent;
  RunResult result = run({.requests = {&request, 1}}, silent);
  if (!result.outcomes.empty()) return std::move(result.outcomes.front());
  Outcome none;
  none.failure = Failure::broken;
  none.message = "stopped";
  return none;
}

Driver::Plain Driver::call(const std::string& path, const std::string& body,
                           std::optional<double> timeout_s) {
  const double most = timeout_s.value_or(std::min(kPlainSeconds, target_.timeout_s));
  Plain result;
  std::exception_ptr thrown;
  const auto work = [&]() -> asio::awaitable<void> {
    result.answer =
        co_await client_->request(target_path(target_.base, path), target_.headers, body,
                                  later(Clock::now(), most), [&](int, std::string_view part) {
                                    result.body += part;
                                    return result.body.size() < (size_t{64} << 20);
                                  });
  };
  asio::co_spawn(*io_, work, [&](const std::exception_ptr& error) { thrown = error; });
  finish(thrown);
  if (stopped_) {
    result.answer.failure = Failure::broken;
    result.answer.message = "stopped";
  }
  return result;
}

std::string Driver::first_model(double wait_s) {
  const Clock::time_point end = later(Clock::now(), wait_s);
  Plain got = call("/v1/models");
  while (got.answer.failure == Failure::connect && Clock::now() < end && !stopped_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    got = call("/v1/models");
  }
  const std::string where = target_.base.origin();
  if (got.answer.failure != Failure::none) {
    throw Error({.what = "the server does not answer",
                 .where = where,
                 .value = got.answer.message,
                 .fix = "start it, or correct --base-url; --ready-check-timeout-sec waits for one "
                        "that is starting"});
  }
  const std::string asked = where + target_path(target_.base, "/v1/models");
  if (got.answer.status == 401 || got.answer.status == 403) {
    throw Error({.what = "the server wants a key",
                 .where = asked,
                 .value = fmt::format("HTTP {}", got.answer.status),
                 .fix = "give it with --api-key KEY"});
  }
  const Json json = Json::parse(got.body, nullptr, false);
  const bool listed = got.answer.status == 200 && json.is_object() && json.contains("data") &&
                      json["data"].is_array() && !json["data"].empty() &&
                      json["data"][0].is_object() && json["data"][0].contains("id") &&
                      json["data"][0]["id"].is_string();
  if (!listed) {
    throw Error({.what = "no OpenAI-compatible server is there",
                 .where = asked,
                 .value = fmt::format("HTTP {}: {}", got.answer.status, shortened(got.body, 200)),
                 .accepted = "a list of models",
                 .fix = "correct --base-url, or name the model with --model"});
  }
  return json["data"][0]["id"].get<std::string>();
}

}  // namespace octet::load
