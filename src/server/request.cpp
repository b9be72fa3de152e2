#include "server/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace octet::server {
namespace {

// Fields that every request may have, known here or known to mean nothing here.
constexpr std::array kKnown = {
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "ignore_eos",
    "min_tokens",
    "stream",
    "stream_options",
    "n",
    "user",
    "cache_salt",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
};

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

std::vector<std::string> parse_stop(const JsonView& body) {
  if (!body.has("stop")) return {};
  const Json& stop = body.json().at("stop");
  // Every choice of every prompt keeps them, so their number and length are bounded.
  constexpr size_t most = 64, most_bytes = 4096;
  std::vector<std::string> stops;
  for (const Json& one : stop.is_array() ? stop : Json::array({stop})) {
    if (!one.is_string()) {
      refuse_value(body, "stop", fmt::format("a string or an array of at most {} strings", most));
    }
    stops.push_back(one.get<std::string>());
  }
  if (stops.size() > most) {
    refuse("stop",
           fmt::format("stop holds {} strings; at most {} are accepted", stops.size(), most));
  }
  for (const std::string& one : stops) {
    if (one.size() > most_bytes) {
      refuse("stop", fmt::format("stop holds a string of {} bytes; at most {} are accepted",
                                 one.size(), most_bytes));
    }
  }
  if (std::ranges::any_of(stops, &std::string::empty)) {
    refuse("stop",
           "stop holds an empty string, which would end every answer at once; leave it out");
  }
  return stops;
}

// What OpenAI's API has and this server does not, refused by name unless it is at its default.
void refuse_unsupported(const JsonView& body) {
  const auto must_be = [&](std::string_view field, double value) {
    if (body.get<double>(field, value) == value) return;
    refuse(field, fmt::format("{} is not supported; leave it out or set it to {}", field, value));
  };
  must_be("presence_penalty", 0);
  must_be("frequency_penalty", 0);
  must_be("repetition_penalty", 1);
  if (body.has("logit_bias") && !body.json().at("logit_bias").empty()) {
    refuse("logit_bias", "logit_bias is not supported; leave it out");
  }
}

}  // namespace

void refuse(std::string_view field, std::string message) {
  throw ApiError(400, std::move(message), "BadRequestError", std::string(field));
}

void refuse_value(const JsonView& body, std::string_view field, std::string_view accepted) {
  refuse(field, fmt::format("{} must be {}, got {}", field, accepted,
                            shortened(dump_json(body.json().at(field)), 80)));
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
  request.n = integer(body, "n", 1, 1, 128);
  refuse_unsupported(body);

  engine::GenRequest& generation = request.generation;
  generation.min_tokens = integer(body, "min_tokens", 0, 0);
  generation.ignore_eos = body.get<bool>("ignore_eos", false);
  generation.salt = body.get<std::string>("cache_salt", "");
  constexpr size_t most_salt = 1024;  // bytes; it stays in the cache with the blocks
  if (generation.salt.size() > most_salt) {
    refuse("cache_salt", fmt::format("cache_salt has {} bytes; at most {} are accepted",
                                     generation.salt.size(), most_salt));
  }
  if (body.has("stop_token_ids")) {
    generation.stop_ids =
        token_ids(body.json().at("stop_token_ids"), "stop_token_ids", served.vocab);
    constexpr size_t most_ids = 8192;
    if (generation.stop_ids.size() > most_ids) {
      refuse("stop_token_ids", fmt::format("stop_token_ids holds {} ids; at most {} are accepted",
                                           generation.stop_ids.size(), most_ids));
    }
  }
  engine::Sampling& sampling = generation.sampling;
  constexpr double huge = 1e6;
  sampling.temperature =
      static_cast<float>(number(body, "temperature", 1.0, 0.0, huge, "a number from 0 to 1000000"));
  sampling.top_p = static_cast<float>(number(body, "top_p", 1.0, std::numeric_limits<float>::min(),
                                             1.0, "a number above 0 and at most 1"));
  sampling.min_p = static_cast<float>(number(body, "min_p", 0.0, 0.0, 1.0, "a number from 0 to 1"));
  sampling.top_k = std::max(integer(body, "top_k", 0, -1), 0);
  sampling.seed =
      body.has("seed") ? static_cast<uint64_t>(body.get<int64_t>("seed")) : default_seed;

  request.stop = parse_stop(body);
  request.include_stop = body.get<bool>("include_stop_str_in_output", false);
  request.skip_special = body.get<bool>("skip_special_tokens", true);
  request.stream = body.get<bool>("stream", false);
  if (const auto options = body.find("stream_options")) {
    if (!request.stream) refuse("stream_options", "stream_options needs stream: true");
    request.include_usage = options->get<bool>("include_usage", false);
    request.continuous_usage =
        request.include_usage && options->get<bool>("continuous_usage_stats", false);
  }
}

void note_unknown(const JsonView& body, std::span<const std::string_view> own,
                  CompletionRequest& request) {
  for (const auto& [key, value] : body.json().items()) {
    if (std::ranges::find(kKnown, key) == kKnown.end() &&
        std::ranges::find(own, key) == own.end()) {
      request.unknown_fields.push_back(key);
    }
  }
}

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
  if (body.get<bool>("echo", false)) {
    refuse("echo", "echo is not supported; leave it out or set it to false");
  }
  if (body.has("best_of") && body.get<int64_t>("best_of") != request.n) {
    refuse("best_of", "best_of is not supported; use n");
  }
  request.generation.max_tokens = integer(body, "max_tokens", 16, 1);  // OpenAI's default
  if (body.has("logprobs")) {
    request.generation.sampling.logprobs = integer(body, "logprobs", 0, 0, served.max_logprobs);
  }
  request.add_special = body.get<bool>("add_special_tokens", true);
  note_unknown(body, kOwn, request);
  return request;
}

}  // namespace octet::server
