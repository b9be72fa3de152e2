// /v1/octet/microscope and /v1/octet/baseline: the served model beside its baseline.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/microscope.h"
#include "server/http.h"
#include "server/openai.h"

namespace octet::server {

struct MicroscopeRequest {
  std::vector<int32_t> tokens;  // prompt, then output; empty: the texts say both
  std::string prompt, completion;
  int64_t prompt_tokens = 0;        // of `tokens`: the first so many are the prompt
  std::optional<int64_t> position;  // the token whose prediction is taken apart
  size_t top = 5;                   // best tokens to report of each model
  int32_t max_tokens = 64;          // of the baseline's continuation
};
// Throws ApiError naming the field, also where there are more than `most_tokens`. Texts are not
// tokenized here.
MicroscopeRequest parse_microscope(const std::string& body, const ServedModel& served,
                                   int64_t most_tokens);

// What the two paths answer with. A thread of its own computes, one request after another: neither
// the event loop nor the engine waits for it. A client that goes ends its work at the next chunk.
class MicroscopeService {
 public:
  // `workers` read large bodies, so that what is wrong is said before anything waits for its turn.
  // All outlive this; `baseline` is the other model's name.
  MicroscopeService(engine::Microscope& microscope, std::string baseline,
                    const text::Tokenizer& tokenizer, std::vector<int32_t> end_tokens,
                    const ServedModel& served, boost::asio::any_io_executor workers);
  ~MicroscopeService();
  MicroscopeService(const MicroscopeService&) = delete;
  MicroscopeService& operator=(const MicroscopeService&) = delete;

  // POST /v1/octet/microscope: every token, or with `position` the parts of the model at one.
  boost::asio::awaitable<void> view(const HttpRequest& request, Responder& responder);
  // POST /v1/octet/baseline: the baseline's own greedy continuation.
  boost::asio::awaitable<void> continue_baseline(const HttpRequest& request, Responder& responder);

  // {"object", "baseline", "max_tokens", "parts"}; `service` null: there is no baseline.
  static std::string describe(const MicroscopeService* service);

  // Requests that run or wait end with an error, soon; more are refused.
  void stop();
  // Waits until the thread has ended. After stop().
  void join();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace octet::server
