#include "server/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/request.h"
#include "server/tool_choice.h"

namespace octet::server {
namespace {

// Whoever speaks is written into the text as it is, so nobody else may.
constexpr std::string_view kRoles[] = {"system",    "developer", "user",
                                       "assistant", "tool",      "function"};

constexpr std::string_view kOwn[] = {"messages",
                                     "max_completion_tokens",
                                     "max_tokens",
                                     "logprobs",
                                     "top_logprobs",
                                     "add_special_tokens",
                                     "add_generation_prompt",
                                     "continue_final_message",
                                     "chat_template",
                                     "chat_template_kwargs",
                                     "documents",
                                     "tools",
                                     "tool_choice",
                                     "parallel_tool_calls",
                                     "reasoning_effort",
                                     "echo",
                                     "functions",
                                     "function_call",
                                     "modalities",
                                     "audio",
                                     "metadata",
                                     "store"};

// What a refusal shows of a value.
std::string shown(const OrderedJson& value) {
  return shortened(dump_json(value), 80);
}

bool has(const OrderedJson& object, const char* key) {
  return object.contains(key) && !object.at(key).is_null();
}

// A string, or a list of text parts, which become lines of one text.
std::string parse_content(const OrderedJson& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    refuse("messages", fmt::format("{} must be a string or a list of parts such as "
                                   "{{\"type\": \"text\", \"text\": \"..\"}}, got {}",
                                   where, shown(content)));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const OrderedJson& part = content[i];
    const std::string here = fmt::format("{}[{}]", where, i);
    if (part.is_object() && has(part, "type") && part["type"] != "text") {
      refuse("messages", fmt::format("{} is a part of type {}; this model reads text only: send "
                                     "parts of type \"text\"",
                                     here, shown(part["type"])));
    }
    if (!part.is_object() || !has(part, "text") || !part["text"].is_string()) {
      refuse("messages", fmt::format("{} must be {{\"type\": \"text\", \"text\": \"..\"}}, got {}",
                                     here, shown(part)));
    }
    if (i > 0) text += "\n";
    text += part["text"].get<std::string>();
  }
  return text;
}

// The arguments of a call travel as a string of JSON; templates want the object.
void parse_tool_calls(OrderedJson& calls, const std::string& where) {
  if (!calls.is_array()) {
    refuse("messages", fmt::format("{} must be an array, got {}", where, shown(calls)));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    OrderedJson& call = calls[i];
    const std::string here = fmt::format("{}[{}].function", where, i);
    if (!call.is_object() || !has(call, "function") || !call["function"].is_object()) {
      refuse("messages", fmt::format("{} must be an object with a name and arguments", here));
    }
    OrderedJson& function = call["function"];
    if (!has(function, "name") || !function["name"].is_string()) {
      refuse("messages", fmt::format("{}.name must be a string", here));
    }
    if (!has(function, "arguments")) {
      function["arguments"] = OrderedJson::object();
    } else if (function["arguments"].is_string()) {
      const std::string text = function["arguments"].get<std::string>();
      function["arguments"] = text.empty()
                                  ? OrderedJson::object()
                                  : parse_json<OrderedJson>(text, std::string(kBodyName) + ", $." +
                                                                      here + ".arguments");
    }
  }
}

OrderedJson parse_messages(const OrderedJson& messages) {
  if (!messages.is_array() || messages.empty()) {
    refuse("messages",
           "messages must be an array of at least one message, such as "
           "{\"role\": \"user\", \"content\": \"Hello\"}");
  }
  OrderedJson out = messages;
  for (size_t i = 0; i < out.size(); ++i) {
    OrderedJson& message = out[i];
    const std::string here = fmt::format("messages[{}]", i);
    if (!message.is_object()) {
      refuse("messages", fmt::format("{} must be an object, got {}", here, shown(message)));
    }
    if (!has(message, "role") || !message["role"].is_string() ||
        std::ranges::find(kRoles, message["role"].get<std::string>()) == std::end(kRoles)) {
      refuse("messages", fmt::format("{}.role must be system, developer, user, assistant, tool or "
                                     "function, got {}",
                                     here, has(message, "role") ? shown(message["role"]) : "none"));
    }
    const bool silent = has(message, "tool_calls") || message["role"] == "assistant";
    if (!has(message, "content") && !silent) {
      refuse("messages", fmt::format("{}.content is missing", here));
    }
    message["content"] =
        has(message, "content") ? parse_content(message["content"], here + ".content") : "";
    if (message.contains("tool_calls") && message["tool_calls"].is_null()) {
      message.erase("tool_calls");
    }
    if (message.contains("tool_calls"))
      parse_tool_calls(message["tool_calls"], here + ".tool_calls");
  }
  return out;
}

void refuse_unsupported(const JsonView& body, const OrderedJson& json) {
  if (body.has("chat_template")) {
    refuse("chat_template",
           "a chat template is not taken from a request, since it is a program; start the server "
           "with --chat-template FILE");
  }
  if (body.get<bool>("echo", false)) {
    refuse("echo", "echo is not supported; leave it out or set it to false");
  }
  for (const char* old : {"functions", "function_call"}) {
    if (body.has(old)) refuse(old, fmt::format("{} is not supported; use tools", old));
  }
  const auto is_text = [](const OrderedJson& one) { return one == "text"; };
  if (body.has("modalities") && !std::ranges::all_of(json["modalities"], is_text)) {
    refuse("modalities", "modalities must be [\"text\"]: this model writes text only");
  }
}

}  // namespace

text::ChatInput parse_conversation(const JsonView& body, const OrderedJson& json) {
  text::ChatInput input;
  if (!body.has("messages")) refuse("messages", "messages is missing");
  input.messages = parse_messages(json["messages"]);
  for (const auto& [field, target] :
       {std::pair{"tools", &input.tools}, std::pair{"documents", &input.documents}}) {
    if (!body.has(field)) continue;
    const OrderedJson& list = json[field];
    const auto is_object = [](const OrderedJson& item) { return item.is_object(); };
    if (!list.is_array() || !std::ranges::all_of(list, is_object)) {
      refuse(field, fmt::format("{} must be an array of objects, got {}", field, shown(list)));
    }
    if (!list.empty()) *target = list;
  }
  if (body.has("tool_choice") && json["tool_choice"] == "none") input.tools = nullptr;
  if (body.has("chat_template_kwargs")) {
    input.variables = json["chat_template_kwargs"];
    if (!input.variables.is_object()) {
      refuse("chat_template_kwargs", "chat_template_kwargs must be an object");
    }
  }
  if (body.has("reasoning_effort")) {
    input.variables["reasoning_effort"] = body.get<std::string>("reasoning_effort");
  }
  input.continue_final_message = body.get<bool>("continue_final_message", false);
  input.add_generation_prompt =
      body.get<bool>("add_generation_prompt", !input.continue_final_message);
  if (input.continue_final_message && input.add_generation_prompt) {
    refuse(
        "continue_final_message",
        "continue_final_message and add_generation_prompt exclude each other: the answer goes on "
        "in the last message or begins a new one");
  }
  return input;
}

namespace {

OrderedJson bytes_json(const std::string& bytes) {
  OrderedJson list = OrderedJson::array();
  for (const char c : bytes) list.push_back(static_cast<uint8_t>(c));
  return list;
}

// {"content": [{"token", "logprob", "bytes", "top_logprobs"}, ..]}
OrderedJson chat_logprobs_json(const std::vector<TokenLogprob>& tokens) {
  OrderedJson content = OrderedJson::array();
  for (const TokenLogprob& token : tokens) {
    OrderedJson item = {{"token", token.token},
                        {"logprob", token.logprob.value_or(0)},
                        {"bytes", bytes_json(token.bytes)},
                        {"top_logprobs", OrderedJson::array()}};
    for (const TopLogprob& best : token.top) {
      item["top_logprobs"].push_back(
          {{"token", best.token}, {"logprob", best.logprob}, {"bytes", bytes_json(best.bytes)}});
    }
    content.push_back(std::move(item));
  }
  return {{"content", std::move(content)}};
}

// Unique among the calls of a server: of the answer, its choice and the call.
std::string call_id(const Envelope& envelope, const Choice& choice, const ToolCallDelta& call) {
  return fmt::format("call_{}{:x}x{:x}", envelope.nonce, choice.index, call.index);
}

OrderedJson calls_json(const Envelope& envelope, const Choice& choice, bool streamed) {
  OrderedJson calls = OrderedJson::array();
  for (const ToolCallDelta& call : choice.calls) {
    OrderedJson object, function;
    if (streamed) object["index"] = call.index;
    if (!call.name.empty()) {  // the first part of a call says whose it is, and no other
      object["id"] = call_id(envelope, choice, call);
      object["type"] = "function";
      function["name"] = call.name;
    }
    function["arguments"] = call.arguments;
    object["function"] = std::move(function);
    calls.push_back(std::move(object));
  }
  return calls;
}

// What one prompt has, a conversation has at the top.
void add_prompt(const Choice& choice, OrderedJson& object) {
  if (choice.prompt_token_ids) object["prompt_token_ids"] = *choice.prompt_token_ids;
  if (!choice.prompt_logprobs.is_null()) object["prompt_logprobs"] = choice.prompt_logprobs;
}

std::string chat_json(const Envelope& envelope, const std::vector<Choice>& choices,
                      const std::optional<Usage>& usage) {
  OrderedJson object = answer_json(envelope, "chat.completion");
  for (const Choice& choice : choices) {
    OrderedJson message = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    if (!choice.calls.empty()) {
      if (choice.text.empty()) message["content"] = nullptr;
      message["tool_calls"] = calls_json(envelope, choice, false);
    }
    OrderedJson part = {{"index", choice.index}, {"message", std::move(message)}};
    add_ends(choice, part);
    object["choices"].push_back(std::move(part));
  }
  if (usage) object["usage"] = usage_json(*usage);
  if (!choices.empty()) add_prompt(choices[0], object);
  return dump_json(object);
}

std::string chunk_json(const Envelope& envelope, const std::vector<Choice>& choices,
                       const std::optional<Usage>& usage) {
  OrderedJson object = answer_json(envelope, "chat.completion.chunk");
  for (const Choice& choice : choices) {
    OrderedJson delta = OrderedJson::object();
    if (!choice.text.empty()) delta["content"] = choice.text;
    if (!choice.calls.empty()) delta["tool_calls"] = calls_json(envelope, choice, true);
    OrderedJson part = {{"index", choice.index}, {"delta", std::move(delta)}};
    add_ends(choice, part);
    object["choices"].push_back(std::move(part));
  }
  if (usage) object["usage"] = usage_json(*usage);
  return dump_json(object);
}

std::string opening_json(const Envelope& envelope, Choice& first,
                         const std::optional<Usage>& usage) {
  OrderedJson object = answer_json(envelope, "chat.completion.chunk");
  object["choices"].push_back({{"index", first.index},
                               {"delta", {{"role", "assistant"}, {"content", ""}}},
                               {"logprobs", nullptr},
                               {"finish_reason", nullptr}});
  if (usage) object["usage"] = usage_json(*usage);
  add_prompt(first, object);
  return dump_json(object);
}

}  // namespace

const AnswerFormat& chat_format() {
  static constexpr AnswerFormat format = {.prompt_field = "messages",
                                          .logprobs = chat_logprobs_json,
                                          .whole = chat_json,
                                          .chunk = chunk_json,
                                          .opening = opening_json};
  return format;
}

CompletionRequest parse_chat(const std::string& text, const ServedModel& served,
                             uint64_t default_seed) {
  const Json json = parse_json(text, kBodyName);
  const JsonView body(json, kBodyName);
  CompletionRequest request;
  request.format = &chat_format();
  parse_common(body, served, default_seed, request);
  // Templates write objects out, so their keys keep their order.
  const auto ordered = parse_json<OrderedJson>(text, kBodyName);
  refuse_unsupported(body, ordered);
  text::ChatInput input = parse_conversation(body, ordered);
  const OrderedJson tools = input.tools;
  request.prompts = {std::move(input)};

  // Unset: the model's default, or as many as fit. The newer name wins.
  for (const char* field : {"max_completion_tokens", "max_tokens"}) {
    if (!body.has(field)) continue;
    const int32_t most = integer(body, field, 0, 1);
    if (!request.generation.max_tokens) request.generation.max_tokens = most;
  }
  request.default_tokens = served.defaults.max_tokens;
  const int32_t top = integer(body, "top_logprobs", 0, 0, served.max_logprobs);
  const bool wanted = body.get<bool>("logprobs", false);
  if (top > 0 && !wanted) refuse("top_logprobs", "top_logprobs needs logprobs: true");
  request.logprobs = wanted;
  if (wanted) request.generation.sampling.logprobs = top;
  request.structured = parse_structured(body, text);
  parse_tools(body, ordered, served, tools, request);
  request.add_special = body.get<bool>("add_special_tokens", false);
  note_unknown(body, kOwn, request);
  return request;
}

}  // namespace octet::server
