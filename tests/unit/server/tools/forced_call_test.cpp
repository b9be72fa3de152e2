// The form of a call that must come: what a grammar of it may say is what the format's parser
// reads.
#include "server/tools/forced_call.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace octet::server {
namespace {

const OrderedJson kPoint = OrderedJson::parse(
    R"({"type":"object","properties":{"at":{"$ref":"#/$defs/At"}},"$defs":{"At":{"type":"number"}}})");

TEST(ForcedCall, OneFunctionOrAnyOf) {
  const ForcedCall one = forced_call(ToolFormat::hermes, {{"f", nullptr}}).value();
  EXPECT_EQ(one.schema, OrderedJson::parse(R"({"type":"object","properties":{
      "name":{"const":"f"},"arguments":{"type":"object"}},
      "required":["name","arguments"],"additionalProperties":false})"));
  const ForcedCall any =
      forced_call(ToolFormat::llama3_json, {{"f", nullptr}, {"g", kPoint}}).value();
  ASSERT_EQ(any.schema["anyOf"].size(), 2u);
  EXPECT_EQ(
      any.schema["anyOf"][1]["properties"]["parameters"],
      OrderedJson::parse(R"({"type":"object","properties":{"at":{"$ref":"#/$defs/tool1_At"}}})"));
  EXPECT_EQ(any.schema["$defs"], OrderedJson::parse(R"({"tool1_At":{"type":"number"}})"));
}

// "#/$defs/At" and "#" of a function's schema mean places in that schema.
TEST(ForcedCall, EveryFunctionHasItsOwnDefinitions) {
  const OrderedJson other = OrderedJson::parse(
      R"({"type":"object","properties":{"at":{"$ref":"#/$defs/At"},"next":{"$ref":"#"}},
          "$defs":{"At":{"type":"string"}}})");
  const ForcedCall any = forced_call(ToolFormat::hermes, {{"f", kPoint}, {"g", other}}).value();
  EXPECT_EQ(any.schema["$defs"]["tool0_At"]["type"], "number");
  EXPECT_EQ(any.schema["$defs"]["tool1_At"]["type"], "string");
  EXPECT_EQ(any.schema["$defs"]["tool1_root"]["properties"]["next"]["$ref"], "#/$defs/tool1_root");
  const OrderedJson astray = OrderedJson::parse(R"({"type":"object","items":{"$ref":"#/a"}})");
  EXPECT_THROW(forced_call(ToolFormat::hermes, {{"f", kPoint}, {"g", astray}}), Error);
}

// As pydantic and others write the parameters of a function that takes one record.
TEST(ForcedCall, ParametersThatAreAReferenceAtTheirTop) {
  for (const char* key : {"$defs", "definitions"}) {
    const OrderedJson record = OrderedJson::parse(
        std::string(R"({"$ref":"#/)") + key + R"(/Args",")" + key +
        R"(":{"Args":{"type":"object","properties":{"at":{"type":"number"}}}}})");
    const ForcedCall call = forced_call(ToolFormat::hermes, {{"f", record}}).value();
    EXPECT_EQ(call.schema["properties"]["arguments"],
              OrderedJson::parse(R"({"$ref":"#/$defs/tool0_Args"})"));
    EXPECT_EQ(call.schema["$defs"]["tool0_Args"]["properties"]["at"]["type"], "number");
  }
}

TEST(ForcedCall, DeepseekWritesTheNameOutsideOfTheJson) {
  const ForcedCall call = forced_call(ToolFormat::deepseek_v3, {{"g", kPoint}}).value();
  EXPECT_EQ(call.schema["$defs"]["tool0_At"]["type"], "number");
  EXPECT_TRUE(call.before.ends_with("<｜tool▁sep｜>g\n```json\n"));
  EXPECT_FALSE(forced_call(ToolFormat::deepseek_v3, {{"f", nullptr}, {"g", nullptr}}));
}

TEST(ForcedCall, TheParserReadsIt) {
  const std::string arguments = R"({"at":1})";
  for (const ToolFormat format :
       {ToolFormat::hermes, ToolFormat::llama3_json, ToolFormat::deepseek_v3}) {
    const ForcedCall call = forced_call(format, {{"g", kPoint}}).value();
    std::string json = arguments;
    if (call.schema["properties"].contains("name")) {
      const char* key =
          call.schema["properties"].contains("arguments") ? "arguments" : "parameters";
      json = std::string(R"({"name":"g",")") + key + "\":" + arguments + "}";
    }
    const auto parser = make_tool_parser(format, {"g"});
    ToolText found = parser->push(call.before + json + call.after);
    for (ToolCallPart& one : parser->finish().calls) found.calls.push_back(std::move(one));
    std::string name, written;
    for (const ToolCallPart& part : found.calls) {
      name += part.name;
      written += part.arguments;
    }
    EXPECT_EQ(name, "g") << to_string(format);
    EXPECT_EQ(written, arguments) << to_string(format);
    EXPECT_EQ(found.content, "");
  }
}

}  // namespace
}  // namespace octet::server
