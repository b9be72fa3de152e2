// How tokens are drawn: the fields of a request, and what a model's generation_config.json puts in
// place of those that are left out.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "server/request.h"

namespace octet::server {
namespace {

constexpr double kHuge = 1e6;
constexpr const char* kUpToHuge = "a number from 0 to 1000000";

float real(const JsonView& body, std::string_view field, float fallback, double least, double most,
           std::string_view accepted) {
  return static_cast<float>(number(body, field, fallback, least, most, accepted));
}

// The five that a model may have defaults for.
void read_filters(const JsonView& from, const SamplingDefaults& defaults, SamplingDefaults& out) {
  constexpr double least = std::numeric_limits<float>::min();
  out.temperature = real(from, "temperature", defaults.temperature, 0, kHuge, kUpToHuge);
  out.top_p = real(from, "top_p", defaults.top_p, least, 1, "a number above 0 and at most 1");
  out.min_p = real(from, "min_p", defaults.min_p, 0, 1, "a number from 0 to 1");
  out.repetition_penalty = real(from, "repetition_penalty", defaults.repetition_penalty, least,
                                kHuge, "a number above 0 and at most 1000000");
  out.top_k = std::max(integer(from, "top_k", defaults.top_k, -1), 0);
}

// OpenAI's {"50256": -100, ..}.
std::vector<std::pair<int32_t, float>> parse_logit_bias(const JsonView& body, int64_t vocab) {
  constexpr size_t most = 1024;
  std::vector<std::pair<int32_t, float>> biases;
  if (!body.has("logit_bias")) return biases;
  const Json& object = body.json().at("logit_bias");
  if (!object.is_object() || object.size() > most) {
    refuse("logit_bias",
           fmt::format("logit_bias must be an object of at most {} token ids and what is added to "
                       "their logits, such as {{\"42\": -100}}",
                       most));
  }
  for (const auto& [key, value] : object.items()) {
    int32_t id = -1;
    const char* end = key.data() + key.size();
    const auto [rest, fault] = std::from_chars(key.data(), end, id);
    if (fault != std::errc() || rest != end || id < 0 || id >= vocab) {
      refuse("logit_bias",
             fmt::format("logit_bias holds '{}', which is no token id of this model (0 to {})",
                         shortened(key, 40), vocab - 1));
    }
    const double bias = value.is_number() ? value.get<double>() : 1000;
    if (std::abs(bias) > 100) {
      refuse("logit_bias", fmt::format("logit_bias of {} must be a number from -100 to 100, got {}",
                                       id, shortened(dump_json(value), 40)));
    }
    biases.emplace_back(id, static_cast<float>(bias));
  }
  std::ranges::sort(biases);
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  const auto twice = std::ranges::adjacent_find(biases, same);  // "7" and "07"
  if (twice != biases.end()) {
    refuse("logit_bias", fmt::format("logit_bias holds {} twice", twice->first));
  }
  return biases;
}

std::vector<int32_t> parse_allowed(const JsonView& body, int64_t vocab) {
  if (!body.has("allowed_token_ids")) return {};
  std::vector<int32_t> ids =
      token_ids(body.json().at("allowed_token_ids"), "allowed_token_ids", vocab);
  if (ids.empty()) {
    refuse("allowed_token_ids",
           "allowed_token_ids is empty, so that no token could be drawn; leave it out");
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

SamplingDefaults parse_generation_config(const JsonView& config) {
  SamplingDefaults defaults;
  try {
    read_filters(config, SamplingDefaults(), defaults);
    if (config.has("max_new_tokens")) defaults.max_tokens = integer(config, "max_new_tokens", 1, 1);
  } catch (const ApiError& error) {  // the readers of a request
    throw Error({.what = error.message,
                 .where = config.file(),
                 .fix = "correct the file, or start with --generation-config vllm, which does not "
                        "read it"});
  }
  return defaults;
}

void parse_sampling(const JsonView& body, const ServedModel& served, uint64_t default_seed,
                    CompletionRequest& request) {
  SamplingDefaults filters;
  read_filters(body, served.defaults, filters);
  engine::Sampling& sampling = request.generation.sampling;
  sampling.temperature = filters.temperature;
  sampling.top_p = filters.top_p;
  sampling.min_p = filters.min_p;
  sampling.top_k = filters.top_k;
  sampling.repetition_penalty = filters.repetition_penalty;
  sampling.presence_penalty = real(body, "presence_penalty", 0, -2, 2, "a number from -2 to 2");
  sampling.frequency_penalty = real(body, "frequency_penalty", 0, -2, 2, "a number from -2 to 2");
  sampling.seed =
      body.has("seed") ? static_cast<uint64_t>(body.get<int64_t>("seed")) : default_seed;
  sampling.logit_bias = parse_logit_bias(body, served.vocab);
  sampling.allowed = parse_allowed(body, served.vocab);
  request.bad_words = parse_strings(body, "bad_words", 256, 1024);
  if (std::ranges::any_of(request.bad_words, &std::string::empty)) {
    refuse("bad_words", "bad_words holds an empty string; leave it out");
  }
}

}  // namespace octet::server
