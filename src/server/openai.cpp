#include "server/openai.h"

#include <fmt/format.h>

#include "base/sentence.h"
#include "server/request.h"

namespace octet::server {
namespace {

constexpr float kLogprobFloor = -9999.0f;  // JSON has no infinity; vLLM's value

}  // namespace

std::string error_json(const ApiError& error) {
  OrderedJson object;
  object["message"] = error.message;
  object["type"] = error.type;
  object["param"] = error.param ? OrderedJson(*error.param) : OrderedJson(nullptr);
  object["code"] = error.status;
  return dump_json(OrderedJson{{"error", object}});
}

ApiError to_api_error(const Error& error) {
  const ErrorParts& parts = error.parts();
  const size_t field = parts.where.find(", $.");
  const bool named = parts.where.starts_with(kBodyName) && field != std::string::npos;
  std::optional<std::string> param;
  if (named) {  // without the line of a text within it
    const size_t begin = field + 4;
    param = parts.where.substr(begin, parts.where.find(", line ", begin) - begin);
  }
  return ApiError(400, sentence_of(parts), "BadRequestError", param);
}

void refuse_model(const std::string& name, const std::string& served) {
  throw ApiError(404,
                 fmt::format("the model '{}' does not exist here; this server has '{}'",
                             shortened(name, 100), served),
                 "NotFoundError", "model");
}

namespace {

// JSON knows neither NaN nor infinity. (Not std::max, which would let NaN through.)
float finite(float value) {
  return value > kLogprobFloor ? value : kLogprobFloor;
}

std::string text_of(const text::Tokenizer& tokenizer, int32_t id) {
  return tokenizer.decode({&id, 1}, false);
}

}  // namespace

TokenLogprob token_logprob(const text::Tokenizer& tokenizer, const engine::SampledToken& token,
                           size_t text_offset, bool as_ids) {
  const auto name_of = [&](int32_t id) {
    return as_ids ? fmt::format("token_id:{}", id) : text_of(tokenizer, id);
  };
  const auto bytes_of = [&](int32_t id) { return std::string(tokenizer.token_bytes(id)); };
  TokenLogprob out{.token = name_of(token.token),
                   .bytes = bytes_of(token.token),
                   .logprob = finite(token.logprob),
                   .text_offset = text_offset};
  for (const engine::TopToken& best : token.top) {
    out.sampled_is_best |= best.token == token.token;
    out.top.push_back({name_of(best.token), finite(best.logprob), bytes_of(best.token)});
  }
  return out;
}

OrderedJson prompt_logprob_json(const text::Tokenizer& tokenizer, const engine::SampledToken& token,
                                int32_t most) {
  OrderedJson object = OrderedJson::object();
  const auto add = [&](int32_t id, float logprob, int32_t rank) {
    object[std::to_string(id)] = {
        {"logprob", finite(logprob)}, {"rank", rank}, {"decoded_token", text_of(tokenizer, id)}};
  };
  add(token.token, token.logprob, token.rank);
  int32_t rank = 0;
  for (const engine::TopToken& best : token.top) {
    if (++rank > most) break;
    if (best.token != token.token) add(best.token, best.logprob, rank);
  }
  return object;
}

OrderedJson logprobs_json(const std::vector<TokenLogprob>& tokens) {
  OrderedJson object;
  for (const char* name : {"text_offset", "token_logprobs", "tokens", "top_logprobs"}) {
    object[name] = OrderedJson::array();
  }
  for (const TokenLogprob& token : tokens) {
    object["text_offset"].push_back(token.text_offset);
    object["tokens"].push_back(token.token);
    if (!token.logprob) {
      object["token_logprobs"].push_back(nullptr);
      object["top_logprobs"].push_back(nullptr);
      continue;
    }
    object["token_logprobs"].push_back(*token.logprob);
    OrderedJson top = OrderedJson::object();
    // Parts of characters all read U+FFFD: of tokens with one text, the best counts.
    for (const TopLogprob& best : token.top) {
      if (!top.contains(best.token)) top[best.token] = best.logprob;
    }
    if (!token.sampled_is_best && !top.contains(token.token)) top[token.token] = *token.logprob;
    object["top_logprobs"].push_back(std::move(top));
  }
  return object;
}

OrderedJson usage_json(const Usage& usage) {
  OrderedJson object;
  object["prompt_tokens"] = usage.prompt_tokens;
  object["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  object["completion_tokens"] = usage.completion_tokens;
  object["prompt_tokens_details"] = nullptr;
  if (usage.cached_tokens) {
    object["prompt_tokens_details"] = {{"cached_tokens", *usage.cached_tokens}};
  }
  return object;
}

OrderedJson answer_json(const Envelope& envelope, const char* object_name) {
  OrderedJson object;
  object["id"] = envelope.id;
  object["object"] = object_name;
  object["created"] = envelope.created;
  object["model"] = envelope.model;
  object["choices"] = OrderedJson::array();
  return object;
}

void add_ends(const Choice& choice, OrderedJson& part) {
  part["logprobs"] = choice.logprobs;
  part["finish_reason"] =
      choice.finish_reason ? OrderedJson(*choice.finish_reason) : OrderedJson(nullptr);
  part["stop_reason"] = choice.stop_reason.value_or(OrderedJson(nullptr));
  if (choice.token_ids) part["token_ids"] = *choice.token_ids;
}

std::string completion_json(const Envelope& envelope, const std::vector<Choice>& choices,
                            const std::optional<Usage>& usage) {
  OrderedJson object = answer_json(envelope, "text_completion");
  for (const Choice& choice : choices) {
    OrderedJson part;
    part["index"] = choice.index;
    part["text"] = choice.text;
    add_ends(choice, part);
    if (choice.prompt_token_ids) part["prompt_token_ids"] = *choice.prompt_token_ids;
    if (!choice.prompt_logprobs.is_null()) part["prompt_logprobs"] = choice.prompt_logprobs;
    object["choices"].push_back(std::move(part));
  }
  if (usage) object["usage"] = usage_json(*usage);
  return dump_json(object);
}

const AnswerFormat& completion_format() {
  static constexpr AnswerFormat format = {.prompt_field = "prompt",
                                          .logprobs = logprobs_json,
                                          .whole = completion_json,
                                          .chunk = completion_json,
                                          .opening = nullptr};
  return format;
}

namespace {

OrderedJson model_card(const ServedModel& served) {
  OrderedJson card;
  card["id"] = served.name;
  card["object"] = "model";
  card["created"] = served.created;
  card["owned_by"] = "octet";
  card["root"] = served.root;
  card["parent"] = nullptr;
  card["max_model_len"] = served.max_model_len;
  card["permission"] = OrderedJson::array();
  return card;
}

}  // namespace

std::string models_json(const ServedModel& served) {
  OrderedJson object;
  object["object"] = "list";
  object["data"] = OrderedJson::array({model_card(served)});
  return dump_json(object);
}

std::string model_json(const ServedModel& served) {
  return dump_json(model_card(served));
}

std::string_view finish_reason(sched::Finish finish) {
  switch (finish) {
    case sched::Finish::stop:
      return "stop";
    case sched::Finish::length:
      return "length";
    case sched::Finish::cancelled:
      return "abort";
    case sched::Finish::timeout:
      return "timeout";
    case sched::Finish::error:
      return "error";
  }
  return "error";
}

}  // namespace octet::server
