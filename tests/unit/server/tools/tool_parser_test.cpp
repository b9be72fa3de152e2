// Tool calls: each format's, cut at every place, and what only looks like one.
#include "server/tools/tool_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/json.h"

namespace octet::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<std::string> kNames = {"get_weather", "add", "f"};

// All parts of an answer, joined.
struct Joined {
  std::string content;
  std::vector<ToolCall> calls;
};

Joined parse(ToolFormat format, const std::vector<std::string_view>& pieces) {
  const auto parser = make_tool_parser(format, kNames);
  Joined all;
  const auto append = [&](const ToolText& part) {
    all.content += part.content;
    for (const ToolCallPart& call : part.calls) {
      EXPECT_FALSE(call.name.empty() && call.arguments.empty()) << "a part of nothing";
      if (!call.name.empty()) all.calls.push_back({call.name, ""});
      all.calls.at(all.calls.size() - 1).arguments += call.arguments;
    }
  };
  for (const std::string_view piece : pieces) append(parser->push(piece));
  append(parser->finish());
  return all;
}

// One piece, two cut at every byte, three cut at random, and byte by byte: all the same.
Joined parse(ToolFormat format, const std::string& text) {
  const std::string_view view = text;
  const Joined whole = parse(format, std::vector{view});
  const auto same = [&](const std::vector<std::string_view>& pieces) {
    const Joined cut = parse(format, pieces);
    EXPECT_EQ(cut.content, whole.content) << text;
    EXPECT_EQ(cut.calls, whole.calls) << text;
  };
  for (size_t i = 0; i <= text.size(); ++i) same({view.substr(0, i), view.substr(i)});
  std::mt19937 random(static_cast<unsigned>(text.size()));
  for (int round = 0; round < 100; ++round) {
    const size_t i = random() % (text.size() + 1), j = i + random() % (text.size() - i + 1);
    same({view.substr(0, i), view.substr(i, j - i), view.substr(j)});
  }
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < text.size(); ++i) bytes.push_back(view.substr(i, 1));
  same(bytes);
  return whole;
}

const ToolCall kWeather{"get_weather", R"({"city": "Zürich", "days": [1, 2.50], "x": "a}\"{"})"};
const ToolCall kAdd{"add", R"({"a":12345678901234567890123,"b":{}})"};

std::string hermes(const ToolCall& call) {
  return "<tool_call>\n{\"name\": \"" + call.name + "\", \"arguments\": " + call.arguments +
         "}\n</tool_call>";
}
std::string llama(const ToolCall& call) {
  return R"({"name": ")" + call.name + R"(", "parameters": )" + call.arguments + "}";
}
std::string deepseek(const ToolCall& call) {
  return "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + call.name + "\n```json\n" +
         call.arguments + "\n```<｜tool▁call▁end｜>";
}

TEST(ToolParser, Hermes) {
  const auto read = [](const std::string& text) { return parse(ToolFormat::hermes, text); };
  EXPECT_THAT(read(hermes(kWeather)).calls, ElementsAre(kWeather));
  EXPECT_EQ(read(hermes(kWeather)).content, "");
  const Joined two = read("Let me see.\n\n" + hermes(kWeather) + "\n" + hermes(kAdd) + "\n");
  EXPECT_THAT(two.calls, ElementsAre(kWeather, kAdd));
  EXPECT_EQ(two.content, "Let me see.");
  EXPECT_EQ(read("a " + hermes(kAdd) + " b\n").content, "ab\n");
  // The close mark may be what stopped the model; within a string it is text.
  EXPECT_THAT(read("<tool_call>"
                   R"({"arguments":{"a":"</tool_call>"},"name":"f"})")
                  .calls,
              ElementsAre(ToolCall{"f", R"({"a":"</tool_call>"})"}));
  EXPECT_THAT(read(R"(<tool_call>{"name":"f"}</tool_call>)").calls,
              ElementsAre(ToolCall{"f", "{}"}));
}

TEST(ToolParser, Llama3) {
  const auto read = [](const std::string& text) { return parse(ToolFormat::llama3_json, text); };
  EXPECT_THAT(read(llama(kWeather)).calls, ElementsAre(kWeather));
  EXPECT_THAT(read("<|python_tag|>" + llama(kWeather) + "; " + llama(kAdd)).calls,
              ElementsAre(kWeather, kAdd));
  EXPECT_THAT(read(" \n" + llama(kAdd) + ";\n<|python_tag|>" + llama(kAdd) + "\n").calls,
              ElementsAre(kAdd, kAdd));
  const Joined and_more = read(llama(kAdd) + "; and more");
  EXPECT_THAT(and_more.calls, ElementsAre(kAdd));
  EXPECT_EQ(and_more.content, "; and more");
  // JSON that is an answer, not a call.
  for (const std::string text : {R"({"name": "Bob", "parameters": {}})", R"({"city": "Rome"})",
                                 "Hello {}", R"(I call {"name": "f", "parameters": {}})",
                                 R"([{"name": "f"}])", "<|python_tag|>print(1)"}) {
    EXPECT_EQ(read(text).content, text);
    EXPECT_THAT(read(text).calls, IsEmpty());
  }
}

TEST(ToolParser, Deepseek) {
  const auto read = [](const std::string& text) { return parse(ToolFormat::deepseek_v3, text); };
  const std::string begin = "<｜tool▁calls▁begin｜>", end = "<｜tool▁calls▁end｜>";
  EXPECT_THAT(read(begin + deepseek(kWeather) + end).calls, ElementsAre(kWeather));
  const Joined two = read("Well. " + begin + deepseek(kWeather) + "\n" + deepseek(kAdd) + end);
  EXPECT_THAT(two.calls, ElementsAre(kWeather, kAdd));
  EXPECT_EQ(two.content, "Well.");
  EXPECT_THAT(read(deepseek(kAdd)).calls, ElementsAre(kAdd));
  const std::string v31 = begin + "<｜tool▁call▁begin｜>add<｜tool▁sep｜>" + kAdd.arguments +
                          "<｜tool▁call▁end｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}" +
                          "<｜tool▁call▁end｜>" + end;
  EXPECT_THAT(read(v31).calls, ElementsAre(kAdd, ToolCall{"f", "{}"}));
  // White space beside the marks is not the name's.
  const std::string sep = "<｜tool▁sep｜>", call = "<｜tool▁call▁begin｜>";
  for (const std::string& text :
       {call + "function" + sep + " add \r\n```json\n{}\n```",
        call + " function\n" + sep + "\tadd\n```json\n{}\n```", call + "\nadd " + sep + "{}"}) {
    EXPECT_THAT(read(text).calls, ElementsAre(ToolCall{"add", "{}"})) << text;
  }
  const std::string nameless = call + " \n" + sep + "{}";
  EXPECT_EQ(read(nameless).content, nameless);
}

// Text with marks that is no call comes out as it went in.
TEST(ToolParser, WhatIsMalformedIsContent) {
  const std::pair<ToolFormat, std::string> cases[] = {
      {ToolFormat::hermes, "say <tool_call> now"},
      {ToolFormat::hermes, "<tool_call>{\"name\": \"f\", \"arguments\": 3}</tool_call>"},
      {ToolFormat::hermes, "<tool_call>{\"name\": \"\"}</tool_call> x"},
      {ToolFormat::hermes, "<tool_call>{\"name\": 1}</tool_call>"},
      {ToolFormat::hermes,
       "<tool_call>{\"n\\u0061me\": \"f\", \"\\u0061rguments\": {}]</tool_call>"},
      {ToolFormat::hermes, "<tool_call>}</tool_call>"},
      {ToolFormat::hermes, "a < b <tool_ <tool_cal"},
      {ToolFormat::hermes, "<tool_call>  "},
      {ToolFormat::hermes, " \n"},
      {ToolFormat::llama3_json, "<|python_"},
      {ToolFormat::llama3_json, "<|python_tag|> "},
      {ToolFormat::llama3_json, "{\"name\": \"f\", \"name\": \"f\", \"parameters\": {}}"},
      {ToolFormat::deepseek_v3, "<｜tool▁calls▁begin｜>"},
      {ToolFormat::deepseek_v3, "<｜tool▁call"},
      {ToolFormat::deepseek_v3, "x <｜tool▁calls▁begin｜> <｜tool▁call▁begin｜>function"},
      {ToolFormat::deepseek_v3, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```py\n{}\n```"},
      {ToolFormat::deepseek_v3,
       "<｜tool▁call▁begin｜>" + std::string(300, 'x') + "<｜tool▁sep｜>{}"},
      {ToolFormat::deepseek_v3,
       "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + std::string(300, 'x') + "\n```json\n{}"},
  };
  for (const auto& [format, text] : cases) {
    const Joined found = parse(format, text);
    EXPECT_EQ(found.content, text);
    EXPECT_THAT(found.calls, IsEmpty()) << text;
  }
  // A broken call does not hide the next one.
  const Joined found = parse(ToolFormat::hermes, "<tool_call>{]}</tool_call>" + hermes(kAdd));
  EXPECT_THAT(found.calls, ElementsAre(kAdd));
  EXPECT_EQ(found.content, "<tool_call>{]}</tool_call>");
}

// Once the arguments have begun it is a call, whatever they become.
TEST(ToolParser, ArgumentsAreWhatTheModelWrites) {
  const struct {
    ToolFormat format;
    std::string text, arguments, content;
  } cases[] = {
      {ToolFormat::hermes, "a <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1", "{\"a\": 1",
       "a"},
      {ToolFormat::hermes,
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": }}\n</tool_call> b", "{\"a\": }",
       "b"},
      {ToolFormat::hermes,
       "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"id\": {\"x\": \"}\"}}", "{}", ""},
      {ToolFormat::hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}] b", "{}", "] b"},
      {ToolFormat::hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"id", "{}", ", \"id"},
      {ToolFormat::llama3_json, "{\"name\": \"f\", \"parameters\": {\"a\"", "{\"a\"", ""},
      {ToolFormat::llama3_json, "{\"name\":\"f\",\"arguments\":{}} so", "{}", "so"},
      {ToolFormat::deepseek_v3, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\"",
       "{\"a\"", ""},
      {ToolFormat::deepseek_v3, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{,}<｜tool▁call▁end｜>", "{,}",
       ""},
  };
  for (const auto& [format, text, arguments, content] : cases) {
    const Joined found = parse(format, text);
    EXPECT_THAT(found.calls, ElementsAre(ToolCall{"f", arguments})) << text;
    EXPECT_EQ(found.content, content) << text;
  }
}

// The name comes first, and each piece of the arguments as soon as it is there.
TEST(ToolParser, ArgumentsAreNotHeldBack) {
  const auto parser = make_tool_parser(ToolFormat::hermes, {});
  const auto push = [&](std::string_view text) {
    std::string found;
    for (const ToolCallPart& part : parser->push(text).calls) {
      found += (part.name.empty() ? "" : part.name + ":") + part.arguments;
    }
    return found;
  };
  EXPECT_EQ(push("<tool_call>\n{\"name\": \"add\", \"argu"), "");
  EXPECT_EQ(push("ments\": {"), "add:{");
  EXPECT_EQ(push("\"a\": [1, "), "\"a\": [1, ");
  EXPECT_EQ(push("2]"), "2]");
  EXPECT_EQ(push("}"), "}");
  EXPECT_EQ(push("}\n</tool_call>"), "");
  EXPECT_TRUE(parser->finish().calls.empty());
}

// Fragments of all formats in any order: no cut changes anything, nothing throws, and what is not
// in a call is content.
TEST(ToolParser, RandomTextsAreCutAlike) {
  const std::string parts[] = {"<tool_call>",
                               "</tool_call>",
                               "{",
                               "}",
                               "\"",
                               "\\",
                               " ",
                               "\n",
                               ";",
                               "\"name\": \"f\"",
                               "\"arguments\": {\"a\": 1}",
                               "\"parameters\": {}",
                               ",",
                               "<｜tool▁calls▁begin｜>",
                               "<｜tool▁call▁begin｜>",
                               "function",
                               "<｜tool▁sep｜>",
                               "f\n```json\n",
                               "\n```",
                               "<｜tool▁call▁end｜>",
                               "<｜tool▁calls▁end｜>",
                               "<|python_tag|>",
                               "{\"name\": \"f\"}",
                               "<",
                               "x"};
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (size_t i = 0; i < 1 + random() % 12; ++i) text += parts[random() % std::size(parts)];
    for (const ToolFormat format :
         {ToolFormat::hermes, ToolFormat::llama3_json, ToolFormat::deepseek_v3}) {
      const Joined found = parse(format, text);
      if (found.calls.empty()) EXPECT_EQ(found.content, text);
    }
  }
}

TEST(ToolParser, ContentIsNotHeldBack) {
  const auto parser = make_tool_parser(ToolFormat::hermes, {});
  EXPECT_EQ(parser->push("a < b").content, "a < b");
  EXPECT_EQ(parser->push(" <tool").content, "");
  EXPECT_EQ(parser->push("s and").content, " <tools and");
  EXPECT_EQ(parser->push("\n").content, "");
  EXPECT_EQ(parser->push("more").content, "\nmore");
}

TEST(ToolFormat, Names) {
  for (const ToolFormat format :
       {ToolFormat::hermes, ToolFormat::llama3_json, ToolFormat::deepseek_v3}) {
    EXPECT_EQ(parse_tool_format(to_string(format)), format);
    EXPECT_NE(kToolFormats.find(to_string(format)), kToolFormats.npos);
  }
  EXPECT_FALSE(parse_tool_format("mistral"));
}

TEST(ToolFormat, ByWhatTheTemplateTeaches) {
  EXPECT_EQ(tool_format_of("within <tool_call></tool_call> XML tags"), ToolFormat::hermes);
  EXPECT_EQ(tool_format_of("{{'<｜tool▁call▁begin｜>'}}"), ToolFormat::deepseek_v3);
  EXPECT_EQ(tool_format_of(R"(the format {"name": function name, "parameters": dictionary})"),
            ToolFormat::llama3_json);
  EXPECT_FALSE(tool_format_of("{{ messages[0].content }}"));
}

}  // namespace
}  // namespace octet::server
