#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/jinja.h"
#include "text/utf8.h"

namespace octet::text {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFix =
    "give one with --chat-template FILE, or ask for a completion, which needs none";

// Added by Hugging Face, too, to find the end of a message that goes on. No space behind it: a
// template that trims its messages shows by that.
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";

std::string_view trimmed_end(std::string_view text) {
  const size_t last = text.find_last_not_of(" \t\n\r\f\v");
  return text.substr(0, last == text.npos ? 0 : last + 1);
}

OrderedJson read_special_tokens(const OrderedJson& config) {
  OrderedJson tokens = OrderedJson::object();
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                          "cls_token", "mask_token"}) {
    if (!config.contains(key)) continue;
    const OrderedJson& value = config[key];
    if (value.is_string()) tokens[key] = value;
    if (value.is_object() && value.contains("content") && value["content"].is_string()) {
      tokens[key] = value["content"];
    }
  }
  return tokens;
}

std::vector<ChatTemplateSource> read_templates(const OrderedJson& value, const std::string& place) {
  if (value.is_string()) return {{"default", value.get<std::string>(), place}};
  const auto refuse = [&](const std::string& where) {
    throw Error({.what = "not a chat template",
                 .where = where,
                 .accepted = "a string, or a list of {\"name\": .., \"template\": ..}"});
  };
  if (!value.is_array()) refuse(place);
  std::vector<ChatTemplateSource> templates;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string here = place + "[" + std::to_string(i) + "]";
    const OrderedJson& item = value[i];
    const auto is_text = [&](const char* key) {
      return item.is_object() && item.contains(key) && item[key].is_string();
    };
    if (!is_text("name") || !is_text("template")) refuse(here);
    templates.push_back(
        {item["name"].get<std::string>(), item["template"].get<std::string>(), here});
  }
  return templates;
}

// Two characters that no string of the conversation has, of the 32 noncharacters from U+FDD0 on.
std::pair<std::string, std::string> unused_marks(const std::string& all_text) {
  std::vector<std::string> marks;
  for (char32_t c = 0xFDD0; c <= 0xFDEF && marks.size() < 2; ++c) {
    std::string mark;
    append_utf8(c, mark);
    if (all_text.find(mark) == all_text.npos) marks.push_back(mark);
  }
  if (marks.size() == 2) return {marks[0], marks[1]};
  throw Error({.what = "the conversation has all of the noncharacters U+FDD0 to U+FDEF",
               .accepted = "text without some of them"});
}

bool has_fractions(const OrderedJson& value) {
  if (value.is_number_float()) return true;
  return value.is_structured() && std::ranges::any_of(value, has_fractions);
}

// The engine writes numbers with six digits. So one with a fraction travels as its text between two
// marks, and loses them, and the quotes that tojson puts around, behind the template.
OrderedJson spelled(const OrderedJson& value, const std::string& mark) {
  if (value.is_number_float()) return mark + dump_json(value) + mark;
  OrderedJson out = value;
  if (value.is_structured()) {
    for (auto& item : out) item = spelled(item, mark);
  }
  return out;
}

// The engine's message in a line: what is wrong, and the line and column of the template.
std::string complaint(const std::string& message) {
  constexpr std::string_view error = "Error: ", at = " at line ", source = " in source:";
  const size_t what = message.rfind(error);
  const size_t begin = message.find(at), end = message.find(source);
  if (what == message.npos || begin == message.npos || end == message.npos) return message;
  return message.substr(what + error.size()) + " (" + message.substr(begin + 4, end - begin - 4) +
         ")";
}

// Words of the engine and of the standard library, that say nothing to who wrote the template.
std::string in_words(std::string complaint) {
  constexpr std::pair<std::string_view, std::string_view> known[] = {
      {"Break statement executed", "{% break %} outside of a loop"},
      {"Continue statement executed", "{% continue %} outside of a loop"},
      {"stoll", "a whole number beyond 64 bits"},
      {"stoi", "a whole number beyond 32 bits"},
      {"stod", "a number beyond the range of FP64"}};
  for (const auto& [word, meaning] : known) {
    if (complaint == word || complaint.starts_with(std::string(word) + " (")) {
      return std::string(meaning) + complaint.substr(word.size());
    }
  }
  return complaint;
}

// What the engine caught itself where there was no memory, or none of the size that was asked for.
bool is_of_memory(const std::string& complaint) {
  constexpr std::string_view words[] = {"std::bad_alloc", "std::bad_array_new_length",
                                        "basic_string::", "vector::"};
  return std::ranges::any_of(
      words, [&](std::string_view word) { return complaint.find(word) != complaint.npos; });
}

// Ends the text where the last message does.
void cut_at_tag(std::string& text) {
  const size_t tag = text.rfind(trimmed_end(kContinueTag));
  if (tag == text.npos) {
    throw Error({.what = "the chat template leaves out the message that shall be continued",
                 .where = "continue_final_message",
                 .fix = "end the conversation with a message that the template shows"});
  }
  const bool keeps_space = text.compare(tag, kContinueTag.size(), kContinueTag) == 0;
  text.resize(tag);
  if (!keeps_space) text.resize(trimmed_end(text).size());
}

std::string unspelled(const std::string& text, const std::string& mark) {
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(mark); at != text.npos; at = text.find(mark, done)) {
    const size_t number = at + mark.size();
    const size_t end = text.find(mark, number);
    if (end == text.npos) break;
    const size_t behind = end + mark.size();
    const bool quoted = at > done && text[at - 1] == '"' && text[behind] == '"';
    out.append(text, done, at - done - (quoted ? 1 : 0)).append(text, number, end - number);
    done = behind + (quoted ? 1 : 0);
  }
  return out.append(text, done);
}

}  // namespace

ChatFiles parse_chat_config(std::string_view config, const std::string& name) {
  const auto json = parse_json<OrderedJson>(config, name);
  ChatFiles files;
  if (!json.is_object()) return files;
  files.special_tokens = read_special_tokens(json);
  if (json.contains("chat_template") && !json["chat_template"].is_null()) {
    files.templates = read_templates(json["chat_template"], name + ", chat_template");
  }
  return files;
}

ChatFiles read_chat_files(const fs::path& directory) {
  ChatFiles files;
  const fs::path config = directory / "tokenizer_config.json";
  if (fs::exists(config)) files = parse_chat_config(read_text(config), config.string());
  const fs::path file = directory / "chat_template.jinja";
  if (fs::exists(file)) files.templates = {{"default", read_text(file), file.string()}};
  return files;
}

struct ChatTemplate::Impl {
  Impl(ChatFiles chat, const Tokenizer& with, const Sandbox::Limits& limits)
      : files(std::move(chat)), tokenizer(with), sandbox(run_jinja, limits) {}

  const ChatTemplateSource& choose(bool with_tools) const;
  std::string run(const ChatTemplateSource& source, const OrderedJson* variables);
  OrderedJson marked(const OrderedJson& value, const std::string& mark, bool special_only) const;
  OrderedJson marked_messages(const OrderedJson& messages, const std::string& mark) const;
  bool has_tokens(const OrderedJson& value) const;

  ChatFiles files;
  const Tokenizer& tokenizer;
  Sandbox sandbox;
  std::vector<bool> written;  // by id: some template writes this added token
};

// As Hugging Face chooses: "tool_use" where there are tools and it exists, else "default".
const ChatTemplateSource& ChatTemplate::Impl::choose(bool with_tools) const {
  const auto named = [&](std::string_view name) {
    return std::ranges::find(files.templates, name, &ChatTemplateSource::name);
  };
  if (with_tools && named("tool_use") != files.templates.end()) return *named("tool_use");
  if (named("default") != files.templates.end()) return *named("default");
  return files.templates.front();
}

const std::string& ChatTemplate::source(bool with_tools) const {
  return impl_->choose(with_tools).text;
}

// Renders, or without variables only reads the template.
std::string ChatTemplate::Impl::run(const ChatTemplateSource& source,
                                    const OrderedJson* variables) {
  OrderedJson request = {{"template", source.text}};
  if (variables) request["variables"] = *variables;
  Sandbox::Result result = sandbox.run(dump_json(request));
  const auto fail = [&](std::string what, std::string value, std::string accepted) {
    throw Error({.what = std::move(what),
                 .where = source.place,
                 .value = std::move(value),
                 .accepted = std::move(accepted),
                 .fix = fmt::format("{}, or give another template with --chat-template",
                                    variables ? "change the conversation" : "mend it")});
  };
  const std::string said =
      result.kind == Sandbox::Result::refused ? complaint(result.text) : std::string();
  if (is_of_memory(said)) result.kind = Sandbox::Result::out_of_memory;
  switch (result.kind) {
    case Sandbox::Result::done:
      break;
    case Sandbox::Result::refused:
      fail(variables ? "the chat template does not take this conversation"
                     : "the chat template cannot be read",
           in_words(said), "");
      break;
    case Sandbox::Result::out_of_memory:
      fail("the chat template takes too much memory", "",
           "at most " + std::to_string(sandbox.limits().memory_bytes >> 20) + " MiB");
      break;
    case Sandbox::Result::out_of_time:
    case Sandbox::Result::too_slow:
      fail("the chat template takes too long", "",
           "at most " + std::to_string(sandbox.limits().cpu_seconds) + " s of CPU time");
      break;
    case Sandbox::Result::too_long:
      fail("the chat template makes too much text", "",
           "at most " + std::to_string(sandbox.limits().output_bytes >> 20) + " MiB");
      break;
    case Sandbox::Result::crashed:
      fail("the chat template broke its engine", "", "a template that does not recurse for ever");
      break;
  }
  return std::move(result.text);
}

bool ChatTemplate::Impl::has_tokens(const OrderedJson& value) const {
  if (value.is_string()) {
    return !tokenizer.added_token_places(value.get_ref<const std::string&>()).empty();
  }
  return std::ranges::any_of(value.items(), [&](const auto& item) {
    return value.is_structured() && has_tokens(item.value());
  });
}

// With `mark` behind the first character of everything that could become a token.
OrderedJson ChatTemplate::Impl::marked(const OrderedJson& value, const std::string& mark,
                                       bool special_only) const {
  if (value.is_structured()) {
    OrderedJson out = value;
    for (auto& item : out) item = marked(item, mark, special_only);
    return out;
  }
  if (!value.is_string()) return value;
  const std::string& text = value.get_ref<const std::string&>();
  std::string out;
  size_t done = 0;
  for (const TokenSpan& place : tokenizer.added_token_places(text)) {
    const bool kept = !tokenizer.is_special(place.id) &&
                      (special_only || !written[static_cast<size_t>(place.id)]);
    const size_t cut = place.begin + utf8_step(std::string_view(text).substr(place.begin)).bytes;
    if (kept || cut >= place.end || cut <= done) continue;
    out.append(text, done, cut - done).append(mark);
    done = cut;
  }
  return out.append(text, done);
}

OrderedJson ChatTemplate::Impl::marked_messages(const OrderedJson& messages,
                                                const std::string& mark) const {
  OrderedJson out = messages;
  for (OrderedJson& message : out) {
    const bool assistant = message.value("role", "") == "assistant";
    for (auto& [key, value] : message.items()) {
      if (key != "role") value = marked(value, mark, assistant);
    }
  }
  return out;
}

ChatTemplate::ChatTemplate(ChatFiles files, const Tokenizer& tokenizer,
                           const Sandbox::Limits& limits) {
  if (files.templates.empty()) {
    throw Error({.what = "the model has no chat template",
                 .where = "chat_template.jinja, or chat_template of tokenizer_config.json",
                 .fix = kFix});
  }
  if (!has_jinja()) {
    throw Error({.what = "this build of Octet cannot run chat templates",
                 .where = files.templates.front().place,
                 .fix = "run scripts/setup.sh, which fetches the engine, and build again"});
  }
  impl_ = std::make_unique<Impl>(std::move(files), tokenizer, limits);
  impl_->written.resize(static_cast<size_t>(tokenizer.size()));
  for (const ChatTemplateSource& source : impl_->files.templates) {
    impl_->run(source, nullptr);
    for (const TokenSpan& place : tokenizer.added_token_places(source.text)) {
      impl_->written[static_cast<size_t>(place.id)] = true;
    }
  }
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

RenderedChat ChatTemplate::render(const ChatInput& input) const {
  OrderedJson variables = impl_->files.special_tokens;
  for (const auto& [key, value] : input.variables.items()) variables[key] = value;
  OrderedJson said = {
      {"messages", input.messages}, {"tools", input.tools}, {"documents", input.documents}};
  const bool has_tokens = impl_->has_tokens(said) || impl_->has_tokens(input.variables);
  const bool fractions = has_fractions(said);
  std::string token_mark, number_mark;
  if (has_tokens || fractions) {
    std::tie(token_mark, number_mark) = unused_marks(dump_json(said) + dump_json(input.variables));
  }
  if (fractions) said = spelled(said, number_mark);
  if (has_tokens) {
    for (auto& [key, value] : input.variables.items()) {
      variables[key] = impl_->marked(value, token_mark, false);
    }
    said["messages"] = impl_->marked_messages(said["messages"], token_mark);
    said["tools"] = impl_->marked(said["tools"], token_mark, false);
    said["documents"] = impl_->marked(said["documents"], token_mark, false);
  }
  for (const auto& [key, value] : said.items()) variables[key] = value;
  variables["add_generation_prompt"] = input.add_generation_prompt;
  if (input.continue_final_message) {
    OrderedJson& last = variables["messages"].back()["content"];
    last = last.get<std::string>() + std::string(kContinueTag);
  }

  std::string text = impl_->run(impl_->choose(!input.tools.is_null()), &variables);
  if (input.continue_final_message) cut_at_tag(text);
  if (fractions) text = unspelled(text, number_mark);
  if (!has_tokens) return {.text = std::move(text), .walls = {}};

  RenderedChat rendered;
  size_t done = 0;
  for (size_t at = text.find(token_mark); at != text.npos; at = text.find(token_mark, done)) {
    rendered.text.append(text, done, at - done);
    rendered.walls.push_back(rendered.text.size());
    done = at + token_mark.size();
  }
  rendered.text.append(text, done);
  return rendered;
}

}  // namespace octet::text
