// Whatever the stops and however the events come: the parts joined are the whole.
#include "server/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/utf8.h"

namespace octet::server {
namespace {

using ::testing::ElementsAre;

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer instance =
      text::Tokenizer::load(std::string(OCTET_SOURCE_DIR) + "/models/octet-demo");
  return instance;
}

// Tokens of one byte each, so that characters and stop strings are cut wherever they can be.
std::vector<int32_t> bytes_of(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(tokenizer().token_id(std::string(1, c)).value());
  return ids;
}

struct Whole {
  std::string text, finish;
  OrderedJson tokens, logprobs, offsets, stop;
  int64_t completion_tokens = 0;
  std::optional<int32_t> told;  // the engine
  int parts = 0;
  bool operator==(const Whole& other) const {
    return text == other.text && finish == other.finish && tokens == other.tokens &&
           logprobs == other.logprobs && offsets == other.offsets && stop == other.stop &&
           completion_tokens == other.completion_tokens && told == other.told;
  }
};

struct Script {
  std::vector<int32_t> ids;
  std::optional<int32_t> stop_token;  // the last of the ids, if set
  sched::Finish finish = sched::Finish::length;
};

// Plays the script; `streamed` takes a part whenever there is news, else once at the end.
Whole play(const CompletionRequest& request, const Script& script, bool streamed) {
  Answer answer(tokenizer(), request);
  Whole whole;
  whole.tokens = whole.logprobs = whole.offsets = OrderedJson::array();
  const auto take = [&] {
    const Choice part = answer.take(0);
    ++whole.parts;
    EXPECT_TRUE(!part.text.empty() || part.finish_reason) << "an empty part";
    EXPECT_TRUE(text::is_valid_utf8(part.text));
    whole.text += part.text;
    if (part.finish_reason) whole.finish = *part.finish_reason;
    if (part.stop_reason) whole.stop = *part.stop_reason;
    if (part.logprobs.is_null()) return;
    const auto append = [&](OrderedJson& to, const char* name) {
      for (const auto& value : part.logprobs[name]) to.push_back(value);
    };
    append(whole.tokens, "tokens");
    append(whole.logprobs, "token_logprobs");
    append(whole.offsets, "text_offset");
  };
  for (size_t i = 0; i < script.ids.size() && !answer.done(); ++i) {
    engine::TokenEvent event;
    event.tokens.push_back({.token = script.ids[i], .logprob = -0.5f * static_cast<float>(i + 1)});
    event.prompt_tokens = 3;
    event.output_tokens = static_cast<int32_t>(i + 1);
    if (i + 1 == script.ids.size()) {
      event.finish = script.finish;
      event.stop_token = script.stop_token;
    }
    if (const auto at = answer.add(event)) whole.told = at;
    if (streamed && answer.has_news()) take();
  }
  EXPECT_TRUE(answer.done());
  if (!streamed) take();
  whole.completion_tokens = answer.usage().completion_tokens;
  return whole;
}

CompletionRequest with_stops(std::vector<std::string> stops) {
  CompletionRequest request;
  request.stop = std::move(stops);
  request.generation.sampling.logprobs = 0;
  request.logprobs = true;
  return request;
}

// What holds for every answer.
void check(const CompletionRequest& request, const Script& script, const Whole& expected) {
  const Whole whole = play(request, script, false);
  const Whole streamed = play(request, script, true);
  EXPECT_TRUE(whole == streamed) << whole.text << " | " << streamed.text << "\n"
                                 << whole.tokens << streamed.tokens;
  EXPECT_EQ(whole.text, expected.text);
  EXPECT_EQ(whole.finish, expected.finish);
  EXPECT_EQ(whole.completion_tokens, expected.completion_tokens);
  EXPECT_EQ(whole.told, expected.told);
  EXPECT_EQ(static_cast<int64_t>(whole.tokens.size()), expected.completion_tokens);
}

TEST(Answer, PassesEverythingOn) {
  const CompletionRequest request = with_stops({});
  check(request, {bytes_of("abc")}, {.text = "abc", .finish = "length", .completion_tokens = 3});
  const Whole streamed = play(request, {bytes_of("abc")}, true);
  EXPECT_EQ(streamed.parts, 3);
  EXPECT_EQ(streamed.offsets, OrderedJson({0, 1, 2}));
}

TEST(Answer, StopStringsAcrossTokens) {
  // "DEFGHIJ" (vllm #3574): nothing of it is shown.
  check(with_stops({"DEFGHIJ"}), {bytes_of("abcDEFGHIJxyz")},
        {.text = "abc", .finish = "stop", .completion_tokens = 3, .told = 3});
  // Almost a stop string is shown in the end.
  check(with_stops({"DEFGHIJ"}), {bytes_of("abcDEFGHI")},
        {.text = "abcDEFGHI", .finish = "length", .completion_tokens = 9});
  check(with_stops({"DEFGHIJ"}), {bytes_of("DEFDEFGHIJ")},
        {.text = "DEF", .finish = "stop", .completion_tokens = 3});
  // At once: nothing is left.
  check(with_stops({"ab"}), {bytes_of("abc")},
        {.text = "", .finish = "stop", .completion_tokens = 0, .told = 0});
  // On the very last token the engine knows the end.
  check(with_stops({"bc"}), {bytes_of("abc")},
        {.text = "a", .finish = "stop", .completion_tokens = 1});
  CompletionRequest included = with_stops({"bc"});
  included.include_stop = true;
  check(included, {bytes_of("abcd")},
        {.text = "abc", .finish = "stop", .completion_tokens = 3, .told = 3});
}

TEST(Answer, NamesWhatStopped) {
  EXPECT_EQ(play(with_stops({"x", "bc"}), {bytes_of("abcd")}, true).stop, "bc");
  CompletionRequest request = with_stops({});
  const int32_t z = bytes_of("z")[0];
  const Script script{bytes_of("abz"), z, sched::Finish::stop};
  EXPECT_TRUE(play(request, script, true).stop.is_null());  // as the model's own end token
  request.generation.stop_ids = {z};
  EXPECT_EQ(play(request, script, true).stop, z);
}

// The token that ended it is not shown, and counts, in usage and log-probabilities alike.
TEST(Answer, EndTokenCountsAndIsNotShown) {
  const int32_t z = bytes_of("z")[0];
  const Script script{bytes_of("zabz"), z, sched::Finish::stop};
  check(with_stops({}), script, {.text = "zab", .finish = "stop", .completion_tokens = 4});
  CompletionRequest included = with_stops({});
  included.include_stop = true;
  check(included, script, {.text = "zabz", .finish = "stop", .completion_tokens = 4});
  check(with_stops({"bz"}), script, {.text = "zab", .finish = "stop", .completion_tokens = 4});
}

TEST(Answer, NoStopStringBeginsWithinMinTokens) {
  CompletionRequest request = with_stops({"ab"});
  request.generation.min_tokens = 3;
  check(request, {bytes_of("abcabd")},
        {.text = "abc", .finish = "stop", .completion_tokens = 3, .told = 3});
  request.generation.min_tokens = 1;  // 'b' cannot complete what began before
  check(request, {bytes_of("abxaby")},
        {.text = "abx", .finish = "stop", .completion_tokens = 3, .told = 3});
}

// A character of several tokens appears once, whole; offsets count characters.
TEST(Answer, CharactersAreNeverSplit) {
  const std::string text = "a\u00e9\u20ac\U0001F600z";  // of 1, 2, 3, 4 and 1 bytes
  check(with_stops({}), {bytes_of(text)},
        {.text = text, .finish = "length", .completion_tokens = 11});
  const Whole streamed = play(with_stops({}), {bytes_of(text)}, true);
  EXPECT_EQ(streamed.offsets, OrderedJson({0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4}));
  EXPECT_EQ(streamed.parts, 5);
  // Cut inside a character.
  check(with_stops({}), {bytes_of(text.substr(0, 5))},
        {.text = "a\u00e9\uFFFD", .finish = "length", .completion_tokens = 5});
  check(with_stops({"\u20ac"}), {bytes_of(text)},
        {.text = "a\u00e9", .finish = "stop", .completion_tokens = 3, .told = 3});
  // What only the end completes can be a stop string as well.
  check(with_stops({"\uFFFD"}), {bytes_of(text.substr(0, 5))},
        {.text = "a\u00e9", .finish = "stop", .completion_tokens = 3});
}

TEST(Answer, CancelledWithoutAToken) {
  const CompletionRequest request = with_stops({"x"});
  Answer answer(tokenizer(), request);
  engine::TokenEvent event;
  event.finish = sched::Finish::cancelled;
  EXPECT_FALSE(answer.add(event).has_value());
  ASSERT_TRUE(answer.done());
  EXPECT_EQ(answer.take(0).finish_reason, "abort");
}

TEST(Answer, NoLogprobsUnlessAskedFor) {
  CompletionRequest request = with_stops({});
  request.logprobs = false;
  Answer answer(tokenizer(), request);
  engine::TokenEvent event;
  event.tokens.push_back({.token = bytes_of("a")[0]});
  answer.add(event);
  EXPECT_TRUE(answer.take(3).logprobs.is_null());
}

std::shared_ptr<const EncodedPrompt> prompt_of(const std::string& text) {
  EncodedPrompt prompt{bytes_of(text), text, {}};
  for (size_t i = 0; i < text.size(); ++i) prompt.offsets.push_back(i);
  return std::make_shared<const EncodedPrompt>(std::move(prompt));
}
engine::SampledToken scored(const std::string& one, float logprob) {
  return {.token = bytes_of(one)[0], .logprob = logprob, .top = {{bytes_of("z")[0], -0.1f}}};
}

// The prompt comes first: its text at once, its log-probabilities in the chunks of the engine.
TEST(Answer, EchoesThePrompt) {
  CompletionRequest request = with_stops({"pq"});  // in the prompt, which no stop string ends
  request.echo = request.token_ids = true;
  Answer answer(tokenizer(), request, prompt_of("pqr"));
  engine::TokenEvent event;
  event.prompt = {scored("q", -1)};
  answer.add(event);
  Choice part = answer.take(0);
  EXPECT_EQ(part.text, "pqr");
  EXPECT_EQ(part.logprobs["tokens"], OrderedJson({"p", "q"}));
  EXPECT_EQ(part.logprobs["token_logprobs"], OrderedJson({nullptr, -1.0f}));
  EXPECT_EQ(part.prompt_token_ids, bytes_of("pqr"));
  event.prompt = {scored("r", -2)};
  event.tokens = {scored("s", -3)};
  event.finish = sched::Finish::length;
  answer.add(event);
  part = answer.take(0);
  EXPECT_EQ(part.text, "s");
  EXPECT_EQ(part.logprobs["token_logprobs"], OrderedJson({-2.0f, -3.0f}));
  EXPECT_EQ(part.logprobs["text_offset"], OrderedJson({2, 3}));
  EXPECT_EQ(part.token_ids, bytes_of("s"));
  EXPECT_FALSE(part.prompt_token_ids);
}

TEST(Answer, ThePromptAloneHasNoToken) {
  CompletionRequest request = with_stops({});
  request.echo = request.echo_alone = true;
  Answer answer(tokenizer(), request, prompt_of("pq"));
  engine::TokenEvent event;
  event.prompt = {scored("q", -1)};
  event.tokens = {scored("s", -3)};
  event.output_tokens = 1;
  event.finish = sched::Finish::stop;
  answer.add(event);
  ASSERT_TRUE(answer.done());
  EXPECT_EQ(answer.usage().completion_tokens, 0);
  const Choice whole = answer.take(0);
  EXPECT_EQ(whole.text, "pq");
  EXPECT_EQ(whole.logprobs["tokens"], OrderedJson({"p", "q"}));
  EXPECT_EQ(whole.finish_reason, "length");
}

TEST(Answer, LogprobsOfThePrompt) {
  CompletionRequest request;
  request.prompt_logprobs = 0;
  Answer answer(tokenizer(), request, prompt_of("pq"));
  engine::TokenEvent event;
  event.prompt = {scored("q", -1)};
  event.finish = sched::Finish::length;
  answer.add(event);
  const OrderedJson found = answer.take(0).prompt_logprobs;
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[0].is_null());
  ASSERT_EQ(found[1].size(), 1u);
  const OrderedJson& token = found[1].begin().value();
  EXPECT_EQ(token["decoded_token"], "q");
  EXPECT_EQ(token["logprob"], -1.0f);
}

// Tool calls come out of the text, whatever tokens it comes in.
TEST(Answer, FindsToolCalls) {
  CompletionRequest request = with_stops({"STOP"});
  request.tools = ToolFormat::hermes;
  const std::string text =
      "Hm.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n"
      "</tool_call>STOP";
  for (const bool streamed : {false, true}) {
    Answer answer(tokenizer(), request);
    std::string content;
    std::vector<ToolCallDelta> calls;
    size_t parts = 0;
    std::string finish;
    const auto take = [&] {
      Choice part = answer.take(0);
      EXPECT_TRUE(!part.text.empty() || !part.calls.empty() || part.finish_reason);
      content += part.text;
      for (ToolCallDelta& call : part.calls) {
        ++parts;
        if (!call.name.empty()) {
          calls.push_back(std::move(call));
          continue;
        }
        ASSERT_EQ(static_cast<size_t>(call.index), calls.size() - 1);
        EXPECT_FALSE(call.arguments.empty());
        calls.back().arguments += call.arguments;
      }
      finish = part.finish_reason.value_or("");
    };
    engine::TokenEvent event;
    for (const int32_t id : bytes_of(text)) {
      event.tokens = {{.token = id}};
      ++event.output_tokens;
      answer.add(event);
      if (streamed && answer.has_news()) take();
      if (answer.done()) break;
    }
    if (!streamed) take();
    EXPECT_EQ(content, "Hm.");
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(parts, streamed ? 8u : 1u) << "a token is a byte of the arguments, in a stream";
    EXPECT_EQ(calls[0].name, "f");
    EXPECT_EQ(calls[0].arguments, "{\"a\": 1}");
    EXPECT_EQ(finish, "tool_calls");
  }
  // Cut short, it is content, and not the end of a call.
  Answer answer(tokenizer(), request);
  engine::TokenEvent event;
  for (const int32_t id : bytes_of("<tool_call>\n{")) event.tokens.push_back({.token = id});
  event.finish = sched::Finish::length;
  answer.add(event);
  const Choice whole = answer.take(0);
  EXPECT_EQ(whole.text, "<tool_call>\n{");
  EXPECT_EQ(whole.finish_reason, "length");
}

TEST(Answer, TheMeanLogprobIsOfTheTokensThatCount) {
  CompletionRequest request = with_stops({"c"});
  request.logprobs = false;
  Answer answer(tokenizer(), request);
  EXPECT_EQ(answer.mean_logprob(), 0);
  engine::TokenEvent event;
  event.tokens = {scored("a", -1), scored("b", -2), scored("c", -30)};
  event.output_tokens = 3;
  answer.add(event);
  EXPECT_EQ(answer.mean_logprob(), -1.5);
  EXPECT_EQ(answer.token_ids(), bytes_of("ab"));
}

// Every text over {a,b,c} of up to six tokens, with stops that overlap themselves and each other.
TEST(Answer, ExhaustivelyJoinedPartsAreTheWhole) {
  for (const auto& stops : std::vector<std::vector<std::string>>{
           {"ab"}, {"aab"}, {"aba"}, {"abab", "ba"}, {"c", "abc"}, {"aa", "aaa"}}) {
    const CompletionRequest request = with_stops(stops);
    for (int length = 1; length <= 6; ++length) {
      int texts = 1;
      for (int i = 0; i < length; ++i) texts *= 3;
      for (int code = 0; code < texts; ++code) {
        std::string text;
        for (int i = 0, rest = code; i < length; ++i, rest /= 3) text += "abc"[rest % 3];
        const Whole whole = play(request, {bytes_of(text)}, false);
        const Whole streamed = play(request, {bytes_of(text)}, true);
        ASSERT_TRUE(whole == streamed) << text;
        ASSERT_EQ(static_cast<int64_t>(whole.tokens.size()), whole.completion_tokens) << text;
        // Tokens are bytes here, so the text tells how many are kept.
        ASSERT_EQ(whole.completion_tokens, static_cast<int64_t>(whole.text.size())) << text;
        ASSERT_TRUE(text.starts_with(whole.text)) << text;
        for (const std::string& stop : stops) ASSERT_EQ(whole.text.find(stop), std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace octet::server
