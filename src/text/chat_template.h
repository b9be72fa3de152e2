// Chat templates: a conversation as the text that a model was trained on.
//
// Equal to Hugging Face's apply_chat_template: the same variables, trim_blocks and lstrip_blocks,
// tojson without escapes, raise_exception, strftime_now. The template runs in a Sandbox
// (text/sandbox.h), so that one which loops, recurses or swells ends in an Error and not the
// server.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/sandbox.h"
#include "text/tokenizer.h"

namespace octet::text {

struct ChatTemplateSource {
  std::string name;   // "default", "tool_use", ..
  std::string text;   // Jinja
  std::string place;  // for errors: "dir/tokenizer_config.json, chat_template"
};

// What a model's files say about chat.
struct ChatFiles {
  std::vector<ChatTemplateSource> templates;           // empty: the model has none
  OrderedJson special_tokens = OrderedJson::object();  // bos_token, eos_token, ..: strings
};

// What the text of a tokenizer_config.json says: "chat_template" (a string, or a list of {name,
// template}) and the special tokens. `name` is how errors call it. Throws Error.
ChatFiles parse_chat_config(std::string_view config, const std::string& name);

// Reads chat_template.jinja, or else the template of tokenizer_config.json. Throws Error.
ChatFiles read_chat_files(const std::filesystem::path& directory);

// A conversation, checked by whoever made it.
struct ChatInput {
  OrderedJson messages = OrderedJson::array();    // of objects with a "role"
  OrderedJson tools;                              // an array, or null
  OrderedJson documents;                          // an array, or null
  OrderedJson variables = OrderedJson::object();  // more of them (chat_template_kwargs)
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the text ends inside the last message
};

// A rendered conversation. Encode it with its walls and without special tokens of the tokenizer's
// own: the template has put in what it wants.
struct RenderedChat {
  std::string text;
  // Places across which no added token may be found (EncodeOptions::walls): what a message says
  // does not become one, whatever it looks like.
  std::vector<size_t> walls;

  EncodeOptions encode_options() const { return {.add_special_tokens = false, .walls = walls}; }
};

// Which strings of a conversation are kept from becoming tokens: those of special tokens, and those
// that the template itself writes (DeepSeek's <｜User｜> is not marked special). In what the
// assistant said, special ones alone: templates look there for </think>.
//
// Text in which nothing looks like a token is rendered and encoded as Hugging Face does it.
class ChatTemplate {
 public:
  // Reads every template, in a process of its own: make it early (see Sandbox). Throws Error if
  // there is no template, if one is wrong, or if Octet was built without the engine.
  ChatTemplate(ChatFiles files, const Tokenizer& tokenizer, const Sandbox::Limits& limits = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // From any thread, one call after the other. Throws Error where the template refuses the
  // conversation, or exceeds the limits.
  RenderedChat render(const ChatInput& input) const;

  // The source of the template that a conversation with tools is rendered by, or one without.
  const std::string& source(bool with_tools) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace octet::text
