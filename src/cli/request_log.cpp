#include "cli/request_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/log.h"
#include "load/json_lines.h"

namespace octet::cli {
namespace {

// A list of lists of `Value`s.
template <class Value>
std::vector<std::vector<Value>> lists_of(const JsonView& line, std::string_view key) {
  std::vector<std::vector<Value>> lists;
  const auto it = line.json().find(key);
  if (it == line.json().end() || it->is_null()) return lists;
  if (!it->is_array()) line.refuse(key, "not a list", "a list of lists of numbers");
  for (const Json& list : *it) {
    const bool numbers = list.is_array() && std::ranges::all_of(list, [](const Json& value) {
                           return value.is_number();
                         });
    if (!numbers) line.refuse(key, "not a list of lists", "a list of lists of numbers");
    lists.push_back(list.get<std::vector<Value>>());
  }
  return lists;
}

engine::Sampling sampling_of(const JsonView& json) {
  engine::Sampling sampling;
  sampling.temperature = json.get<float>("temperature");
  sampling.top_k = json.get<int>("top_k");
  sampling.top_p = json.get<float>("top_p");
  sampling.min_p = json.get<float>("min_p");
  sampling.repetition_penalty = json.get<float>("repetition_penalty", 1.0f);
  sampling.presence_penalty = json.get<float>("presence_penalty", 0.0f);
  sampling.frequency_penalty = json.get<float>("frequency_penalty", 0.0f);
  for (const std::vector<double>& pair : lists_of<double>(json, "logit_bias")) {
    if (pair.size() != 2) json.refuse("logit_bias", "not a pair", "[[id, bias], ...]");
    sampling.logit_bias.emplace_back(static_cast<int32_t>(pair[0]), static_cast<float>(pair[1]));
  }
  sampling.allowed = json.get<std::vector<int>>("allowed", {});
  sampling.bad_words = lists_of<int32_t>(json, "bad_words");
  return sampling;
}

// What of the request's body another program than the server would be needed for.
std::string what_is_missing(const JsonView& line) {
  const std::optional<JsonView> body = line.find("body");
  if (!body) return "";
  static constexpr std::array kConstraints = {"structured_outputs", "guided_json", "guided_regex",
                                              "guided_choice", "guided_grammar"};
  for (const char* key : kConstraints) {
    if (body->has(key)) return fmt::format("its output was constrained by {}", key);
  }
  if (body->has("tool_choice")) {
    const Json& choice = body->json()["tool_choice"];
    if (choice != "auto" && choice != "none") return "its output was constrained by tool_choice";
  }
  if (body->has("response_format")) {
    const Json& format = body->json()["response_format"];
    const bool plain = format.is_object() && format.value("type", "") == "text";
    if (!plain) return "its output was constrained by response_format";
  }
  return "";
}

// A seed is any 64-bit number, which a JsonView's integers do not reach.
uint64_t seed_of(const JsonView& choice) {
  const auto it = choice.json().find("seed");
  if (it == choice.json().end() || !it->is_number_integer()) {
    choice.refuse("seed", "not a seed", "a whole number");
  }
  return it->get<uint64_t>();
}

LoggedChoice parse_choice(const JsonView& line, const Json& json, int64_t index_in_list) {
  const JsonView choice(json, fmt::format("{}, choices[{}]", line.file(), index_in_list));
  const auto prompts = lists_of<int32_t>(line, "prompts");
  const int64_t n = line.integer("n", 1, 1 << 20);
  LoggedChoice result;
  result.index = choice.integer("index", 0, static_cast<int64_t>(prompts.size()) * n - 1);
  result.prompt = prompts[static_cast<size_t>(result.index / n)];
  result.output = choice.get<std::vector<int>>("output_ids");
  result.finish_reason = choice.get<std::string>("finish_reason");

  const JsonView generation = line.at("generation");
  engine::GenRequest& request = result.request;
  request.prompt = result.prompt;
  request.max_tokens = static_cast<int32_t>(result.output.size());
  request.min_tokens = std::min(generation.get<int>("min_tokens", 0), *request.max_tokens);
  request.stop_ids = generation.get<std::vector<int>>("stop_ids", {});
  request.ignore_eos = generation.get<bool>("ignore_eos", false);
  request.sampling = sampling_of(line.at("sampling"));
  request.sampling.seed = seed_of(choice);
  return result;
}

}  // namespace

LoggedRequest parse_logged_request(const JsonView& line) {
  if (line.integer("version", 1, 1 << 20) != 1) {
    line.refuse("version", "a line that another version of Octet wrote", "version 1");
  }
  LoggedRequest request;
  request.where = line.file();
  request.id = line.get<std::string>("id");
  request.path = line.get<std::string>("path");
  request.model_hash = line.get<std::string>("model_hash", "");
  request.not_replayable = what_is_missing(line);
  const auto choices = line.json().find("choices");
  if (choices == line.json().end() || !choices->is_array()) {
    line.refuse("choices", "no list of choices", "[{\"index\", \"seed\", \"output_ids\", ...}]");
  }
  for (size_t i = 0; i < choices->size(); ++i) {
    request.choices.push_back(parse_choice(line, (*choices)[i], static_cast<int64_t>(i)));
  }
  return request;
}

std::vector<LoggedRequest> read_request_log(const std::filesystem::path& path,
                                            const std::string& id) {
  std::vector<LoggedRequest> requests;
  const auto take = [&](const JsonView& line) {
    if (!id.empty() && line.get<std::string>("id", "") != id) return true;
    requests.push_back(parse_logged_request(line));
    return id.empty();
  };
  const int64_t cut = load::for_each_json_line(path, take, load::CutLines::passed_over);
  if (cut > 0) {
    log::warning("{}: {} line(s) were cut while they were written, and are left out", path.string(),
                 cut);
  }
  if (requests.empty()) {
    throw Error({.what = id.empty() ? "the log has no request" : "the log has no such request",
                 .where = path.string(),
                 .value = id,
                 .fix = "octet serve --request-log FILE writes one line a request"});
  }
  return requests;
}

}  // namespace octet::cli
