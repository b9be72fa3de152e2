// What goes over the wire, in OpenAI's shapes: the body of a request, and what a chunk of its
// stream says. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "load/request.h"

namespace octet::load {

enum class Api { completions, chat };

struct BodyOptions {
  Api api = Api::completions;
  std::string model;
  bool ignore_eos = false;                       // not OpenAI's; sent only if set
  OrderedJson sampling = OrderedJson::object();  // temperature, top_p, ...: sent as they are
  OrderedJson extra = OrderedJson::object();     // --extra-body: goes above all else
};

// A streamed request with stream_options.include_usage. A text prompt for chat becomes one message
// of the user; Error if ids should be sent as chat, or messages as a completion.
std::string request_body(const LoadRequest& request, const BodyOptions& options);

// One event of a stream.
struct Chunk {
  bool has_token = false;  // it counts for TTFT and ITL
  std::string text;
  std::optional<int64_t> prompt_tokens, completion_tokens;  // of `usage`
  bool done = false;                                        // "[DONE]"
  std::string error;                                        // the message of an error object
};

// nullopt: `data` is neither "[DONE]" nor a JSON object with `choices`, `usage` or `error`.
//
// A chunk has a token if it has a choice, as vLLM counts it, also where its text is empty (an end
// token, or a part of a character). The first chunk of a chat, which only says the role, has none.
std::optional<Chunk> parse_chunk(Api api, std::string_view data);

// The `message` of an error body in OpenAI's shape, or else its beginning.
std::string error_message(std::string_view body);

}  // namespace octet::load
