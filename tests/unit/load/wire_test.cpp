// What is sent, and what is understood of the answer.
#include "load/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/base/error_of.h"

namespace octet::load {
namespace {

using test::error_of;
using ::testing::HasSubstr;

OrderedJson body_of(Prompt prompt, const BodyOptions& options) {
  LoadRequest request;
  request.prompt = std::move(prompt);
  request.output_tokens = 5;
  return OrderedJson::parse(request_body(request, options));
}

TEST(Wire, BodiesAreThoseOfTheApi) {
  EXPECT_EQ(body_of(std::string("hi"), {.model = "m"}),
            OrderedJson::parse(R"({"model": "m", "prompt": "hi", "max_tokens": 5, "stream": true,
                                   "stream_options": {"include_usage": true}})"));
  EXPECT_EQ(body_of(std::vector<int32_t>{1, 2}, {.model = "m"})["prompt"], OrderedJson({1, 2}));
  const OrderedJson chat = body_of(std::string("hi"), {.api = Api::chat, .model = "m"});
  EXPECT_EQ(chat["messages"], OrderedJson::parse(R"([{"role": "user", "content": "hi"}])"));
  EXPECT_EQ(chat["max_completion_tokens"], 5);
  const Json messages = Json::parse(R"([{"role": "system", "content": "x"}])");
  EXPECT_EQ(body_of(messages, {.api = Api::chat})["messages"][0]["role"], "system");
  const OrderedJson more = body_of(std::string("hi"), {.ignore_eos = true,
                                                       .sampling = {{"temperature", 0.5}},
                                                       .extra = {{"max_tokens", 9}, {"n", 2}}});
  EXPECT_EQ(more["ignore_eos"], true);
  EXPECT_EQ(more["temperature"], 0.5);
  EXPECT_EQ(more["max_tokens"], 9);  // what is extra goes above all
  EXPECT_EQ(more["n"], 2);
}

TEST(Wire, APromptMustSuitTheApi) {
  EXPECT_THAT(error_of([] { body_of(std::vector<int32_t>{1}, {.api = Api::chat}); }),
              HasSubstr("--endpoint"));
  EXPECT_THAT(error_of([] { body_of(Json::array(), {.api = Api::completions}); }),
              HasSubstr("--endpoint"));
}

TEST(Wire, ChunksAreRead) {
  const auto text = parse_chunk(Api::completions, R"({"choices": [{"text": "ab"}]})");
  ASSERT_TRUE(text);
  EXPECT_TRUE(text->has_token);
  EXPECT_EQ(text->text, "ab");
  const auto end = parse_chunk(
      Api::completions,
      R"({"choices": [{"text": "", "finish_reason": "stop"}], "usage": {"completion_tokens": 3}})");
  EXPECT_TRUE(end->has_token);
  EXPECT_EQ(end->completion_tokens, 3);
  const auto usage =
      parse_chunk(Api::completions,
                  R"({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}})");
  EXPECT_FALSE(usage->has_token);
  EXPECT_EQ(usage->prompt_tokens, 4);
  EXPECT_TRUE(parse_chunk(Api::chat, "[DONE]")->done);
  EXPECT_EQ(parse_chunk(Api::chat, R"({"error": {"message": "no", "code": 500}})")->error, "no");
  EXPECT_EQ(parse_chunk(Api::chat, R"({"error": "Unauthorized"})")->error, "Unauthorized");
}

TEST(Wire, TheRoleOfAChatIsNoToken) {
  const auto has_token = [](const char* delta) {
    return parse_chunk(Api::chat, std::string(R"({"choices": [)") + delta + "]}")->has_token;
  };
  EXPECT_FALSE(has_token(R"({"delta": {"role": "assistant", "content": ""}})"));
  EXPECT_FALSE(has_token(R"({"delta": {"role": "assistant"}, "finish_reason": null})"));
  EXPECT_TRUE(has_token(R"({"delta": {"role": "assistant", "content": "a"}})"));
  EXPECT_TRUE(has_token(R"({"delta": {"content": ""}})"));
  EXPECT_TRUE(has_token(R"({"delta": {"reasoning_content": "a"}})"));
  EXPECT_TRUE(has_token(R"({"delta": {"tool_calls": [{"index": 0}]}})"));
  EXPECT_TRUE(has_token(R"({"delta": {}, "finish_reason": "length"})"));
}

TEST(Wire, WhatIsNoChunkIsNone) {
  for (const char* data : {"", "x", "[]", "1", "{}", R"({"choices": 1})", R"({"object": "list"})",
                           R"({"choices": [{"text": "a"})", "[DONE"}) {
    EXPECT_FALSE(parse_chunk(Api::completions, data)) << data;
  }
  for (const char* data :
       {R"({"choices": [1]})", R"({"choices": [{"text": 5}]})", R"({"choices": [], "usage": 3})",
        R"({"choices": [{"delta": "x"}], "usage": {"completion_tokens": "x"}})"}) {
    ASSERT_TRUE(parse_chunk(Api::chat, data)) << data;
    EXPECT_FALSE(parse_chunk(Api::chat, data)->completion_tokens);
  }
}

TEST(Wire, ErrorsAreToldInTheirOwnWords) {
  EXPECT_EQ(error_message(R"({"error": {"message": "too long"}})"), "too long");
  EXPECT_EQ(error_message("<html>"), "<html>");
  EXPECT_LE(error_message(std::string(5000, 'x')).size(), 320u);
}

}  // namespace
}  // namespace octet::load
