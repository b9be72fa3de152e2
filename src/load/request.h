// One request of a load test, and what came of it. Times are seconds since the run began.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"

namespace octet::load {

// A text, token ids, or the `messages` of a conversation (a JSON array).
using Prompt = std::variant<std::string, std::vector<int32_t>, Json>;

struct LoadRequest {
  Prompt prompt;
  int64_t prompt_tokens = 0;  // 0 = not known: the server's usage says it
  int64_t output_tokens = 16;
  std::string group;  // "short", "medium", "long" in a mixed load
};

// Why a request has no result.
enum class Failure {
  none,
  connect,  // no connection: name, port, TLS
  status,   // an HTTP status other than 200
  timeout,  // the deadline passed
  broken,   // the connection or the stream ended before the answer did
  invalid,  // an answer that is no completion: other JSON, or none
  error,    // an error event in the stream, after the 200
  empty,    // a whole answer without a single token
};
inline constexpr int kFailures = 8;
std::string_view name_of(Failure failure);

struct Outcome {
  double arrival = 0;        // when it should have been sent
  double start = 0;          // when it was: later, if --max-concurrency held it back
  double ttft = 0;           // to the first chunk with a token
  double latency = 0;        // to the last such chunk
  std::vector<double> itls;  // between one such chunk and the next
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;  // by the server's usage; where it has none, the number of chunks
  bool by_usage = false;
  std::string text, group;
  Failure failure = Failure::none;
  int status = 0;       // of HTTP
  std::string message;  // what went wrong, in words

  bool ok() const { return failure == Failure::none; }
  // (latency - ttft) / (tokens - 1); 0 for a single token.
  double tpot() const {
    return output_tokens > 1 ? (latency - ttft) / static_cast<double>(output_tokens - 1) : 0;
  }
};

// Of requests in the order of sending; `seconds` is from the first arrival's clock to the last end.
struct RunResult {
  std::vector<Outcome> outcomes;
  double seconds = 0;
  bool stopped = false;  // before its time: these are the requests that had ended
};

}  // namespace octet::load
