#include "load/wire.h"

#include "base/error.h"

namespace octet::load {
namespace {

[[noreturn]] void refuse_prompt(const char* what, const char* fix) {
  throw Error({.what = what, .where = "--endpoint", .fix = fix});
}

void add_prompt(OrderedJson& body, const LoadRequest& request, Api api) {
  if (const auto* messages = std::get_if<Json>(&request.prompt)) {
    if (api == Api::completions) {
      refuse_prompt("a conversation cannot be sent to the completions API",
                    "use --endpoint /v1/chat/completions");
    }
    body["messages"] = *messages;
    return;
  }
  const auto* text = std::get_if<std::string>(&request.prompt);
  if (api == Api::completions) {
    if (text != nullptr) {
      body["prompt"] = *text;
    } else {
      body["prompt"] = std::get<std::vector<int32_t>>(request.prompt);
    }
    return;
  }
  if (text == nullptr) {
    refuse_prompt("token ids cannot be sent to the chat API", "use --endpoint /v1/completions");
  }
  body["messages"] = {{{"role", "user"}, {"content", *text}}};
}

// A member that is a string; empty otherwise.
std::string text_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

std::optional<int64_t> count_of(const Json& usage, const char* key) {
  const auto it = usage.find(key);
  return it != usage.end() && it->is_number_integer() ? std::optional(it->get<int64_t>())
                                                      : std::nullopt;
}

void read_choice(Api api, const Json& choice, Chunk& chunk) {
  if (!choice.is_object()) return;
  chunk.has_token = true;
  if (api == Api::completions) {
    chunk.text = text_of(choice, "text");
    return;
  }
  const auto delta = choice.find("delta");
  if (delta == choice.end() || !delta->is_object()) return;
  chunk.text = text_of(*delta, "content");
  const bool finishes = choice.contains("finish_reason") && !choice["finish_reason"].is_null();
  const bool thinks = delta->contains("reasoning_content") || delta->contains("reasoning");
  const bool only_role = delta->contains("role") && chunk.text.empty() && !thinks &&
                         !delta->contains("tool_calls") && !finishes;
  chunk.has_token = !only_role;
}

}  // namespace

std::string request_body(const LoadRequest& request, const BodyOptions& options) {
  OrderedJson body = {{"model", options.model}};
  add_prompt(body, request, options.api);
  body[options.api == Api::chat ? "max_completion_tokens" : "max_tokens"] = request.output_tokens;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (options.ignore_eos) body["ignore_eos"] = true;
  for (const auto& [key, value] : options.sampling.items()) body[key] = value;
  for (const auto& [key, value] : options.extra.items()) body[key] = value;
  return dump_json(body);
}

std::optional<Chunk> parse_chunk(Api api, std::string_view data) {
  Chunk chunk;
  if (data == "[DONE]") {
    chunk.done = true;
    return chunk;
  }
  const Json json = Json::parse(data, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  if (const auto error = json.find("error"); error != json.end() && !error->is_null()) {
    chunk.error = error_message(data);
    return chunk;
  }
  const auto choices = json.find("choices");
  const auto usage = json.find("usage");
  const bool has_usage = usage != json.end() && usage->is_object();
  if (choices != json.end() && choices->is_array()) {
    if (!choices->empty()) read_choice(api, choices->front(), chunk);
  } else if (!has_usage) {
    return std::nullopt;
  }
  if (has_usage) {
    chunk.prompt_tokens = count_of(*usage, "prompt_tokens");
    chunk.completion_tokens = count_of(*usage, "completion_tokens");
  }
  return chunk;
}

std::string error_message(std::string_view body) {
  const Json json = Json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error")) {
    const Json& error = json["error"];
    if (error.is_string()) return error.get<std::string>();
    if (error.is_object() && !text_of(error, "message").empty()) return text_of(error, "message");
  }
  return shortened(std::string(body), 300);
}

}  // namespace octet::load
