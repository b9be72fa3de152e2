#include "load/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "load/json_lines.h"

namespace octet::load {
namespace {

constexpr std::array kWords = {
    "time",  "person", "year",   "way",   "day",  "thing", "world",  "life",   "hand",    "part",
    "child", "eye",    "woman",  "place", "work", "week",  "case",   "point",  "group",   "number",
    "night", "water",  "money",  "story", "fact", "month", "lot",    "right",  "study",   "book",
    "word",  "house",  "side",   "kind",  "head", "road",  "friend", "hour",   "game",    "line",
    "end",   "member", "law",    "car",   "city", "name",  "team",   "idea",   "body",    "back",
    "face",  "door",   "health", "art",   "war",  "party", "result", "change", "morning", "reason"};

// A number in [0, most).
size_t below(Philox& random, size_t most) {
  return (uint64_t{random.bits()} * most) >> 32;
}

template <class T>
void shuffle(std::vector<T>& items, Philox& random) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(random, i)]);
}

// A part of a prompt before it is known how it is sent: ids, or places in the list of words.
std::vector<int32_t> draw(int64_t count, const Tokens& tokens, Philox& random) {
  std::vector<int32_t> drawn;
  drawn.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    if (tokens.ids.empty()) {
      drawn.push_back(static_cast<int32_t>(below(random, kWords.size())));
    } else {
      drawn.push_back(tokens.ids[below(random, tokens.ids.size())]);
    }
  }
  return drawn;
}

LoadRequest request_of(std::vector<int32_t> drawn, int64_t output, const Tokens& tokens) {
  LoadRequest request;
  request.output_tokens = output;
  if (!tokens.ids.empty() && tokens.send_ids) {
    request.prompt_tokens = static_cast<int64_t>(drawn.size());
    request.prompt = std::move(drawn);
    return request;
  }
  std::string text;
  if (!tokens.ids.empty() && tokens.decode) {
    text = tokens.decode(drawn);
  } else {
    for (const int32_t word : drawn) {
      text += text.empty() ? "" : " ";
      text += kWords[static_cast<size_t>(word) % kWords.size()];
    }
  }
  if (tokens.count) request.prompt_tokens = tokens.count(text);
  request.prompt = std::move(text);
  return request;
}

std::vector<int32_t> joined(const std::vector<int32_t>& prefix, std::vector<int32_t> rest) {
  rest.insert(rest.begin(), prefix.begin(), prefix.end());
  return rest;
}

int64_t around(int64_t length, double ratio, Philox& random) {
  const auto least = static_cast<int64_t>(std::floor(static_cast<double>(length) * (1 - ratio)));
  const auto most = static_cast<int64_t>(std::ceil(static_cast<double>(length) * (1 + ratio)));
  const auto drawn = least + static_cast<int64_t>(below(random, size_t(most - least) + 1));
  return std::max<int64_t>(drawn, 1);
}

int64_t count_tokens(const std::string& text, const Tokens& tokens) {
  return tokens.count ? tokens.count(text) : static_cast<int64_t>(text.size() + 3) / 4;
}

// As many as wanted: the first of them, or all of them again and again.
std::vector<LoadRequest> cut_or_repeat(std::vector<LoadRequest> all, const FileOptions& options) {
  const size_t found = all.size(), wanted = static_cast<size_t>(options.count);
  if (found > wanted) all.resize(wanted);
  if (!options.repeat) return all;
  all.reserve(wanted);
  for (size_t i = found; i < wanted; ++i) all.push_back(all[i - found]);
  return all;
}

void require_some(const std::vector<LoadRequest>& requests, const FileOptions& options,
                  const char* accepted) {
  if (!requests.empty()) return;
  throw Error({.what = "the data set has no usable request",
               .where = options.path.string(),
               .accepted = accepted,
               .fix = "check --dataset-name and --dataset-path"});
}

LoadRequest request_of_line(const JsonView& line, const FileOptions& options,
                            const Tokens& tokens) {
  LoadRequest request;
  if (line.has("messages")) {
    if (!line.json()["messages"].is_array()) line.refuse("messages", "not a list", "messages");
    request.prompt = line.json()["messages"];
  } else if (line.has("prompt") && line.json()["prompt"].is_array()) {
    auto ids = line.get<std::vector<int>>("prompt");
    request.prompt_tokens = static_cast<int64_t>(ids.size());
    request.prompt = std::move(ids);
  } else {
    auto text = line.get<std::string>("prompt");
    if (tokens.count) request.prompt_tokens = tokens.count(text);
    request.prompt = std::move(text);
  }
  constexpr int64_t most = 1 << 24;
  const int64_t said =
      line.integer("output_tokens", 1, most, line.integer("max_tokens", 1, most, 128));
  request.output_tokens = options.output_len.value_or(said);
  return request;
}

}  // namespace

std::string common_words() {
  std::string text;
  for (const char* word : kWords) text += fmt::format(" {}", word);
  return text;
}

Length parse_length(const std::string& text, const std::string& where) {
  Length length;
  const size_t colon = text.find(':');
  const auto read = [](std::string_view digits, int64_t& value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size() && value > 0 &&
           value <= 1 << 24;
  };
  const std::string_view whole = text;
  if (colon == text.npos || !read(whole.substr(0, colon), length.prompt) ||
      !read(whole.substr(colon + 1), length.output)) {
    throw Error({.what = "not a pair of lengths",
                 .where = where,
                 .value = text,
                 .accepted = "PROMPT:OUTPUT, tokens, each at least 1"});
  }
  return length;
}

std::vector<LoadRequest> random_requests(const RandomOptions& o, const Tokens& tokens) {
  Philox random(o.seed, 2);
  const std::vector<int32_t> prefix = draw(o.prefix, tokens, random);
  std::vector<LoadRequest> requests;
  for (int64_t i = 0; i < o.count; ++i) {
    const int64_t prompt = around(o.length.prompt, o.range_ratio, random);
    const int64_t output = around(o.length.output, o.range_ratio, random);
    requests.push_back(request_of(joined(prefix, draw(prompt, tokens, random)), output, tokens));
  }
  return requests;
}

std::vector<LoadRequest> shared_prefix_requests(const SharedPrefixOptions& o,
                                                const Tokens& tokens) {
  Philox random(o.seed, 3);
  std::vector<LoadRequest> requests;
  for (int64_t group = 0; group < o.groups; ++group) {
    const std::vector<int32_t> prefix = draw(o.prefix, tokens, random);
    for (int64_t i = 0; i < o.prompts_per_group; ++i) {
      requests.push_back(
          request_of(joined(prefix, draw(o.question, tokens, random)), o.output, tokens));
      requests.back().group = fmt::format("group {}", group);
    }
  }
  shuffle(requests, random);
  return requests;
}

std::vector<LoadRequest> mixed_requests(const MixedOptions& o, const Tokens& tokens) {
  Philox random(o.seed, 4);
  const int64_t medium = (o.count * 2 + 5) / 10, lengthy = (o.count + 5) / 10;
  std::vector<LoadRequest> requests;
  const auto add = [&](const char* name, int64_t count, const Length& length) {
    for (int64_t i = 0; i < count; ++i) {
      requests.push_back(request_of(draw(length.prompt, tokens, random), length.output, tokens));
      requests.back().group = name;
    }
  };
  add("short", o.count - medium - lengthy, o.brief);
  add("medium", medium, o.medium);
  add("long", lengthy, o.lengthy);
  shuffle(requests, random);
  return requests;
}

std::vector<LoadRequest> jsonl_requests(const FileOptions& o, const Tokens& tokens) {
  std::vector<LoadRequest> requests;
  for_each_json_line(o.path, [&](const JsonView& line) {
    requests.push_back(request_of_line(line, o, tokens));
    return requests.size() < static_cast<size_t>(o.count);
  });
  require_some(requests, o, "a JSON object a line, with `prompt` or `messages`");
  return cut_or_repeat(std::move(requests), o);
}

std::vector<LoadRequest> sharegpt_requests(const FileOptions& o, const Tokens& tokens) {
  constexpr const char* accepted =
      R"([{"conversations": [{"from": ..., "value": TEXT}, ...]}, ...])";
  const Json json = parse_json_file(o.path, {.duplicates = true, .max_bytes = size_t{2} << 30});
  if (!json.is_array()) {
    throw Error({.what = "not a ShareGPT data set",
                 .where = o.path.string(),
                 .value = json.type_name(),
                 .accepted = accepted});
  }
  std::vector<size_t> order(json.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Philox random(o.seed, 5);
  shuffle(order, random);

  const auto value_of = [](const Json& turn) {
    return turn.is_object() && turn.contains("value") && turn["value"].is_string()
               ? turn["value"].get<std::string>()
               : std::string();
  };
  std::vector<LoadRequest> requests;
  for (const size_t i : order) {
    if (requests.size() == static_cast<size_t>(o.count)) break;
    if (!json[i].is_object() || !json[i].contains("conversations")) continue;
    const Json& turns = json[i]["conversations"];
    if (!turns.is_array() || turns.size() < 2) continue;
    LoadRequest request;
    std::string prompt = value_of(turns[0]);
    request.prompt_tokens = count_tokens(prompt, tokens);
    const int64_t answer = count_tokens(value_of(turns[1]), tokens);
    request.output_tokens = o.output_len.value_or(answer);
    const bool fits = request.prompt_tokens >= 4 && (o.output_len || answer >= 4) &&
                      request.prompt_tokens <= 1024 &&
                      request.prompt_tokens + request.output_tokens <= 2048;
    if (!fits) continue;
    request.prompt = std::move(prompt);
    requests.push_back(std::move(request));
  }
  require_some(requests, o, accepted);
  return cut_or_repeat(std::move(requests), o);
}

}  // namespace octet::load
