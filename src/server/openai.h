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
#include "server/structured.h"
#include "server/tools/tool_parser.h"
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

// What a request's fields are where it leaves them out: OpenAI's defaults, or those of the model's
// generation_config.json.
struct SamplingDefaults {
  float temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1;
  int32_t top_k = 0;
  std::optional<int32_t> max_tokens;  // of a chat; unset = as many as fit
};

// temperature, top_p, top_k, min_p, repetition_penalty and max_new_tokens of a
// generation_config.json; others have no meaning here. Throws Error naming the file for a value
// that a request might not have either.
SamplingDefaults parse_generation_config(const JsonView& config);

// What the server serves, for the checks of a request.
struct ServedModel {
  std::string name, root;
  int64_t created = 0;
  int64_t max_model_len = 0;
  int64_t vocab = 0;
  int32_t max_logprobs = 20;
  SamplingDefaults defaults = {};
  bool priorities = false;               // the scheduler heeds them
  bool force_usage = false;              // usage ends every stream, asked for or not
  bool cached_usage = true;              // usage says how much of the prompt was cached
  std::optional<ToolFormat> tools = {};  // how this model writes a call; unset: it does not
};

// ApiError 404: no such model is `served` here.
[[noreturn]] void refuse_model(const std::string& name, const std::string& served);

struct AnswerFormat;
const AnswerFormat& completion_format();

// Text, ids, or a conversation that the model's template makes text of.
using Prompt = std::variant<std::string, std::vector<int32_t>, text::ChatInput>;

// A prompt that is too long loses tokens instead of being refused.
struct Truncation {
  int32_t most = 0;           // tokens that are kept
  bool from_the_left = true;  // what is lost; else from the right
};

struct CompletionRequest {
  const AnswerFormat* format = &completion_format();
  std::string id;  // "" = the server makes one up
  std::vector<Prompt> prompts;
  int32_t n = 1;
  int32_t best_of = 1;            // choices that are computed for each prompt; the best n are given
  engine::GenRequest generation;  // without prompt and bad words
  std::optional<int32_t> default_tokens;  // without max_tokens: so many, or as many as fit
  std::vector<std::string> stop, bad_words;
  std::optional<Structured> structured;  // the form that the output must have
  bool include_stop = false, skip_special = true, add_special = true;
  std::optional<Truncation> truncation;
  bool echo = false;           // the prompt is the beginning of the text
  bool echo_alone = false;     // and all of it: max_tokens is 0
  bool logprobs = false;       // are given; the engine may compute them for best_of alone
  bool tokens_as_ids = false;  // "token_id:7" in place of a token's text
  bool token_ids = false;      // those of the prompt and the answer are given, too
  std::optional<int32_t> prompt_logprobs;  // of so many best tokens are given
  std::optional<ToolFormat> tools;         // calls are looked for in the text
  std::vector<std::string> tool_names;
  bool names_tool = false;  // the answer is a call of the function that tool_choice names
  bool stream = false;
  bool include_usage = false;               // in an extra last chunk of the stream
  bool continuous_usage = false;            // and in every other chunk
  bool cached_usage = true;                 // with prompt_tokens_details
  std::vector<std::string> unknown_fields;  // accepted, and logged

  size_t choices() const { return prompts.size() * static_cast<size_t>(best_of); }
};

// Throws ApiError naming the field. `default_seed` is used where the request has none.
CompletionRequest parse_completion(const std::string& body, const ServedModel& served,
                                   uint64_t default_seed);

// A part of a tool call: with its name where it begins.
struct ToolCallDelta {
  int32_t index = 0;
  std::string name;  // "" = the call of this index goes on
  std::string arguments;
};

// What is known of one token.
struct TopLogprob {
  std::string token;  // as text, with U+FFFD for parts of characters
  float logprob = 0;
  std::string bytes = "";
};
struct TokenLogprob {
  std::string token, bytes;
  std::optional<float> logprob;  // unset for the first token of an echoed prompt
  std::vector<TopLogprob> top;   // the best tokens, the best first
  bool sampled_is_best = false;  // the token is among them
  size_t text_offset = 0;        // characters of the choice's text before the token
};
// With `as_ids`, the texts are "token_id:7". A float that is not finite becomes -9999.
TokenLogprob token_logprob(const text::Tokenizer& tokenizer, const engine::SampledToken& token,
                           size_t text_offset, bool as_ids = false);
// {"7": {"logprob", "rank", "decoded_token"}, ..} of the `most` best tokens and this one, as vLLM's
// prompt_logprobs has it for one token of a prompt.
OrderedJson prompt_logprob_json(const text::Tokenizer& tokenizer, const engine::SampledToken& token,
                                int32_t most);
// {"text_offset", "token_logprobs", "tokens", "top_logprobs"}, an array each; with the sampled
// token always among the top ones.
OrderedJson logprobs_json(const std::vector<TokenLogprob>& tokens);

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  std::optional<int64_t> cached_tokens = 0;  // of the prompt; unset: not told
};
OrderedJson usage_json(const Usage& usage);

struct Choice {
  int32_t index = 0;
  std::string text;
  std::vector<ToolCallDelta> calls;
  OrderedJson logprobs;                      // null if none were asked for
  std::optional<std::string> finish_reason;  // of the last part of a stream
  std::optional<OrderedJson> stop_reason;    // the stop string or token id
  std::optional<std::vector<int32_t>> token_ids, prompt_token_ids;
  OrderedJson prompt_logprobs;  // null if none were asked for
};

// What every object of one answer says.
struct Envelope {
  std::string id, model;
  int64_t created = 0;
  std::string nonce = "";  // of the ids of tool calls
};

// An answer with no choices yet.
OrderedJson answer_json(const Envelope& envelope, const char* object_name);
// "logprobs", "finish_reason", "stop_reason" and "token_ids" of a choice.
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
  // What comes before the first chunk of each choice, which it may take something from; null:
  // nothing does.
  std::string (*opening)(const Envelope&, Choice& first, const std::optional<Usage>&);
};

std::string models_json(const ServedModel& served);
std::string model_json(const ServedModel& served);

std::string_view finish_reason(sched::Finish finish);

}  // namespace octet::server
