// The OpenAI surface as pure functions: JSON in, plain structs, JSON out. Shapes
// are those of OpenAI's API and of vLLM's server (docs/SERVING.md).
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace octet::server {

// A request that is answered with an error object.
struct ApiError : std::exception {
  int status = 400;
  std::string message, type = "BadRequestError";
  std::optional<std::string> param;

  ApiError(int http_status, std::string text, std::string kind = "BadRequestError",
           std::optional<std::string> field = std::nullopt)
      : status(http_status),
        message(std::move(text)),
        type(std::move(kind)),
        param(std::move(field)) {}
  const char* what() const noexcept override { return message.c_str(); }
};

// {"error": {"message", "type", "param", "code"}}
std::string error_json(const ApiError& error);

// An Error of ours as a 400, on one line. A field of the request that it names becomes `param`.
ApiError to_api_error(const Error& error);

// What the server serves, for the checks of a request.
struct ServedModel {
  std::string name, root;
  int64_t created = 0;
  int64_t max_model_len = 0;
  int64_t vocab = 0;
  int32_t max_logprobs = 20;
};

// ApiError 404: no such model is `served` here.
[[noreturn]] void refuse_model(const std::string& name, const std::string& served);

struct AnswerFormat;
const AnswerFormat& completion_format();

// Text, ids, or a conversation that the model's template makes text of.
using Prompt = std::variant<std::string, std::vector<int32_t>, text::ChatInput>;

struct CompletionRequest {
  const AnswerFormat* format = &completion_format();
  std::vector<Prompt> prompts;
  int32_t n = 1;
  engine::GenRequest generation;  // without prompt
  std::vector<std::string> stop;
  bool include_stop = false, skip_special = true, add_special = true;
  bool stream = false;
  bool include_usage = false;               // in an extra last chunk of the stream
  bool continuous_usage = false;            // and in every other chunk
  std::vector<std::string> unknown_fields;  // accepted, and logged
};

// Throws ApiError naming the field. `default_seed` is used where the request has none.
CompletionRequest parse_completion(const std::string& body, const ServedModel& served,
                                   uint64_t default_seed);

// What is known of one token.
struct TopLogprob {
  std::string token;  // as text, with U+FFFD for parts of characters
  float logprob = 0;
  std::string bytes = "";
};
struct TokenLogprob {
  std::string token, bytes;
  float logprob = 0;
  std::vector<TopLogprob> top;   // the best tokens, the best first
  bool sampled_is_best = false;  // the token is among them
  size_t text_offset = 0;        // characters of the choice's text before the token
};
TokenLogprob token_logprob(const text::Tokenizer& tokenizer, const engine::SampledToken& token,
                           size_t text_offset);
// {"text_offset", "token_logprobs", "tokens", "top_logprobs"}, an array each; with the sampled
// token always among the top ones.
OrderedJson logprobs_json(const std::vector<TokenLogprob>& tokens);

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};
OrderedJson usage_json(const Usage& usage);

struct Choice {
  int32_t index = 0;
  std::string text;
  OrderedJson logprobs;                      // null if none were asked for
  std::optional<std::string> finish_reason;  // of the last part of a stream
  std::optional<OrderedJson> stop_reason;    // the stop string or token id
};

// What every object of one answer says.
struct Envelope {
  std::string id, model;
  int64_t created = 0;
};

// An answer with no choices yet.
OrderedJson answer_json(const Envelope& envelope, const char* object_name);
// "logprobs", "finish_reason" and "stop_reason" of a choice.
void add_ends(const Choice& choice, OrderedJson& part);

// One `text_completion` object: a whole answer, or a chunk of a stream. `usage` if present.
std::string completion_json(const Envelope& envelope, const std::vector<Choice>& choices,
                            const std::optional<Usage>& usage);

// How an answer looks: what completions and chat do not share.
struct AnswerFormat {
  std::string_view prompt_field;  // that a refusal of the prompt names
  OrderedJson (*logprobs)(const std::vector<TokenLogprob>&);
  std::string (*whole)(const Envelope&, const std::vector<Choice>&, const std::optional<Usage>&);
  std::string (*chunk)(const Envelope&, const std::vector<Choice>&, const std::optional<Usage>&);
  // What comes before the first chunk of each choice; null: nothing does.
  std::string (*opening)(const Envelope&, int32_t index, const std::optional<Usage>&);
};

std::string models_json(const ServedModel& served);
std::string model_json(const ServedModel& served);

std::string_view finish_reason(sched::Finish finish);

}  // namespace octet::server
