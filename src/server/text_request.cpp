// The body of POST /v1/completions.
#include <fmt/format.h>

#include <algorithm>

#include "server/request.h"

namespace octet::server {
namespace {

// A string, an array of ids, or an array of either.
std::vector<Prompt> parse_prompts(const Json& prompt, int64_t vocab) {
  constexpr size_t most = 256;
  const auto one = [&](const Json& value) -> Prompt {
    if (value.is_string()) return value.get<std::string>();
    if (value.is_array()) return token_ids(value, "prompt", vocab);
    refuse("prompt", fmt::format("prompt must be a string, an array of token ids, or an array of "
                                 "these, got {}",
                                 shortened(dump_json(value), 40)));
  };
  if (!prompt.is_array() || (!prompt.empty() && prompt.front().is_number())) return {one(prompt)};
  if (prompt.empty()) refuse("prompt", "prompt is an empty array: there is nothing to complete");
  if (prompt.size() > most) {
    refuse("prompt", fmt::format("prompt holds {} prompts; at most {} go into one request",
                                 prompt.size(), most));
  }
  std::vector<Prompt> prompts;
  for (const Json& value : prompt) prompts.push_back(one(value));
  return prompts;
}

// With echo, max_tokens may be 0: the prompt alone, which the engine computes together with a token
// that nobody sees.
void parse_length(const JsonView& body, CompletionRequest& request) {
  constexpr int32_t openais = 16;
  request.echo = body.get<bool>("echo", false);
  const int32_t most = integer(body, "max_tokens", openais, request.echo ? 0 : 1);
  request.echo_alone = most == 0;
  request.generation.max_tokens = std::max(most, 1);
}

void parse_best_of(const JsonView& body, CompletionRequest& request) {
  request.best_of = integer(body, "best_of", request.n, 1, 128);
  if (request.best_of < request.n) {
    refuse("best_of", fmt::format("best_of is {}, and n = {} of these cannot be given",
                                  request.best_of, request.n));
  }
  if (request.best_of == request.n) return;
  if (request.stream) {
    refuse("best_of", "best_of above n needs stream: false: which are best is known at the end");
  }
  engine::Sampling& sampling = request.generation.sampling;
  sampling.logprobs = std::max(sampling.logprobs, 0);
}

}  // namespace

CompletionRequest parse_completion(const std::string& text, const ServedModel& served,
                                   uint64_t default_seed) {
  static constexpr std::string_view kOwn[] = {
      "prompt", "max_tokens", "add_special_tokens", "logprobs", "best_of", "echo", "suffix"};
  const Json json = parse_json(text, kBodyName);
  const JsonView body(json, kBodyName);
  CompletionRequest request;
  parse_common(body, served, default_seed, request);
  if (!body.has("prompt")) {
    refuse("prompt",
           "prompt is missing: send a string, an array of token ids, or an array of these");
  }
  request.prompts = parse_prompts(json.at("prompt"), served.vocab);
  if (body.has("suffix") && !body.get<std::string>("suffix").empty()) {
    refuse("suffix",
           "suffix is not supported: these models complete at the end only; leave it out");
  }
  parse_length(body, request);
  if (body.has("logprobs")) {
    request.logprobs = true;
    engine::GenRequest& generation = request.generation;
    generation.sampling.logprobs = integer(body, "logprobs", 0, 0, served.max_logprobs);
    if (request.echo) {
      generation.prompt_logprobs =
          std::max(generation.prompt_logprobs, generation.sampling.logprobs);
    }
  }
  parse_best_of(body, request);
  request.add_special = body.get<bool>("add_special_tokens", true);
  request.structured = parse_structured(body, text);
  note_unknown(body, kOwn, request);
  return request;
}

}  // namespace octet::server
