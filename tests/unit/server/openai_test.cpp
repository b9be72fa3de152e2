// The text-completion surface: every field's bounds, and the shapes that clients read.
#include "server/openai.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace octet::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const ServedModel kServed{.name = "tiny",
                          .root = "models/tiny",
                          .created = 7,
                          .max_model_len = 64,
                          .vocab = 100,
                          .max_logprobs = 5};

CompletionRequest parse(const std::string& fields) {
  return parse_completion(R"({"model":"tiny","prompt":"a",)" + fields + "}", kServed, 42);
}
CompletionRequest parse_prompt(const std::string& prompt) {
  return parse_completion(R"({"prompt":)" + prompt + "}", kServed, 42);
}

// Status and param of what is refused; the message names the field.
struct Refusal {
  int status = 0;
  std::string param, message;
};
Refusal refusal(const std::string& body) {
  try {
    parse_completion(body, kServed, 42);
  } catch (const ApiError& error) {
    return {error.status, error.param.value_or(""), error.message};
  } catch (const Error& error) {
    const ApiError api = to_api_error(error);
    return {api.status, api.param.value_or(""), api.message};
  }
  return {};
}
Refusal refused(const std::string& fields) {
  return refusal(R"({"prompt":"a",)" + fields + "}");
}

TEST(Parse, Defaults) {
  const CompletionRequest request = parse_prompt(R"("hello")");
  ASSERT_EQ(request.prompts.size(), 1u);
  EXPECT_EQ(std::get<std::string>(request.prompts[0]), "hello");
  EXPECT_EQ(request.n, 1);
  EXPECT_EQ(request.generation.max_tokens, 16);
  EXPECT_EQ(request.generation.min_tokens, 0);
  EXPECT_FALSE(request.generation.ignore_eos);
  EXPECT_TRUE(request.generation.stop_ids.empty());
  EXPECT_EQ(request.generation.sampling.temperature, 1.0f);
  EXPECT_EQ(request.generation.sampling.top_p, 1.0f);
  EXPECT_EQ(request.generation.sampling.min_p, 0.0f);
  EXPECT_EQ(request.generation.sampling.top_k, 0);
  EXPECT_EQ(request.generation.sampling.seed, 42u);
  EXPECT_EQ(request.generation.sampling.logprobs, -1);
  EXPECT_TRUE(request.stop.empty());
  EXPECT_FALSE(request.include_stop);
  EXPECT_TRUE(request.skip_special);
  EXPECT_TRUE(request.add_special);
  EXPECT_FALSE(request.stream);
  EXPECT_FALSE(request.include_usage);
  EXPECT_TRUE(request.unknown_fields.empty());
}

TEST(Parse, NullIsAsIfAbsent) {
  const CompletionRequest request =
      parse(R"("max_tokens":null,"temperature":null,"stop":null,"logprobs":null,"seed":null,
               "stream":null,"stream_options":null,"n":null,"suffix":null,"logit_bias":null,
               "best_of":null,"echo":null,"user":null,"stop_token_ids":null,"top_p":null)");
  EXPECT_EQ(request.generation.max_tokens, 16);
  EXPECT_EQ(request.generation.sampling.seed, 42u);
}

TEST(Parse, EveryField) {
  const CompletionRequest request = parse(
      R"("max_tokens":5,"min_tokens":2,"temperature":0.5,"top_p":0.25,"min_p":0.125,"top_k":7,
         "seed":-3,"stop":["x","yy"],"stop_token_ids":[1,99],"include_stop_str_in_output":true,
         "skip_special_tokens":false,"add_special_tokens":false,"ignore_eos":true,"n":3,"best_of":3,
         "logprobs":5,"cache_salt":"s","stream":true,"user":"u",
         "stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  EXPECT_EQ(request.generation.max_tokens, 5);
  EXPECT_EQ(request.generation.min_tokens, 2);
  EXPECT_EQ(request.generation.salt, "s");
  EXPECT_THAT(request.generation.stop_ids, ElementsAre(1, 99));
  EXPECT_TRUE(request.generation.ignore_eos);
  const engine::Sampling& sampling = request.generation.sampling;
  EXPECT_EQ(sampling.temperature, 0.5f);
  EXPECT_EQ(sampling.top_p, 0.25f);
  EXPECT_EQ(sampling.min_p, 0.125f);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_EQ(sampling.seed, static_cast<uint64_t>(int64_t{-3}));
  EXPECT_EQ(sampling.logprobs, 5);
  EXPECT_THAT(request.stop, ElementsAre("x", "yy"));
  EXPECT_TRUE(request.include_stop);
  EXPECT_FALSE(request.skip_special);
  EXPECT_FALSE(request.add_special);
  EXPECT_EQ(request.n, 3);
  EXPECT_TRUE(request.stream && request.include_usage && request.continuous_usage);
}

TEST(Parse, BoundsOfNumbers) {
  struct Case {
    const char *field, *good, *bad;
  };
  for (const Case& c : {Case{"max_tokens", "1", "0"},
                        {"max_tokens", "2147483647", "2147483648"},
                        {"max_tokens", "8.0", "8.5"},
                        {"max_tokens", "3", "-1"},
                        {"max_tokens", "3", "99999999999999999999"},
                        {"max_tokens", "3", "1e300"},
                        {"max_tokens", "3", "\"3\""},
                        {"max_tokens", "3", "true"},
                        {"min_tokens", "0", "-1"},
                        {"temperature", "0", "-0.001"},
                        {"temperature", "2", "1e7"},
                        {"temperature", "1e-300", "\"1\""},
                        {"temperature", "-0.0", "[1]"},
                        {"top_p", "1", "0"},
                        {"top_p", "0.001", "1.001"},
                        {"top_p", "0.5", "-1"},
                        {"top_p", "1e-37", "1e-40"},
                        {"min_p", "0", "-0.1"},
                        {"min_p", "1", "1.1"},
                        {"top_k", "-1", "-2"},
                        {"top_k", "0", "0.5"},
                        {"seed", "9223372036854775807", "9223372036854775808"},
                        {"seed", "-9223372036854775808", "1.5"},
                        {"n", "1", "0"},
                        {"n", "128", "129"},
                        {"logprobs", "0", "-1"},
                        {"logprobs", "5", "6"},
                        {"logprobs", "5", "true"},
                        {"presence_penalty", "2", "2.1"},
                        {"presence_penalty", "-2", "\"0\""},
                        {"frequency_penalty", "-2", "-2.1"},
                        {"frequency_penalty", "0.5", "true"},
                        {"repetition_penalty", "0.1", "0"},
                        {"repetition_penalty", "1.5", "-1"},
                        {"prompt_logprobs", "5", "6"},
                        {"prompt_logprobs", "0", "-1"},
                        {"truncate_prompt_tokens", "-1", "0"},
                        {"truncate_prompt_tokens", "7", "-2"},
                        {"timeout", "0.5", "0"},
                        {"timeout", "86400", "86401"},
                        {"priority", "0", "1"},
                        {"best_of", "1", "0"},
                        {"best_of", "128", "129"}}) {
    SCOPED_TRACE(std::string(c.field) + ": " + c.bad);
    const auto field = [&](const char* value) {
      return "\"" + std::string(c.field) + "\":" + value;
    };
    EXPECT_NO_THROW(parse(field(c.good)));
    const Refusal found = refused(field(c.bad));
    EXPECT_EQ(found.status, 400);
    EXPECT_EQ(found.param, c.field);
    EXPECT_THAT(found.message, HasSubstr(c.field));
  }
}

TEST(Parse, WrongTypesAreNamed) {
  for (const char* field : {R"("stream":1)",
                            R"("stream":"true")",
                            R"("ignore_eos":0)",
                            R"("stop":7)",
                            R"("stop":["a",7])",
                            R"("stop":{"a":1})",
                            R"("stop_token_ids":5)",
                            R"("stop_token_ids":[1.5])",
                            R"("cache_salt":7)",
                            R"("model":7)",
                            R"("suffix":7)",
                            R"("suffix":"x")",
                            R"("echo":1)",
                            R"("logit_bias":[5])",
                            R"("logit_bias":7)",
                            R"("logit_bias":{"5":101})",
                            R"("logit_bias":{"5":"1"})",
                            R"("logit_bias":{"100":1})",
                            R"("logit_bias":{"-1":1})",
                            R"("logit_bias":{"five":1})",
                            R"("logit_bias":{"":1})",
                            R"("logit_bias":{"5":1,"05":1})",
                            R"("allowed_token_ids":[])",
                            R"("allowed_token_ids":[100])",
                            R"("allowed_token_ids":7)",
                            R"("bad_words":[""])",
                            R"("bad_words":[7])",
                            R"("request_id":7)",
                            R"("best_of":2,"stream":true)",
                            R"("best_of":2,"n":3)",
                            R"("prompt_logprobs":1,"stream":true)",
                            R"("truncate_prompt_tokens":5,"truncation_side":"middle")",
                            R"("return_token_ids":1)",
                            R"("return_tokens_as_token_ids":"x")",
                            R"("spaces_between_special_tokens":1)",
                            R"("skip_special_tokens":"no")",
                            R"("stream_options":5,"stream":true)",
                            R"("stream_options":[],"stream":true)",
                            R"("stream_options":{"include_usage":1},"stream":true)"}) {
    SCOPED_TRACE(field);
    const Refusal found = refused(field);
    EXPECT_EQ(found.status, 400);
    EXPECT_FALSE(found.param.empty());
  }
}

TEST(Parse, Prompts) {
  const auto ids = [](const Prompt& prompt) { return std::get<std::vector<int32_t>>(prompt); };
  EXPECT_THAT(ids(parse_prompt("[0,1,99]").prompts.at(0)), ElementsAre(0, 1, 99));
  const auto mixed = parse_prompt(R"(["a",[5,6],""])").prompts;
  ASSERT_EQ(mixed.size(), 3u);
  EXPECT_EQ(std::get<std::string>(mixed[0]), "a");
  EXPECT_THAT(ids(mixed[1]), ElementsAre(5, 6));
  EXPECT_EQ(std::get<std::string>(mixed[2]), "");
  EXPECT_TRUE(ids(parse_prompt("[[]]").prompts.at(0)).empty());  // the engine refuses it

  std::string many = "\"a\"";
  for (int i = 0; i < 256; ++i) many += ",\"a\"";
  for (const std::string& bad :
       {std::string("[]"), std::string("7"), std::string("true"), std::string("{}"),
        std::string("null"), std::string("[100]"), std::string("[-1]"), std::string("[1,\"a\"]"),
        std::string("[\"a\",1]"), std::string("[1.5]"), std::string("[4294967296]"),
        std::string("[18446744073709551615]"), std::string("[[[1]]]"), std::string("[null]"),
        std::string("[true]"), "[" + many + "]"}) {
    SCOPED_TRACE(bad.substr(0, 40));
    const Refusal found = refusal(R"({"prompt":)" + bad + "}");
    EXPECT_EQ(found.status, 400);
    EXPECT_EQ(found.param, "prompt");
  }
  EXPECT_EQ(refusal("{}").param, "prompt");
}

TEST(Parse, Stops) {
  EXPECT_THAT(parse(R"("stop":"END")").stop, ElementsAre("END"));
  EXPECT_THAT(parse(R"("stop":[])").stop, ElementsAre());
  EXPECT_EQ(refused(R"("stop":"")").param, "stop");
  EXPECT_EQ(refused(R"("stop":["a",""])").param, "stop");
  std::string many = "\"a\"";
  for (int i = 0; i < 64; ++i) many += ",\"a\"";
  EXPECT_EQ(refused("\"stop\":[" + many + "]").param, "stop");
  EXPECT_THAT(parse("\"stop\":\"" + std::string(4096, 'x') + "\"").stop, SizeIs(1));
  EXPECT_EQ(refused("\"stop\":\"" + std::string(4097, 'x') + "\"").param, "stop");
}

// What every choice, or the cache, keeps a copy of has a bound.
TEST(Parse, CopiedFieldsAreBounded) {
  EXPECT_EQ(parse("\"cache_salt\":\"" + std::string(1024, 's') + "\"").generation.salt.size(),
            1024u);
  EXPECT_EQ(refused("\"cache_salt\":\"" + std::string(1025, 's') + "\"").param, "cache_salt");
  std::string ids = "1";
  for (int i = 1; i < 8192; ++i) ids += ",1";
  EXPECT_EQ(parse("\"stop_token_ids\":[" + ids + "]").generation.stop_ids.size(), 8192u);
  EXPECT_EQ(refused("\"stop_token_ids\":[" + ids + ",1]").param, "stop_token_ids");
}

TEST(Parse, WhatChangesTheLogits) {
  const CompletionRequest request = parse(
      R"("presence_penalty":0.5,"frequency_penalty":-1,"repetition_penalty":1.25,
         "logit_bias":{"7":-100,"3":0.5},"allowed_token_ids":[9,3,9],"bad_words":["no","never"],
         "timeout":1.5,"request_id":"r1","truncate_prompt_tokens":4,"truncation_side":"right",
         "return_tokens_as_token_ids":true,"return_token_ids":true,"prompt_logprobs":2)");
  const engine::Sampling& sampling = request.generation.sampling;
  EXPECT_EQ(sampling.presence_penalty, 0.5f);
  EXPECT_EQ(sampling.frequency_penalty, -1.0f);
  EXPECT_EQ(sampling.repetition_penalty, 1.25f);
  EXPECT_THAT(sampling.logit_bias, ElementsAre(std::pair(3, 0.5f), std::pair(7, -100.0f)));
  EXPECT_THAT(sampling.allowed, ElementsAre(3, 9));
  EXPECT_THAT(request.bad_words, ElementsAre("no", "never"));
  EXPECT_EQ(request.generation.timeout_s, 1.5);
  EXPECT_EQ(request.id, "r1");
  ASSERT_TRUE(request.truncation);
  EXPECT_EQ(request.truncation->most, 4);
  EXPECT_FALSE(request.truncation->from_the_left);
  EXPECT_TRUE(request.tokens_as_ids && request.token_ids);
  EXPECT_EQ(request.prompt_logprobs, 2);
  EXPECT_EQ(request.generation.prompt_logprobs, 2);
  EXPECT_TRUE(request.unknown_fields.empty());
}

TEST(Parse, PrioritiesNeedTheirPolicy) {
  ServedModel served = kServed;
  served.priorities = true;
  const std::string body = R"({"prompt":"a","priority":-3})";
  EXPECT_EQ(parse_completion(body, served, 1).generation.priority, -3);
  EXPECT_EQ(refusal(body).param, "priority");
  EXPECT_THAT(refusal(body).message, HasSubstr("--schedule-policy priority"));
}

TEST(Parse, EchoAndLength) {
  EXPECT_TRUE(parse(R"("echo":true)").echo);
  EXPECT_EQ(parse(R"("echo":true)").generation.prompt_logprobs, -1);
  const CompletionRequest scored = parse(R"("echo":true,"logprobs":2,"max_tokens":0)");
  EXPECT_EQ(scored.generation.prompt_logprobs, 2);
  EXPECT_TRUE(scored.echo_alone);
  EXPECT_EQ(scored.generation.max_tokens, 1);
  EXPECT_EQ(parse(R"("echo":true,"logprobs":2,"prompt_logprobs":4)").generation.prompt_logprobs, 4);
  EXPECT_EQ(refused(R"("max_tokens":0)").param, "max_tokens");
}

TEST(Parse, BestOf) {
  const CompletionRequest request = parse(R"("best_of":4,"n":2)");
  EXPECT_EQ(request.best_of, 4);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.generation.sampling.logprobs, 0);  // to compare
  EXPECT_FALSE(request.logprobs);                      // not to show
  EXPECT_EQ(parse(R"("n":3)").best_of, 3);
}

// A model's generation_config.json stands between a request and OpenAI's defaults.
TEST(GenerationConfig, FillsWhatARequestLeavesOut) {
  const Json config = Json::parse(
      R"({"temperature":0.6,"top_p":0.9,"top_k":20,"min_p":0.1,"repetition_penalty":1.05,
          "max_new_tokens":9,"do_sample":false,"eos_token_id":[1,2]})");
  ServedModel served = kServed;
  served.defaults = parse_generation_config(JsonView(config, "generation_config.json"));
  const auto sampling = [&](const std::string& fields) {
    return parse_completion(R"({"prompt":"a")" + fields + "}", served, 1).generation.sampling;
  };
  EXPECT_EQ(sampling("").temperature, 0.6f);
  EXPECT_EQ(sampling("").top_p, 0.9f);
  EXPECT_EQ(sampling("").top_k, 20);
  EXPECT_EQ(sampling("").min_p, 0.1f);
  EXPECT_EQ(sampling("").repetition_penalty, 1.05f);
  EXPECT_EQ(sampling(R"(,"temperature":0,"top_k":0)").temperature, 0.0f);
  EXPECT_EQ(sampling(R"(,"temperature":0,"top_k":0)").top_k, 0);
  EXPECT_EQ(sampling(R"(,"top_p":1)").top_p, 1.0f);
  EXPECT_EQ(served.defaults.max_tokens, 9);
  for (const char* wrong : {R"({"temperature":-1})", R"({"top_p":"x"})", R"({"top_k":1.5})",
                            R"({"max_new_tokens":0})", R"({"repetition_penalty":0})"}) {
    const Json bad = Json::parse(wrong);
    try {
      parse_generation_config(JsonView(bad, "dir/generation_config.json"));
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("dir/generation_config.json"));
    }
  }
}

// stream_options: usage only if it is asked for with true, and only in a stream.
TEST(Parse, StreamOptions) {
  EXPECT_FALSE(parse(R"("stream":true,"stream_options":{})").include_usage);
  EXPECT_FALSE(parse(R"("stream":true,"stream_options":{"include_usage":false})").include_usage);
  EXPECT_FALSE(parse(R"("stream":true,"stream_options":{"include_usage":null})").include_usage);
  EXPECT_TRUE(parse(R"("stream":true,"stream_options":{"include_usage":true})").include_usage);
  EXPECT_FALSE(
      parse(R"("stream":true,"stream_options":{"continuous_usage_stats":true})").continuous_usage);
  EXPECT_EQ(refused(R"("stream_options":{"include_usage":true})").param, "stream_options");
  ServedModel served = kServed;
  served.force_usage = true;
  served.cached_usage = false;
  const auto forced = parse_completion(R"({"prompt":"a","stream":true})", served, 1);
  EXPECT_TRUE(forced.include_usage);
  EXPECT_FALSE(forced.cached_usage);
  EXPECT_FALSE(parse_completion(R"({"prompt":"a"})", served, 1).include_usage);
}

TEST(Parse, UnknownFieldsAreAcceptedAndListed) {
  const CompletionRequest request = parse(R"("guided_red":"x","zebra":{"a":[1]},"user":"me")");
  EXPECT_THAT(request.unknown_fields, ElementsAre("guided_red", "zebra"));
}

TEST(Parse, UnknownModelIsNotFound) {
  const Refusal found = refusal(R"({"model":"other","prompt":"a"})");
  EXPECT_EQ(found.status, 404);
  EXPECT_EQ(found.param, "model");
  EXPECT_THAT(found.message, HasSubstr("tiny"));
}

TEST(Parse, MalformedBodies) {
  std::string deep = R"({"prompt":)";
  for (int i = 0; i < 100; ++i) deep += "[";
  for (const std::string& body :
       {std::string(), std::string("null"), std::string("[]"), std::string("\"a\""),
        std::string("{"), std::string("{\"prompt\":\"a\"} x"), std::string("{'prompt':'a'}"),
        std::string("{\"prompt\":\"a\",}"), std::string("{\"prompt\":NaN}"),
        std::string("{\"prompt\":\"a\",\"temperature\":NaN}"),
        std::string("{\"prompt\":\"a\",\"temperature\":1e999}"),
        std::string("{\"prompt\":\"a\",\"temperature\":Infinity}"),
        std::string("{\"prompt\":\"a\",\"prompt\":\"b\"}"), std::string("{\"prompt\":\"\xff\"}"),
        std::string("{\"prompt\":\"\\ud800\"}"), std::string("\0{}", 3), deep}) {
    SCOPED_TRACE(body.substr(0, 40));
    const Refusal found = refusal(body);
    EXPECT_EQ(found.status, 400);
    EXPECT_FALSE(found.message.empty());
  }
}

TEST(ErrorJson, HasTheShapeAndTakesAnyBytes) {
  const Json error = Json::parse(error_json(ApiError(404, "no", "NotFoundError", "model")));
  EXPECT_EQ(error,
            Json::parse(
                R"({"error":{"message":"no","type":"NotFoundError","param":"model","code":404}})"));
  const Json raw = Json::parse(error_json(ApiError(400, "bad \xff\xc3 bytes")));
  EXPECT_EQ(raw["error"]["message"], "bad \xEF\xBF\xBD\xEF\xBF\xBD bytes");
  EXPECT_EQ(raw["error"]["type"], "BadRequestError");
  EXPECT_TRUE(raw["error"]["param"].is_null());
}

TEST(CompletionJson, Shape) {
  Choice choice{.index = 2, .text = "hi"};
  const Json open = Json::parse(completion_json({"cmpl-1", "tiny", 9}, {choice}, std::nullopt));
  EXPECT_EQ(open, Json::parse(R"({"id":"cmpl-1","object":"text_completion","created":9,
      "model":"tiny","choices":[{"index":2,"text":"hi","logprobs":null,"finish_reason":null,
      "stop_reason":null}]})"));
  choice.finish_reason = "stop";
  choice.stop_reason = OrderedJson("END");
  const Usage usage{.prompt_tokens = 3, .completion_tokens = 4, .cached_tokens = 2};
  const Json ended = Json::parse(completion_json({"cmpl-1", "tiny", 9}, {choice}, usage));
  EXPECT_EQ(ended["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(ended["choices"][0]["stop_reason"], "END");
  EXPECT_EQ(ended["usage"], Json::parse(R"({"prompt_tokens":3,"total_tokens":7,
      "completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}})"));
  choice.token_ids = {4, 5};
  choice.prompt_token_ids = {1};
  const Json ids = Json::parse(completion_json({"cmpl-1", "tiny", 9}, {choice}, usage));
  EXPECT_EQ(ids["choices"][0]["token_ids"], Json({4, 5}));
  EXPECT_EQ(ids["choices"][0]["prompt_token_ids"], Json({1}));
  EXPECT_TRUE(usage_json({3, 4, std::nullopt})["prompt_tokens_details"].is_null());
  const Json last = Json::parse(completion_json({"cmpl-1", "tiny", 9}, {}, usage));
  EXPECT_TRUE(last["choices"].is_array() && last["choices"].empty());
  choice.text = "\xff";
  EXPECT_NO_THROW(Json::parse(completion_json({"x", "tiny", 9}, {choice}, std::nullopt)));
}

TEST(ModelsJson, Shape) {
  const Json list = Json::parse(models_json(kServed));
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 1u);
  EXPECT_EQ(list["data"][0], Json::parse(model_json(kServed)));
  EXPECT_EQ(list["data"][0], Json::parse(R"({"id":"tiny","object":"model","created":7,
      "owned_by":"octet","root":"models/tiny","parent":null,"max_model_len":64,
      "permission":[]})"));
}

TEST(LogprobsJson, ShapeAndFiniteNumbers) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const text::Tokenizer tokenizer =
      text::Tokenizer::load(std::string(OCTET_SOURCE_DIR) + "/models/octet-demo");
  const engine::SampledToken token{.token = 70, .logprob = -inf, .top = {{71, -0.5f}, {72, nan}}};
  const TokenLogprob named = token_logprob(tokenizer, token, 5);
  EXPECT_EQ(named.logprob, -9999.0f);
  ASSERT_EQ(named.top.size(), 2u);
  EXPECT_EQ(named.top[1].logprob, -9999.0f);
  EXPECT_FALSE(named.sampled_is_best);
  const OrderedJson json = logprobs_json({named, named});
  ASSERT_EQ(json.size(), 4u);
  EXPECT_EQ(json["tokens"].size(), 2u);
  EXPECT_EQ(json["text_offset"][0], 5);
  EXPECT_EQ(json["token_logprobs"][1], -9999.0f);
  EXPECT_EQ(json["top_logprobs"][0].size(), 3u);  // the sampled one is always among them
  EXPECT_EQ(logprobs_json({})["tokens"], OrderedJson::array());
  EXPECT_EQ(token_logprob(tokenizer, token, 5, true).top[0].token, "token_id:71");
  const OrderedJson of_prompt = prompt_logprob_json(tokenizer, token, 1);
  ASSERT_EQ(of_prompt.size(), 2u);  // the token and the best one
  EXPECT_EQ(of_prompt["70"]["logprob"], -9999.0f);
  EXPECT_EQ(of_prompt["71"]["rank"], 1);
  // The first token of an echoed prompt has none.
  const OrderedJson first = logprobs_json({{.token = "a", .logprob = std::nullopt}});
  EXPECT_TRUE(first["token_logprobs"][0].is_null() && first["top_logprobs"][0].is_null());
  // Of several tokens with one text, the best counts.
  const OrderedJson twice =
      logprobs_json({{.token = "a", .logprob = -1.0f, .top = {{"b", -1}, {"b", -2}}}});
  EXPECT_EQ(twice["top_logprobs"][0]["b"], -1.0f);
}

TEST(FinishReason, AllHaveNames) {
  EXPECT_EQ(finish_reason(sched::Finish::stop), "stop");
  EXPECT_EQ(finish_reason(sched::Finish::length), "length");
  EXPECT_EQ(finish_reason(sched::Finish::cancelled), "abort");
  EXPECT_EQ(finish_reason(sched::Finish::error), "error");
}

}  // namespace
}  // namespace octet::server
