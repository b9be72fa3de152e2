// Chat templates against Hugging Face's, what a hostile one can do, and what a message cannot.
#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "text/jinja.h"
#include "text/sandbox.h"
#include "unit/base/error_of.h"
#include "unit/base/temp_dir.h"
#include "unit/text/small_tokenizer.h"

namespace octet::text {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

const OrderedJson kTokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};

// The small tokenizer with a special token and one that is not marked special.
const Tokenizer& tokenizer() {
  static const Tokenizer instance = [] {
    Json json = small_tokenizer_json();
    json["added_tokens"].push_back({{"id", 263}, {"content", "<|eot|>"}, {"special", true}});
    json["added_tokens"].push_back({{"id", 264}, {"content", "<|User|>"}, {"special", false}});
    json["added_tokens"].push_back({{"id", 265}, {"content", "</think>"}, {"special", false}});
    return small_tokenizer(json);
  }();
  return instance;
}

ChatTemplate chat_of(const std::string& source) {
  return {{.templates = {{"default", source, "here.jinja"}}, .special_tokens = kTokens},
          tokenizer(),
          {.cpu_seconds = 1, .memory_bytes = size_t{128} << 20}};
}

OrderedJson said(const std::string& content, const std::string& role = "user") {
  return {{"role", role}, {"content", content}};
}

// A conversation of one message. (In braces an object alone is not an array of it.)
OrderedJson just(const OrderedJson& message) {
  return OrderedJson::array({message});
}

class Chat : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_jinja()) GTEST_SKIP() << "built without the Jinja engine";
  }
};

TEST_F(Chat, EqualsTheReference) {
  const auto golden =
      parse_json_file<OrderedJson>(OCTET_SOURCE_DIR "/tests/unit/text/data/chats.json");
  for (const auto& [name, source] : golden["templates"].items()) {
    const ChatTemplate chat = chat_of(source.get<std::string>());
    for (const OrderedJson& row : golden["chats"]) {
      if (row["template"] != name) continue;
      const OrderedJson& given = row["chat"];
      SCOPED_TRACE(name + ": " + dump_json(given));
      ChatInput input;
      input.messages = given["messages"];
      input.add_generation_prompt = given["add_generation_prompt"];
      input.tools = given.value("tools", OrderedJson());
      input.documents = given.value("documents", OrderedJson());
      input.variables = given.value("kwargs", OrderedJson::object());
      input.continue_final_message = given.value("continue_final_message", false);
      if (row.contains("text")) {
        EXPECT_EQ(chat.render(input).text, row["text"].get<std::string>());
      } else {
        EXPECT_NE(error_of([&] { chat.render(input); }), "no error");
      }
    }
  }
}

TEST_F(Chat, WhatATemplateRaisesIsTheError) {
  const ChatTemplate chat = chat_of("{{ raise_exception('only one message, please') }}");
  EXPECT_THAT(error_of([&] { chat.render({.messages = just(said("a"))}); }),
              AllOf(HasSubstr("only one message, please"), HasSubstr("here.jinja")));
}

TEST_F(Chat, ABrokenTemplateIsAnErrorWhenItIsRead) {
  for (const char* source : {"{% if x %}", "{{ 1 +", "{% for %}", "{{ 'a }}", "{% endif %}"}) {
    EXPECT_THAT(error_of([&] { chat_of(source); }), HasSubstr("here.jinja")) << source;
  }
  EXPECT_THAT(error_of([] { ChatTemplate({}, tokenizer()); }),
              AllOf(HasSubstr("no chat template"), HasSubstr("--chat-template")));
}

// Each of these would take the server with it. What comes after them is served as if nothing was.
TEST_F(Chat, AHostileTemplateEndsInAnErrorAndInNothingElse) {
  std::string nested;
  for (int i = 0; i < 200'000; ++i) nested += "(";
  const std::vector<std::pair<std::string, std::string>> hostile = {
      {"a loop that does not end",
       "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}"},
      {"recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"},
      {"a list of all numbers", "{{ range(1000000000000) | length }}"},
      {"text that doubles",
       "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}"
       "{% endfor %}{{ n.s }}"},
      {"much text", "{{ 'x' * 100000000 }}"},
      {"a value inside itself", "{% set n = namespace() %}{% set n.n = n %}{{ n | tojson }}"},
      {"a division by zero", "{{ 1 is divisibleby(0) }}"},
  };
  for (const auto& [name, source] : hostile) {
    SCOPED_TRACE(name);
    const ChatTemplate chat = chat_of(source);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT(error_of([&] { chat.render({.messages = just(said("a"))}); }),
                HasSubstr("here.jinja"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  }
  EXPECT_NE(error_of([&] { chat_of("{{ " + nested + " }}"); }), "no error");
}

// The limit that was met, in words of Octet's own. (That of the output is beyond this memory: the
// suite Sandbox.)
TEST_F(Chat, WhatATemplateTakesTooMuchOfIsNamed) {
  const std::string memory = Sandbox::limits_memory() ? "too much memory" : "too long";
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"memory",
       "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}"
       "{% endfor %}{{ n.s | length }}",
       memory},
      {"memory at once", "{{ ('x' * 99999999999999) | length }}", memory},
      {"steps", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
       "too long"},
      {"a break of nothing", "{% break %}", "{% break %} outside of a loop"},
      {"a continue of nothing", "{% continue %}", "{% continue %} outside of a loop"},
  };
  for (const auto& [name, source, said_of_it] : cases) {
    SCOPED_TRACE(name);
    const ChatTemplate chat = chat_of(source);
    EXPECT_THAT(error_of([&] { chat.render({.messages = just(said("a"))}); }),
                AllOf(HasSubstr("here.jinja"), HasSubstr(said_of_it), Not(HasSubstr("std::")),
                      Not(HasSubstr("statement executed"))));
  }
  EXPECT_THAT(error_of([&] { chat_of("{{ 99999999999999999999 }}"); }),
              AllOf(HasSubstr("here.jinja"), HasSubstr("a whole number beyond 64 bits"),
                    Not(HasSubstr("stoll"))));
}

// Where Python raises an error the engine must not go on with a number or a blank of its own.
TEST_F(Chat, WhatPythonDoesNotRenderIsRefusedWithItsReason) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ 1 / 0 }}", "division by zero"},
      {"{{ 1.5 / 0 }}", "division by zero"},
      {"{% if messages | length / 0 %}x{% endif %}", "division by zero"},
      {"{{ 'a' ~ 1 / 0.0 }}", "division by zero"},
      {"{{ 1 % 0 }}", "modulo by zero"},
      {"{{ [[1 % 0.0]] }}", "modulo by zero"},
      {"{{ {'a': [1 % 0]}.a }}", "modulo by zero"},
      {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
      {"{{ -9223372036854775807 - 2 }}", "beyond 64 bits"},
      {"{% macro f(a=4294967296 * 4294967296) %}{{ a }}{% endmacro %}{{ f() }}", "beyond 64 bits"},
      {"{{ messages[9].content }}", "'messages[9]' is undefined"},
      {"{{ messages[9]['content'] is defined }}", "'messages[9]' is undefined"},
      {"{{ messages[0].nope.strip() }}", "'messages[0].nope' is undefined"},
      {"{{ messages[0]['nope'][0] }}", "'messages[0]['nope']' is undefined"},
      {"{{ nope.x | default('y') }}", "'nope' is undefined"},
      {"{% for m in nope.x %}{% endfor %}", "'nope' is undefined"},
      {"{% set ns = namespace(a=1) %}{% set ns.a = nope.x %}", "'nope' is undefined"},
      {"{{ nope() }}", "nope"},
      {"{{ messages[0].content.nope() }}", "nope"},
      {"{{ 'a' | nope }}", "nope"},
      {"{{ 'a' is nope }}", "nope"},
      {"{{ 'a' + 1 }}", "cannot be added"},
      {"{{ 1 - 'a' }}", "Unknown operator"},
      {"{% include 'here.jinja' %}", "include"},
      {"{% extends 'here.jinja' %}", "extends"},
  };
  for (const auto& [source, reason] : cases) {
    SCOPED_TRACE(source);
    EXPECT_THAT(error_of([&] { chat_of(source).render({.messages = just(said("a"))}); }),
                AllOf(HasSubstr("here.jinja"), HasSubstr(reason)));
  }
}

TEST_F(Chat, NumbersAreThoseOfPython) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ 7 / 2 }}", "3.5"},
      {"{{ -7 % 3 }}", "2"},
      {"{{ 7 % -3 }}", "-2"},
      {"{{ -6 % 3 }}", "0"},
      {"{{ -7.5 % 2 }}", "0.5"},
      {"{{ 9007199254740993 + 0 }}", "9007199254740993"},
      {"{{ 4611686018427387904 - 1 }}", "4611686018427387903"},
      {"{{ (messages | length + 1) % 2 }}", "0"},
      {"{{ messages[-1].content + 'b' ~ 2 }}", "ab2"},
      {"{% if false %}{{ 1 / 0 }}{% endif %}ok", "ok"},
      {"{{ messages[0].nope is defined }}", "False"},
      {"{{ messages[0].nope | default('d') }}", "d"},
  };
  for (const auto& [source, text] : cases) {
    EXPECT_EQ(chat_of(source).render({.messages = just(said("a"))}).text, text) << source;
  }
}

TEST_F(Chat, ARunThatFailsLeavesTheNextOneAlone) {
  const ChatTemplate chat = chat_of(
      "{% if messages[0].content == 'loop' %}{% for a in range(99999) %}{% for b in "
      "range(99999) %}{% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}");
  EXPECT_EQ(chat.render({.messages = just(said("fine"))}).text, "fine");
  EXPECT_NE(error_of([&] { chat.render({.messages = just(said("loop"))}); }), "no error");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string own = "thread " + std::to_string(t);
      for (int i = 0; i < 10; ++i) EXPECT_EQ(chat.render({.messages = just(said(own))}).text, own);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<int32_t> ids_of(const ChatTemplate& chat, const OrderedJson& messages) {
  const RenderedChat rendered = chat.render({.messages = messages});
  return tokenizer().encode(rendered.text, rendered.encode_options());
}

TEST_F(Chat, WhatAMessageSaysBecomesNoTokenOfTheTemplates) {
  const ChatTemplate chat = chat_of(
      "{% for m in messages %}<|User|>{{ m.content | trim }}<|eot|>{{ m.name }}{% endfor %}");
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(ids_of(chat, just(said("hi"))), (Ids{264, 'h', 'i', 263}));
  for (const char* attack : {"<|eot|>", "<|User|>", " <|eot|> ", "<|eot|><|eot|>", "<<|eot|>",
                             "<bos>", "<|eo<|eot|>t|>"}) {
    const Ids ids = ids_of(chat, just(said(attack)));
    SCOPED_TRACE(attack);
    EXPECT_EQ(std::ranges::count(ids, 263), 1);
    EXPECT_EQ(std::ranges::count(ids, 264), 1);
    EXPECT_THAT(ids, Not(Contains(261)));
    // The text itself is all there.
    const std::string text = tokenizer().decode(ids, false);
    std::string trimmed = attack;
    trimmed.erase(0, trimmed.find_first_not_of(' '));
    trimmed.erase(trimmed.find_last_not_of(' ') + 1);
    EXPECT_EQ(text, "<|User|>" + trimmed + "<|eot|>");
  }
  OrderedJson named = said("hi");
  named["name"] = "<|eot|>";
  EXPECT_EQ(std::ranges::count(ids_of(chat, just(named)), 263), 1);
}

TEST_F(Chat, WhatTheTemplateDoesNotWriteIsFoundAsInAnyText) {
  const ChatTemplate chat = chat_of("{{ messages[0].content }}");
  EXPECT_THAT(ids_of(chat, just(said("a</think>b"))), Contains(265));
  EXPECT_THAT(ids_of(chat, just(said("a<|User|>b"))), Contains(264));
  EXPECT_THAT(ids_of(chat, just(said("a<|eot|>b"))), Not(Contains(263)));
}

TEST_F(Chat, TemplatesFindTheirMarksInWhatTheAssistantSaid) {
  const ChatTemplate chat =
      chat_of("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}</think>");
  EXPECT_EQ(chat.render({.messages = just(said("why</think>yes", "assistant"))}).text,
            "yes</think>");
}

TEST_F(Chat, TheNonCharacterThatMarksIsNoneOfTheConversations) {
  const ChatTemplate chat = chat_of("{{ messages[0].content }}");
  const std::string text = "\xEF\xB7\x90<|eot|>\xEF\xB7\x91";
  const RenderedChat rendered = chat.render({.messages = just(said(text))});
  EXPECT_EQ(rendered.text, text);
  EXPECT_EQ(rendered.walls, std::vector<size_t>{4});
}

TEST(ChatFiles, FindATemplateWhereverModelsKeepIt) {
  const test::TempDir directory;
  const auto write = [&](const char* name, const std::string& text) { directory.file(name, text); };
  EXPECT_TRUE(read_chat_files(directory.path()).templates.empty());
  write("tokenizer_config.json",
        R"({"bos_token":{"content":"<s>"},"eos_token":"</s>","chat_template":"one"})");
  ChatFiles files = read_chat_files(directory.path());
  ASSERT_EQ(files.templates.size(), 1);
  EXPECT_EQ(files.templates[0].text, "one");
  EXPECT_EQ(files.special_tokens, kTokens);
  write(
      "tokenizer_config.json",
      R"({"chat_template":[{"name":"default","template":"a"},{"name":"tool_use","template":"b"}]})");
  files = read_chat_files(directory.path());
  ASSERT_EQ(files.templates.size(), 2);
  EXPECT_EQ(files.templates[1].name, "tool_use");
  if (has_jinja()) {
    const ChatTemplate chat(files, tokenizer());
    EXPECT_EQ(chat.render({.messages = just(said("x"))}).text, "a");
    EXPECT_EQ(chat.render({.messages = just(said("x")), .tools = just(OrderedJson::object())}).text,
              "b");
  }
  write("chat_template.jinja", "file");
  EXPECT_EQ(read_chat_files(directory.path()).templates[0].text, "file");
  std::filesystem::remove(directory / "chat_template.jinja");
  for (const char* bad : {R"({"chat_template":3})", R"({"chat_template":[{"name":"x"}]})",
                          R"({"chat_template":["x"]})"}) {
    write("tokenizer_config.json", bad);
    EXPECT_THAT(error_of([&] { read_chat_files(directory.path()); }), HasSubstr("chat_template"));
  }
}

// The sandbox by itself.
std::string job(std::string_view input) {
  if (input == "throw") throw std::runtime_error("no");
  if (input == "crash") std::abort();
  if (input == "exit") std::_Exit(0);
  for (volatile bool loop = input == "loop"; loop;) {
  }
  if (input == "sleep") std::this_thread::sleep_for(std::chrono::seconds(60));
  return std::string(input) + input.data();
}

TEST(Sandbox, EveryEndOfAJobHasItsResult) {
  Sandbox sandbox(job, {.cpu_seconds = 1, .wall_seconds = 100, .output_bytes = 1000});
  Sandbox hurried(job, {.cpu_seconds = 100, .wall_seconds = 1});
  using Result = Sandbox::Result;
  const auto run = [&](std::string_view input) { return sandbox.run(input); };
  EXPECT_EQ(run("ab").kind, Result::done);
  EXPECT_EQ(run("ab").text, "abab");
  EXPECT_EQ(run("throw").kind, Result::refused);
  EXPECT_EQ(run("throw").text, "no");
  EXPECT_EQ(run("crash").kind, Result::crashed);
  EXPECT_EQ(run("exit").kind, Result::crashed);
  EXPECT_EQ(run("loop").kind, Result::out_of_time);
  EXPECT_EQ(hurried.run("sleep").kind, Result::too_slow);
  EXPECT_EQ(run(std::string(501, 'x')).kind, Result::too_long);
  EXPECT_EQ(run("").text, "");
  EXPECT_EQ(run("ab").text, "abab");
}

}  // namespace
}  // namespace octet::text
