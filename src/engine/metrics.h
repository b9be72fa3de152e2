// What happened to requests, in numbers that any thread adds to and any thread reads, without locks
// that work would wait for. What is going on now (queues, blocks) is Engine::stats().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/histogram.h"

namespace octet::engine {

// How a request ended, as monitors call it.
enum class Ending : uint8_t { stop, length, abort, timeout, error };
inline constexpr std::string_view kEndings[] = {"stop", "length", "abort", "timeout", "error"};

// The share of a text that says again what it said before: tokens that end a sequence of four which
// stands earlier in the same output. It looks back over the last 4,096 tokens or so.
class RepetitionCount {
 public:
  // True if `token` ends such a sequence.
  bool add(int32_t token);

 private:
  static constexpr size_t kSlots = 8192;  // of the hashes of sequences; newer ones replace older
  uint32_t last_[3] = {};
  int32_t count_ = 0;
  std::vector<uint32_t> seen_;
};

class RequestMetrics {
 public:
  using Clock = std::chrono::steady_clock;

  // Bounds are vLLM's, so that dashboards made for it fit.
  RequestMetrics();

  // What the request that `sink` belongs to does from now on is counted; the sink gets every event.
  // `arrival` is when the client's request came, before it was read and tokenized.
  EventSink observe(EventSink sink, Clock::time_point arrival);

  // In seconds.
  Histogram time_to_first_token, inter_token, whole_request;
  Histogram queue, prefill, decode, inference;
  // In tokens, of one request.
  Histogram prompt_tokens, generation_tokens;
  // Of what was asked for in one go (n choices of a prompt): n, max_tokens, and the tokens of the
  // longest choice. The server's, which alone knows what belongs together.
  Histogram asked_choices, asked_tokens, longest_choice;
  // Of one request of 16 output tokens or more: the share of them that RepetitionCount finds.
  Histogram repetition;

  std::atomic<uint64_t> ended[std::size(kEndings)] = {};
  std::atomic<uint64_t> prompt_tokens_total{0};     // of requests that got a first token
  std::atomic<uint64_t> generated_tokens_total{0};  // that clients were given or would have been
  std::atomic<uint64_t> repeated_tokens_total{0};
  // Of outputs with a given form: their tokens, and the engine thread's processor time for it.
  std::atomic<uint64_t> constrained_tokens_total{0};
  std::atomic<double> constraint_seconds_total{0};

 private:
  class Observer;
};

}  // namespace octet::engine
