#include "server/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace octet::server {
namespace {

// Fields that every request may have, known here or known to mean nothing here.
constexpr std::string_view kKnown[] = {
    "model",
    "request_id",
    "n",
    "user",
    "session_id",
    // sampling.cpp
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    // how long, and when
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "priority",
    "timeout",
    "cache_salt",
    "truncate_prompt_tokens",
    "truncation_side",
    // what is shown
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "return_tokens_as_token_ids",
    "return_token_ids",
    "prompt_logprobs",
    "stream",
    "stream_options",
};

// Fields of vLLM that change the answer and that this server does not have: to pass over them would
// give another answer than was asked for. False and null ask for nothing.
struct Missing {
  std::string_view field, instead;
};
constexpr Missing kMissing[] = {
    {"use_beam_search", "best_of draws several answers and keeps the likeliest"},
    {"prompt_embeds", "a prompt is a text or token ids"},
    {"logprob_token_ids", "logprobs and prompt_logprobs give those of the best tokens"},
    {"repetition_detection", "repetition_penalty and frequency_penalty make repetitions unlikely"},
    {"thinking_token_budget", "max_tokens bounds all of an answer"},
};

void refuse_missing(const JsonView& body) {
  for (const Missing& one : kMissing) {
    if (!body.has(one.field) || body.json().at(one.field) == false) continue;
    refuse(one.field, fmt::format("{} is not supported; leave it out: {}", one.field, one.instead));
  }
}

// What the engine is told beside how to draw.
void parse_generation(const JsonView& body, const ServedModel& served, CompletionRequest& request) {
  engine::GenRequest& generation = request.generation;
  generation.min_tokens = integer(body, "min_tokens", 0, 0);
  generation.ignore_eos = body.get<bool>("ignore_eos", false);
  generation.salt = bounded_text(body, "cache_salt", 1024);  // it stays in the cache
  if (body.has("stop_token_ids")) {
    generation.stop_ids =
        token_ids(body.json().at("stop_token_ids"), "stop_token_ids", served.vocab);
    constexpr size_t most_ids = 8192;
    if (generation.stop_ids.size() > most_ids) {
      refuse("stop_token_ids", fmt::format("stop_token_ids holds {} ids; at most {} are accepted",
                                           generation.stop_ids.size(), most_ids));
    }
  }
  generation.priority = integer(body, "priority", 0, std::numeric_limits<int32_t>::min());
  if (generation.priority != 0 && !served.priorities) {
    refuse("priority",
           "priority has a meaning only under --schedule-policy priority, and this server runs "
           "another; leave it out");
  }
  constexpr double day = 86400;
  if (body.has("timeout")) {
    generation.timeout_s =
        number(body, "timeout", 0, 0.001, day, "a number of seconds from 0.001 to 86400");
  }
  const std::string side = body.get<std::string>("truncation_side", "left");
  if (side != "left" && side != "right") {
    refuse_value(body, "truncation_side", "\"left\" or \"right\"");
  }
  if (!body.has("truncate_prompt_tokens")) return;
  const int32_t most = integer(body, "truncate_prompt_tokens", -1, -1);
  if (most == 0) refuse_value(body, "truncate_prompt_tokens", "-1 or a positive number of tokens");
  request.truncation = {most < 0 ? std::numeric_limits<int32_t>::max() : most, side == "left"};
}

void parse_streaming(const JsonView& body, const ServedModel& served, CompletionRequest& request) {
  request.cached_usage = served.cached_usage;
  request.stream = body.get<bool>("stream", false);
  request.include_usage = request.stream && served.force_usage;
  const auto options = body.find("stream_options");
  if (!options) return;
  if (!request.stream) refuse("stream_options", "stream_options needs stream: true");
  request.include_usage |= options->get<bool>("include_usage", false);
  request.continuous_usage =
      request.include_usage && options->get<bool>("continuous_usage_stats", false);
}

}  // namespace

void refuse(std::string_view field, std::string message) {
  throw ApiError(400, std::move(message), "BadRequestError", std::string(field));
}

void refuse_value(const JsonView& body, std::string_view field, std::string_view accepted) {
  refuse(field, fmt::format("{} must be {}, got {}", field, accepted,
                            shortened(dump_json(body.json().at(field)), 80)));
}

std::string bounded_text(const JsonView& body, std::string_view field, size_t most) {
  std::string text = body.get<std::string>(field, "");
  if (text.size() <= most) return text;
  refuse(field, fmt::format("{} has {} bytes; at most {} are accepted", field, text.size(), most));
}

std::vector<std::string> parse_strings(const JsonView& body, std::string_view field, size_t most,
                                       size_t most_bytes) {
  if (!body.has(field)) return {};
  const Json& value = body.json().at(field);
  std::vector<std::string> strings;
  for (const Json& one : value.is_array() ? value : Json::array({value})) {
    if (!one.is_string()) {
      refuse_value(body, field, fmt::format("a string or an array of at most {} strings", most));
    }
    strings.push_back(one.get<std::string>());
    if (strings.back().size() > most_bytes) {
      refuse(field, fmt::format("{} holds a string of {} bytes; at most {} are accepted", field,
                                strings.back().size(), most_bytes));
    }
  }
  if (strings.size() > most) {
    refuse(field, fmt::format("{} holds {} strings; at most {} are accepted", field, strings.size(),
                              most));
  }
  return strings;
}

double number(const JsonView& body, std::string_view field, double fallback, double least,
              double most, std::string_view accepted) {
  if (!body.has(field)) return fallback;
  const Json& found = body.json().at(field);
  const double value = found.is_number() ? found.get<double>() : least - 1;
  if (value >= least && value <= most) return value;
  refuse_value(body, field, accepted);
}

int32_t integer(const JsonView& body, std::string_view field, int32_t fallback, int32_t least,
                int32_t most) {
  if (!body.has(field)) return fallback;
  const Json& found = body.json().at(field);
  const double value = found.is_number() ? found.get<double>() : 0.5;  // 8192.0 is an integer
  if (value == std::trunc(value) && value >= least && value <= most) {
    return static_cast<int32_t>(value);
  }
  refuse_value(body, field, fmt::format("an integer from {} to {}", least, most));
}

std::vector<int32_t> token_ids(const Json& array, std::string_view field, int64_t vocab) {
  // nlohmann iterates over a number as if it were an array of one.
  if (!array.is_array()) refuse(field, fmt::format("{} must be an array of token ids", field));
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const Json& id : array) {
    if (!id.is_number_integer() || id < 0 || id >= vocab) {
      refuse(field, fmt::format("{} holds {}, which is no token id of this model (0 to {})", field,
                                shortened(dump_json(id), 40), vocab - 1));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

void parse_common(const JsonView& body, const ServedModel& served, uint64_t default_seed,
                  CompletionRequest& request) {
  const std::string model = body.get<std::string>("model", served.name);
  if (model != served.name) refuse_model(model, served.name);
  request.id = bounded_text(body, "request_id", 128);
  refuse_missing(body);
  request.n = request.best_of = integer(body, "n", 1, 1, 128);
  parse_generation(body, served, request);
  parse_sampling(body, served, default_seed, request);

  request.stop = parse_strings(body, "stop", 64, 4096);
  if (std::ranges::any_of(request.stop, &std::string::empty)) {
    refuse("stop",
           "stop holds an empty string, which would end every answer at once; leave it out");
  }
  request.include_stop = body.get<bool>("include_stop_str_in_output", false);
  request.skip_special = body.get<bool>("skip_special_tokens", true);
  body.get<bool>("spaces_between_special_tokens", true);  // no tokenizer here puts any
  request.tokens_as_ids = body.get<bool>("return_tokens_as_token_ids", false);
  request.token_ids = body.get<bool>("return_token_ids", false);
  parse_streaming(body, served, request);
  if (body.has("prompt_logprobs")) {
    request.prompt_logprobs = integer(body, "prompt_logprobs", 0, 0, served.max_logprobs);
    if (request.stream) refuse("prompt_logprobs", "prompt_logprobs needs stream: false");
    request.generation.prompt_logprobs = *request.prompt_logprobs;
  }
}

void note_unknown(const JsonView& body, std::span<const std::string_view> own,
                  CompletionRequest& request) {
  for (const auto& [key, value] : body.json().items()) {
    if (std::ranges::find(kKnown, key) == std::end(kKnown) &&
        std::ranges::find(own, key) == own.end() &&
        std::ranges::find(kStructuredFields, key) == std::end(kStructuredFields)) {
      request.unknown_fields.push_back(key);
    }
  }
}

}  // namespace octet::server
