// Renders conversations: compare_render DIR < lines. A line in is {"template", "chat"}, a line out
// a JSON string, or {"error"}. The tokenizer of DIR says what a token is.
#include <cstdio>
#include <iostream>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "text/chat_template.h"

int main(int argc, char** argv) {
  using octet::OrderedJson;
  if (argc != 2) {
    std::fputs("usage: compare_render DIR < lines\n", stderr);
    return 2;
  }
  const auto tokenizer = octet::text::Tokenizer::load(argv[1]);
  std::string line;
  while (std::getline(std::cin, line)) {
    OrderedJson out;
    try {
      const auto row = octet::parse_json<OrderedJson>(line, "stdin");
      const OrderedJson& given = row["chat"];
      octet::text::ChatInput input;
      input.messages = given["messages"];
      input.add_generation_prompt = given.value("add_generation_prompt", true);
      input.tools = given.value("tools", OrderedJson());
      input.documents = given.value("documents", OrderedJson());
      input.variables = given.value("kwargs", OrderedJson::object());
      const octet::text::ChatTemplate chat(
          {.templates = {{"default", row["template"].get<std::string>(), "template"}},
           .special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}}},
          tokenizer);
      out = chat.render(input).text;
    } catch (const std::exception& error) {
      out = {{"error", error.what()}};
    }
    std::cout << octet::dump_json(out) << "\n";
  }
}
