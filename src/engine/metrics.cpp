#include "engine/metrics.h"

#include <algorithm>
#include <utility>

namespace octet::engine {
namespace {

constexpr double kFirstToken[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                  1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
constexpr double kInterToken[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                  .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
constexpr double kLatency[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                               30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
constexpr double kTokens[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                              1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
constexpr double kChoices[] = {1, 2, 5, 10, 20};
constexpr double kShares[] = {0, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1};

double seconds_between(RequestMetrics::Clock::time_point begin,
                       RequestMetrics::Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

Ending ending_of(const TokenEvent& event) {
  if (!event.fault.empty()) return Ending::error;
  switch (*event.finish) {
    case sched::Finish::stop:
      return Ending::stop;
    case sched::Finish::length:
      return Ending::length;
    case sched::Finish::cancelled:
      return Ending::abort;
    case sched::Finish::timeout:
      return Ending::timeout;
    case sched::Finish::error:
      break;
  }
  return Ending::error;
}

}  // namespace

bool RepetitionCount::add(int32_t token) {
  const auto id = static_cast<uint32_t>(token);
  uint32_t hash = 2166136261U;
  for (const uint32_t part : {last_[0], last_[1], last_[2], id}) {
    hash = (hash ^ part) * 16777619U;
    hash ^= hash >> 15;
  }
  std::rotate(last_, last_ + 1, last_ + 3);
  last_[2] = id;
  if (++count_ < 4) return false;
  if (seen_.empty()) seen_.resize(kSlots);
  hash |= 1;  // 0 is an empty slot
  uint32_t& slot = seen_[(hash >> 1) % kSlots];
  return std::exchange(slot, hash) == hash;
}

RequestMetrics::RequestMetrics()
    : time_to_first_token(kFirstToken),
      inter_token(kInterToken),
      whole_request(kLatency),
      queue(kLatency),
      prefill(kLatency),
      decode(kLatency),
      inference(kLatency),
      prompt_tokens(kTokens),
      generation_tokens(kTokens),
      asked_choices(kChoices),
      asked_tokens(kTokens),
      longest_choice(kTokens),
      repetition(kShares) {}

// One request, on the engine's thread.
class RequestMetrics::Observer {
 public:
  Observer(RequestMetrics& metrics, Clock::time_point arrival)
      : metrics_(metrics), arrival_(arrival) {}

  void see(const TokenEvent& event) {
    if (!event.tokens.empty()) see_tokens(event);
    if (event.finish || !event.fault.empty()) see_end(event);
  }

 private:
  void see_tokens(const TokenEvent& event) {
    const Clock::time_point now = Clock::now();
    if (tokens_ == 0) {
      metrics_.time_to_first_token.add(seconds_between(arrival_, now));
      metrics_.prompt_tokens_total += static_cast<uint64_t>(event.prompt_tokens);
    } else {
      const double each = seconds_between(last_, now) / static_cast<double>(event.tokens.size());
      for (size_t i = 0; i < event.tokens.size(); ++i) metrics_.inter_token.add(each);
    }
    last_ = now;
    for (const SampledToken& token : event.tokens) repeated_ += repetition_.add(token.token);
    tokens_ += static_cast<int64_t>(event.tokens.size());
    metrics_.generated_tokens_total += event.tokens.size();
  }

  void see_end(const TokenEvent& event) {
    metrics_.ended[static_cast<size_t>(ending_of(event))].fetch_add(1);
    metrics_.whole_request.add(seconds_between(arrival_, Clock::now()));
    metrics_.repeated_tokens_total += static_cast<uint64_t>(repeated_);
    constexpr int64_t enough = 16;
    if (tokens_ >= enough) {
      metrics_.repetition.add(static_cast<double>(repeated_) / static_cast<double>(tokens_));
    }
    if (tokens_ == 0) return;  // it never ran, or not long enough to say more
    metrics_.prompt_tokens.add(event.prompt_tokens);
    metrics_.generation_tokens.add(event.output_tokens);
    metrics_.queue.add(event.timing.queue_s);
    metrics_.prefill.add(event.timing.prefill_s);
    metrics_.decode.add(event.timing.decode_s);
    metrics_.inference.add(event.timing.prefill_s + event.timing.decode_s);
  }

  RequestMetrics& metrics_;
  Clock::time_point arrival_, last_;
  RepetitionCount repetition_;
  int64_t tokens_ = 0, repeated_ = 0;
};

EventSink RequestMetrics::observe(EventSink sink, Clock::time_point arrival) {
  // Shared, since a sink may be copied.
  return [observer = std::make_shared<Observer>(*this, arrival),
          sink = std::move(sink)](TokenEvent event) {
    observer->see(event);
    sink(std::move(event));
  };
}

}  // namespace octet::engine
