// The chat surface: what a conversation may be, and the shapes that clients read.
#include "server/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace octet::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const ServedModel kServed{.name = "tiny",
                          .root = "models/tiny",
                          .created = 7,
                          .max_model_len = 64,
                          .vocab = 100,
                          .max_logprobs = 5};

constexpr const char* kHello = R"([{"role":"user","content":"Hello"}])";

CompletionRequest parse(const std::string& messages, const std::string& fields = "") {
  return parse_chat(R"({"model":"tiny","messages":)" + messages + fields + "}", kServed, 42);
}
text::ChatInput input_of(const CompletionRequest& request) {
  return std::get<text::ChatInput>(request.prompts.at(0));
}

struct Refusal {
  int status = 0;
  std::string param, message;
};
Refusal refused(const std::string& messages, const std::string& fields = "") {
  try {
    parse(messages, fields);
  } catch (const ApiError& error) {
    return {error.status, error.param.value_or(""), error.message};
  } catch (const Error& error) {
    const ApiError api = to_api_error(error);
    return {api.status, api.param.value_or(""), api.message};
  }
  return {};
}

TEST(ParseChat, Defaults) {
  const CompletionRequest request = parse(kHello);
  EXPECT_EQ(request.format, &chat_format());
  EXPECT_FALSE(request.generation.max_tokens);  // as many as fit
  EXPECT_FALSE(request.add_special);            // the template writes BOS
  EXPECT_EQ(request.generation.sampling.logprobs, -1);
  const text::ChatInput input = input_of(request);
  EXPECT_EQ(dump_json(input.messages), kHello);
  EXPECT_TRUE(input.tools.is_null());
  EXPECT_TRUE(input.add_generation_prompt);
  EXPECT_FALSE(input.continue_final_message);
}

TEST(ParseChat, TheNewerNameOfTheLimitWins) {
  const auto most = [](const std::string& fields) {
    return parse(kHello, fields).generation.max_tokens;
  };
  EXPECT_EQ(most(R"(,"max_tokens":5)"), 5);
  EXPECT_EQ(most(R"(,"max_completion_tokens":7)"), 7);
  EXPECT_EQ(most(R"(,"max_tokens":5,"max_completion_tokens":7)"), 7);
  EXPECT_EQ(most(R"(,"max_tokens":5,"max_completion_tokens":null)"), 5);
  EXPECT_EQ(refused(kHello, R"(,"max_completion_tokens":0)").param, "max_completion_tokens");
  EXPECT_EQ(refused(kHello, R"(,"max_completion_tokens":3,"max_tokens":"x")").param, "max_tokens");
}

TEST(ParseChat, ContentIsATextOrAListOfTexts) {
  const auto content = [](const std::string& value) {
    return input_of(parse(R"([{"role":"user","content":)" + value + "}]"))
        .messages[0]["content"]
        .get<std::string>();
  };
  EXPECT_EQ(content(R"("a")"), "a");
  EXPECT_EQ(content(R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])"), "a\nb");
  EXPECT_EQ(content(R"([{"text":"a"}])"), "a");
  EXPECT_EQ(content("[]"), "");
  const Refusal image =
      refused(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}])");
  EXPECT_EQ(image.status, 400);
  EXPECT_EQ(image.param, "messages");
  EXPECT_THAT(image.message, HasSubstr("messages[0].content[0]"));
  EXPECT_THAT(image.message, HasSubstr("image_url"));
  EXPECT_THAT(image.message, HasSubstr("text only"));
}

TEST(ParseChat, AnAssistantMayBeSilentAndCallTools) {
  const text::ChatInput input = input_of(parse(
      R"([{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f",
          "arguments":"{\"z\":1,\"a\":2}"}},{"function":{"name":"g","arguments":""}},
          {"function":{"name":"h"}}]},
          {"role":"assistant"},{"role":"tool","content":"3","tool_call_id":"x"},
          {"role":"assistant","content":"x","tool_calls":null}])"));
  EXPECT_EQ(input.messages[0]["content"], "");
  const OrderedJson& calls = input.messages[0]["tool_calls"];
  EXPECT_EQ(dump_json(calls[0]["function"]["arguments"]), R"({"z":1,"a":2})");
  EXPECT_EQ(dump_json(calls[1]["function"]["arguments"]), "{}");
  EXPECT_EQ(dump_json(calls[2]["function"]["arguments"]), "{}");
  EXPECT_EQ(input.messages[1]["content"], "");
  EXPECT_EQ(input.messages[2]["tool_call_id"], "x");
  EXPECT_FALSE(input.messages[3].contains("tool_calls"));
}

TEST(ParseChat, RefusesByNameWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"[]", "at least one message"},
      {"{}", "array"},
      {"[3]", "messages[0] must be an object"},
      {R"([{"content":"x"}])", "messages[0].role"},
      {R"([{"role":"robot","content":"x"}])", "\"robot\""},
      {R"([{"role":3,"content":"x"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content is missing"},
      {R"([{"role":"user","content":3}])", "messages[0].content"},
      {R"([{"role":"user","content":["x"]}])", "messages[0].content[0]"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0]"},
      {R"([{"role":"assistant","tool_calls":3}])", "messages[0].tool_calls"},
      {R"([{"role":"assistant","tool_calls":[3]}])", "messages[0].tool_calls[0]"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":3}}]}])", "name must be a string"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}])",
       "arguments"},
  };
  for (const auto& [messages, message] : bad) {
    const Refusal refusal = refused(messages);
    EXPECT_EQ(refusal.status, 400) << messages;
    EXPECT_THAT(refusal.message, HasSubstr(message)) << messages;
  }
  const std::vector<std::pair<std::string, std::string>> fields = {
      {R"("chat_template":"{{ 1 }}")", "chat_template"},
      {R"("echo":true)", "echo"},
      {R"("response_format":{"type":"structural_tag"})", "response_format.type"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":{"type":"function"})", "tool_choice"},
      {R"("functions":[{}])", "functions"},
      {R"("modalities":["audio"])", "modalities"},
      {R"("tools":[3])", "tools"},
      {R"("tools":{})", "tools"},
      {R"("documents":"x")", "documents"},
      {R"("chat_template_kwargs":[])", "chat_template_kwargs"},
      {R"("top_logprobs":2)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":6)", "top_logprobs"},
      {R"("continue_final_message":true,"add_generation_prompt":true)", "continue_final_message"},
      {R"("presence_penalty":3)", "presence_penalty"},
      {R"("n":0)", "n"},
  };
  for (const auto& [field, param] : fields) {
    const Refusal refusal = refused(kHello, "," + field);
    EXPECT_EQ(refusal.status, 400) << field;
    EXPECT_EQ(refusal.param, param) << field;
    EXPECT_FALSE(refusal.message.empty());
  }
  EXPECT_THROW(parse_chat(R"({"model":"other","messages":[]})", kServed, 1), ApiError);
}

TEST(ParseChat, WhatClientsSendAndMeansNothingIsAccepted) {
  const CompletionRequest request =
      parse(kHello, R"(,"response_format":{"type":"text"},"tool_choice":"auto","user":"u",
              "parallel_tool_calls":true,"modalities":["text"],"store":false,"metadata":{},
              "tools":[],"top_logprobs":0,"frobnicate":1)");
  EXPECT_THAT(request.unknown_fields, ElementsAre("frobnicate"));
  EXPECT_TRUE(input_of(request).tools.is_null());
  const std::string tools = R"(,"tools":[{"z":1,"name":"f","a":2}])";
  EXPECT_EQ(dump_json(input_of(parse(kHello, tools)).tools), R"([{"z":1,"name":"f","a":2}])");
  EXPECT_TRUE(input_of(parse(kHello, tools + R"(,"tool_choice":"none")")).tools.is_null());
  const text::ChatInput input = input_of(parse(
      kHello, R"(,"chat_template_kwargs":{"enable_thinking":false},"reasoning_effort":"low")"));
  EXPECT_EQ(dump_json(input.variables), R"({"enable_thinking":false,"reasoning_effort":"low"})");
  EXPECT_FALSE(input_of(parse(kHello, R"(,"continue_final_message":true)")).add_generation_prompt);
}

TEST(ChatJson, Shapes) {
  const AnswerFormat& format = chat_format();
  const Envelope envelope{"chatcmpl-1", "tiny", 9};
  Choice choice{.index = 1, .text = "hi"};
  choice.finish_reason = "stop";
  const Usage usage{.prompt_tokens = 3, .completion_tokens = 4};
  EXPECT_EQ(Json::parse(format.whole(envelope, {choice}, usage)),
            Json::parse(R"({"id":"chatcmpl-1","object":"chat.completion","created":9,
      "model":"tiny","choices":[{"index":1,"message":{"role":"assistant","content":"hi",
      "refusal":null},"logprobs":null,"finish_reason":"stop","stop_reason":null}],
      "usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,
      "prompt_tokens_details":{"cached_tokens":0}}})"));
  Choice first{.index = 1};
  EXPECT_EQ(Json::parse(format.opening(envelope, first, std::nullopt)),
            Json::parse(R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":9,
      "model":"tiny","choices":[{"index":1,"delta":{"role":"assistant","content":""},
      "logprobs":null,"finish_reason":null}]})"));
  choice.finish_reason.reset();
  const Json chunk = Json::parse(format.chunk(envelope, {choice}, std::nullopt));
  EXPECT_EQ(chunk["object"], "chat.completion.chunk");
  EXPECT_EQ(chunk["choices"][0]["delta"], Json::parse(R"({"content":"hi"})"));
  EXPECT_TRUE(chunk["choices"][0]["finish_reason"].is_null());
  choice.text = "";
  choice.finish_reason = "length";
  const Json last = Json::parse(format.chunk(envelope, {choice}, std::nullopt));
  EXPECT_EQ(last["choices"][0]["delta"], Json::object());
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(Json::parse(format.chunk(envelope, {}, usage))["choices"].empty());
}

TEST(ParseChat, ToolCallsAreLookedForWhereTheModelWritesThem) {
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"f"}},{"name":"g"}])";
  EXPECT_FALSE(parse(kHello, tools).tools);  // this model's format is not known
  ServedModel served = kServed;
  served.tools = ToolFormat::hermes;
  const auto parse_for = [&](const std::string& fields) {
    return parse_chat(std::string(R"({"messages":)") + kHello + fields + "}", served, 1);
  };
  EXPECT_EQ(parse_for(tools).tools, ToolFormat::hermes);
  EXPECT_THAT(parse_for(tools).tool_names, ElementsAre("f", "g"));
  EXPECT_FALSE(parse_for("").tools);
  EXPECT_FALSE(parse_for(tools + R"(,"tool_choice":"none")").tools);
}

// "required" and a function's name put the call into the form of the answer.
TEST(ParseChat, ACallCanBeForced) {
  ServedModel served = kServed;
  served.tools = ToolFormat::hermes;
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}},
          {"type":"function","function":{"name":"g"}}],"tool_choice":)";
  const auto parse_for = [&](const std::string& fields) {
    return parse_chat(std::string(R"({"messages":)") + kHello + fields + "}", served, 1);
  };
  const CompletionRequest any = parse_for(tools + R"("required")");
  ASSERT_TRUE(any.structured);
  EXPECT_EQ(any.structured->field, "tool_choice");
  EXPECT_EQ(any.structured->source.before, "<tool_call>\n");
  EXPECT_EQ(Json::parse(any.structured->source.text)["anyOf"].size(), 2u);
  EXPECT_FALSE(any.names_tool);
  const std::string name_g = R"({"type":"function","function":{"name":"g"}})";
  const CompletionRequest named = parse_for(tools + name_g);
  EXPECT_EQ(Json::parse(named.structured->source.text)["properties"]["name"]["const"], "g");
  EXPECT_TRUE(named.names_tool);
  EXPECT_FALSE(parse_for(tools + R"("auto")").structured);
  // A model without a format of its own writes the simplest.
  served.tools.reset();
  EXPECT_EQ(parse_for(tools + name_g).tools, ToolFormat::llama3_json);
  served.tools = ToolFormat::deepseek_v3;
  EXPECT_TRUE(parse_for(tools + name_g).structured);
  for (const std::string& wrong :
       {std::string(R"("required")"), std::string(R"("always")"), std::string("3"),
        std::string(R"({"type":"function","function":{"name":"h"}})"),
        std::string(R"({"type":"function","function":{"name":3}})"),
        name_g + R"(,"response_format":{"type":"json_object"})"}) {
    try {
      parse_for(tools + wrong);
      ADD_FAILURE() << wrong;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.param, "tool_choice") << wrong;
    }
  }
}

TEST(ParseChat, TheModelsDefaultLengthYieldsToTheRequests) {
  ServedModel served = kServed;
  served.defaults.max_tokens = 9;
  const auto parse_for = [&](const std::string& fields) {
    return parse_chat(std::string(R"({"messages":)") + kHello + fields + "}", served, 1);
  };
  EXPECT_EQ(parse_for("").default_tokens, 9);
  EXPECT_FALSE(parse_for("").generation.max_tokens);
  EXPECT_EQ(parse_for(R"(,"max_tokens":3)").generation.max_tokens, 3);
}

// OpenAI's shape: id and name come in a call's first part, and nowhere else.
TEST(ChatJson, ToolCalls) {
  const AnswerFormat& format = chat_format();
  const Envelope envelope{"chatcmpl-1", "tiny", 9, "ab"};
  Choice choice{.index = 1};
  choice.calls = {{0, "f", "{\"a\":"}, {0, "", "1}"}};
  const Json chunk = Json::parse(format.chunk(envelope, {choice}, std::nullopt));
  EXPECT_EQ(chunk["choices"][0]["delta"], Json::parse(R"({"tool_calls":[
      {"index":0,"id":"call_ab1x0","type":"function","function":{"name":"f","arguments":"{\"a\":"}},
      {"index":0,"function":{"arguments":"1}"}}]})"));
  choice.calls = {{0, "f", "{}"}, {1, "g", "{}"}};
  choice.finish_reason = "tool_calls";
  const Json whole = Json::parse(format.whole(envelope, {choice}, std::nullopt))["choices"][0];
  EXPECT_TRUE(whole["message"]["content"].is_null());
  EXPECT_EQ(whole["message"]["tool_calls"], Json::parse(R"([
      {"id":"call_ab1x0","type":"function","function":{"name":"f","arguments":"{}"}},
      {"id":"call_ab1x1","type":"function","function":{"name":"g","arguments":"{}"}}])"));
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
}

TEST(ChatJson, LogprobsAreAListOfTokensWithTheirBytes) {
  const TokenLogprob token{.token = "\xEF\xBF\xBD",
                           .bytes = "\xE2\x82",
                           .logprob = -1.0f,
                           .top = {{"a", -0.5f, "a"}},
                           .sampled_is_best = false};
  EXPECT_EQ(chat_format().logprobs({token}), OrderedJson::parse(R"({"content":[{
      "token":"\uFFFD","logprob":-1.0,"bytes":[226,130],
      "top_logprobs":[{"token":"a","logprob":-0.5,"bytes":[97]}]}]})"));
  EXPECT_EQ(chat_format().logprobs({})["content"], OrderedJson::array());
}

}  // namespace
}  // namespace octet::server
