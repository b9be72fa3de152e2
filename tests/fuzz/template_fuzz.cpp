// Two paths, by the first byte. Odd: the rest is a template, which renders a conversation or is an
// Error. Even: the rest is the body of a chat request, which is a request or an error object; what
// a message says becomes no token of a template that writes it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "server/chat.h"
#include "text/chat_template.h"
#include "text/jinja.h"
#include "unit/text/small_tokenizer.h"

namespace {

using octet::text::ChatTemplate;
using octet::text::Tokenizer;

const Tokenizer& tokenizer() {
  static const Tokenizer instance = octet::text::small_tokenizer();
  return instance;
}

ChatTemplate chat_of(std::string_view source) {
  return {{.templates = {{"default", std::string(source), "input"}},
           .special_tokens = {{"bos_token", "<bos>"}}},
          tokenizer(),
          {.cpu_seconds = 1, .wall_seconds = 2, .output_bytes = size_t{1} << 20}};
}

void fuzz_template(std::string_view source) {
  if (!octet::text::has_jinja()) return;
  try {
    const ChatTemplate chat = chat_of(source);
    const octet::OrderedJson message = {{"role", "user"}, {"content", "a <eos> b"}};
    (void)chat.render({.messages = octet::OrderedJson::array({message})});
  } catch (const octet::Error&) {
  }
}

void fuzz_request(const std::string& body) {
  static const octet::server::ServedModel served{
      .name = "m", .root = "m", .max_model_len = 4096, .vocab = 1000, .max_logprobs = 20};
  const auto show = [](const octet::server::ApiError& error) {
    if (error.status < 400 || error.status > 499) std::abort();
    if (!octet::Json::parse(error_json(error)).contains("error")) std::abort();
  };
  octet::text::ChatInput input;
  try {
    const auto request = octet::server::parse_chat(body, served, 1);
    input = std::get<octet::text::ChatInput>(request.prompts.at(0));
  } catch (const octet::server::ApiError& error) {
    return show(error);
  } catch (const octet::Error& error) {
    return show(octet::server::to_api_error(error));
  }
  if (!octet::text::has_jinja() || input.continue_final_message) return;
  static const ChatTemplate chat =
      chat_of("{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | tojson }}");
  try {
    const auto rendered = chat.render(input);
    for (const int32_t id : tokenizer().encode(rendered.text, rendered.encode_options())) {
      if (tokenizer().is_special(id)) std::abort();
    }
  } catch (const octet::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) {
    fuzz_template(rest);
  } else {
    fuzz_request(rest);
  }
  return 0;
}
