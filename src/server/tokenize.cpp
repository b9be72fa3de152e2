#include "server/tokenize.h"

#include "server/chat.h"
#include "server/request.h"

namespace octet::server {
namespace {

void check_model(const JsonView& body, const ServedModel& served) {
  const std::string model = body.get<std::string>("model", served.name);
  if (model != served.name) refuse_model(model, served.name);
}

}  // namespace

std::string tokenize_json(const std::string& text, const ServedModel& served,
                          const text::Tokenizer& tokenizer, const text::ChatTemplate* chat,
                          const std::string& why_no_chat) {
  const Json json = parse_json(text, kBodyName);
  const JsonView body(json, kBodyName);
  check_model(body, served);
  if (body.has("prompt") == body.has("messages")) {
    refuse("prompt", "send one of prompt, a string, and messages, a conversation");
  }
  std::vector<int32_t> ids;
  if (body.has("prompt")) {
    ids = tokenizer.encode(body.get<std::string>("prompt"),
                           {.add_special_tokens = body.get<bool>("add_special_tokens", true)});
  } else {
    if (!chat) refuse("messages", why_no_chat);
    const auto ordered = parse_json<OrderedJson>(text, kBodyName);
    const text::RenderedChat rendered = chat->render(parse_conversation(body, ordered));
    text::EncodeOptions options = rendered.encode_options();
    options.add_special_tokens = body.get<bool>("add_special_tokens", false);
    ids = tokenizer.encode(rendered.text, options);
  }
  OrderedJson answer;
  answer["count"] = ids.size();
  answer["max_model_len"] = served.max_model_len;
  answer["tokens"] = ids;
  answer["token_strs"] = nullptr;
  if (body.get<bool>("return_token_strs", false)) {
    answer["token_strs"] = OrderedJson::array();
    for (const int32_t id : ids) answer["token_strs"].push_back(tokenizer.decode({&id, 1}, false));
  }
  return dump_json(answer);
}

std::string detokenize_json(const std::string& text, const ServedModel& served,
                            const text::Tokenizer& tokenizer) {
  const Json json = parse_json(text, kBodyName);
  const JsonView body(json, kBodyName);
  check_model(body, served);
  if (!body.has("tokens")) refuse("tokens", "tokens is missing: send an array of token ids");
  const std::vector<int32_t> ids = token_ids(json.at("tokens"), "tokens", served.vocab);
  return dump_json(OrderedJson{{"prompt", tokenizer.decode(ids, false)}});
}

std::string tokenizer_info_json(const text::Tokenizer& tokenizer, const text::ChatTemplate* chat) {
  const auto text_of = [&](std::optional<int32_t> id) -> OrderedJson {
    if (!id) return nullptr;
    return tokenizer.decode({&*id, 1}, false);
  };
  OrderedJson info;
  info["bos_token"] = text_of(tokenizer.bos_id());
  info["eos_token"] = text_of(tokenizer.eos_id());
  info["chat_template"] = chat ? OrderedJson(chat->source(false)) : OrderedJson(nullptr);
  return dump_json(info);
}

}  // namespace octet::server
