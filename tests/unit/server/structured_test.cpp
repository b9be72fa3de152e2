// What a request says of the form of its output.
#include "server/structured.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/chat.h"
#include "server/openai.h"

namespace octet::server {
namespace {

using Kind = text::GrammarSource::Kind;
using testing::HasSubstr;

const ServedModel kServed{.name = "m", .max_model_len = 100, .vocab = 50};

std::optional<Structured> parse(const std::string& fields) {
  return parse_completion(R"({"prompt":"x")" + (fields.empty() ? "" : "," + fields) + "}", kServed,
                          0)
      .structured;
}

struct Refusal {
  std::string param, message;
};
Refusal refusal(const std::string& fields) {
  try {
    parse(fields);
  } catch (const ApiError& error) {
    return {error.param.value_or("none"), error.message};
  } catch (const Error& error) {
    const ApiError api = to_api_error(error);
    return {api.param.value_or("none"), api.message};
  }
  return {"accepted", ""};
}

TEST(Structured, EveryWayOfAskingForAForm) {
  const std::tuple<const char*, Kind, const char*, const char*> ways[] = {
      {R"("response_format":{"type":"json_object"})", Kind::json_object, "", "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,
          "schema":{"type":"object","properties":{"z":{},"a":{}}}}})",
       Kind::json_schema, R"({"type":"object","properties":{"z":{},"a":{}}})",
       "response_format.json_schema.schema"},
      {R"("structured_outputs":{"json":{"const":1}})", Kind::json_schema, R"({"const":1})",
       "structured_outputs.json"},
      {R"("structured_outputs":{"regex":"a+","disable_fallback":true})", Kind::regex, "a+",
       "structured_outputs.regex"},
      {R"("structured_outputs":{"choice":["a","b"],"json":null})", Kind::choice, R"(["a","b"])",
       "structured_outputs.choice"},
      {R"("structured_outputs":{"grammar":"root ::= \"a\""})", Kind::ebnf, R"(root ::= "a")",
       "structured_outputs.grammar"},
      {R"("structured_outputs":{"json_object":true})", Kind::json_object, "",
       "structured_outputs.json_object"},
      {R"("guided_json":"{\"const\":2}")", Kind::json_schema, R"({"const":2})", "guided_json"},
      {R"("guided_regex":"b")", Kind::regex, "b", "guided_regex"},
      {R"("guided_choice":["c"])", Kind::choice, R"(["c"])", "guided_choice"},
      {R"("guided_grammar":"root ::= \"d\"")", Kind::ebnf, R"(root ::= "d")", "guided_grammar"},
      {R"("guided_json_object":true)", Kind::json_object, "", "guided_json_object"}};
  for (const auto& [fields, kind, text, field] : ways) {
    const std::optional<Structured> found = parse(fields);
    ASSERT_TRUE(found) << fields;
    EXPECT_EQ(found->source.kind, kind) << fields;
    EXPECT_EQ(found->source.text, text) << "keys keep their order";
    EXPECT_EQ(found->field, field);
  }
  for (const char* nothing :
       {"", R"("response_format":{"type":"text"})", R"("response_format":null)",
        R"("structured_outputs":{})", R"("guided_json":null)", R"("guided_json_object":false)"}) {
    EXPECT_FALSE(parse(nothing)) << nothing;
  }
}

TEST(Structured, WhatIsWrongIsRefusedByItsField) {
  const std::tuple<const char*, const char*, const char*> wrong[] = {
      {R"("response_format":"json")", "response_format", "json_schema"},
      {R"("response_format":{})", "response_format", "type"},
      {R"("response_format":{"type":"structural_tag"})", "response_format.type", "structural_tag"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema", "missing"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})",
       "response_format.json_schema.schema", "missing"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":[1]}})",
       "response_format.json_schema.schema", "object"},
      {R"("structured_outputs":[])", "structured_outputs", "object"},
      {R"("structured_outputs":{"structural_tag":"x"})", "structured_outputs.structural_tag",
       "json, regex"},
      {R"("structured_outputs":{"regex":5})", "structured_outputs.regex", "string"},
      {R"("structured_outputs":{"choice":[]})", "structured_outputs.choice", "at least one"},
      {R"("structured_outputs":{"choice":["a",1]})", "structured_outputs.choice", "string"},
      {R"("guided_json":"{")", "guided_json", ""},
      {R"("guided_json":"3")", "guided_json", "object"},
      {R"("guided_json_object":1)", "guided_json_object", "true or false"},
      {R"("guided_regex":"a","guided_choice":["b"])", "guided_choice", "guided_regex"},
      {R"("guided_json":{},"response_format":{"type":"json_object"})", "guided_json",
       "response_format"}};
  for (const auto& [fields, param, message] : wrong) {
    const Refusal found = refusal(fields);
    EXPECT_EQ(found.param, param) << fields;
    EXPECT_THAT(found.message, HasSubstr(message)) << fields;
  }
}

TEST(Structured, ChatHasItToo) {
  const CompletionRequest request = parse_chat(
      R"({"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_object"}})",
      kServed, 0);
  ASSERT_TRUE(request.structured);
  EXPECT_EQ(request.structured->source.kind, Kind::json_object);
  EXPECT_TRUE(request.unknown_fields.empty());
}

}  // namespace
}  // namespace octet::server
