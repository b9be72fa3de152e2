#include "text/stop_strings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "unit/base/error_of.h"

namespace octet::text {
namespace {

using test::error_of;
using ::testing::HasSubstr;

struct Outcome {
  std::vector<std::string> deltas;
  std::string text;
  StopMatcher::Result last;
};

Outcome run(StopMatcher matcher, const std::vector<std::string>& tokens) {
  Outcome outcome;
  for (const std::string& token : tokens) {
    outcome.last = matcher.push(token);
    outcome.deltas.push_back(outcome.last.text);
    outcome.text += outcome.last.text;
    if (outcome.last.stopped) return outcome;
  }
  outcome.last = matcher.flush();
  outcome.text += outcome.last.text;
  return outcome;
}

TEST(StopMatcher, HoldsBackAStopThatComesInParts) {
  // vLLM #3574: DEF, G and HI had been sent before DEFGHIJ was complete.
  const Outcome o = run(StopMatcher({"DEFGHIJ"}), {"ABC", "DEF", "G", "HI", "JKL"});
  EXPECT_EQ(o.deltas, (std::vector<std::string>{"ABC", "", "", "", ""}));
  EXPECT_TRUE(o.last.stopped);
  EXPECT_EQ(o.last.stop, 0);
  EXPECT_EQ(o.last.text_bytes, 3u);
  EXPECT_EQ(o.last.kept_tokens, 1);
}

TEST(StopMatcher, CutsInsideAToken) {
  // vLLM #3572: "DE" in the token "DEF" was missed.
  const Outcome o = run(StopMatcher({"DE"}), {"ABC", "xDEF", "G"});
  EXPECT_EQ(o.text, "ABCx");
  EXPECT_TRUE(o.last.stopped);
  EXPECT_EQ(o.last.text_bytes, 4u);
  EXPECT_EQ(o.last.kept_tokens, 2);  // half of the second token is part of the answer
}

TEST(StopMatcher, PassesTextOnAtOnceWhereNothingMatches) {
  // vLLM #13087: holding back a fixed length left the first chunks empty.
  const Outcome o = run(StopMatcher({"STOP"}), {"one ", "two S", "ix ", "ST", "AR", "ST"});
  EXPECT_EQ(o.deltas, (std::vector<std::string>{"one ", "two ", "Six ", "", "STAR", ""}));
  EXPECT_EQ(o.text, "one two Six STARST");
  EXPECT_FALSE(o.last.stopped);
}

TEST(StopMatcher, HoldsOnlyTheLongestSuffixThatCanStillMatch) {
  StopMatcher matcher({"aab", "abx"});
  EXPECT_EQ(matcher.push("aaa").text, "a");
  EXPECT_EQ(matcher.held_bytes(), 2u);
  const auto result = matcher.push("b");
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.stop, 0);
  EXPECT_EQ(result.text_bytes, 1u);
}

TEST(StopMatcher, FirstCompleteWinsAndThenTheLongest) {
  EXPECT_EQ(run(StopMatcher({"abcd", "bc"}), {"abcd"}).last.stop, 1);
  EXPECT_EQ(run(StopMatcher({"cd", "bcd", "d"}), {"abcd"}).last.stop, 1);
  EXPECT_EQ(run(StopMatcher({"cd", "bcd", "d"}), {"abcd"}).text, "a");
}

TEST(StopMatcher, CanIncludeTheStop) {
  const Outcome o = run(StopMatcher({"\n\n"}, true), {"a", "\n", "\nb", "c"});
  EXPECT_EQ(o.text, "a\n\n");
  EXPECT_EQ(o.last.text_bytes, 3u);
  EXPECT_EQ(o.last.kept_tokens, 3);
}

TEST(StopMatcher, CountsTokensWithoutText) {
  // Special tokens that are skipped, and halves of characters, have no text of their own.
  EXPECT_EQ(run(StopMatcher({"S"}), {"", "a", "", "", "S"}).last.kept_tokens, 2);
  EXPECT_EQ(run(StopMatcher({"S"}), {"", "", "é", "S"}).last.kept_tokens, 3);
  EXPECT_EQ(run(StopMatcher({"S"}), {"", "S"}).last.kept_tokens, 0);
  EXPECT_EQ(run(StopMatcher({"aS"}), {"x", "a", "", "S"}).last.kept_tokens, 1);
}

TEST(StopMatcher, ALateEndCanCompleteAStop) {
  StopMatcher matcher({"x\uFFFD"});
  EXPECT_EQ(matcher.push("abx").text, "ab");
  const auto result = matcher.flush("\uFFFD");
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.text_bytes, 2u);
  EXPECT_EQ(result.kept_tokens, 1);
}

TEST(StopMatcher, SaysNothingAfterTheStop) {
  StopMatcher matcher({"x"});
  matcher.push("ax");
  EXPECT_EQ(matcher.push("more").text, "");
  EXPECT_TRUE(matcher.push("more").stopped);
  EXPECT_TRUE(matcher.flush("more").stopped);
  EXPECT_EQ(matcher.flush().text, "");
}

TEST(StopMatcher, WithoutStopsIsTransparent) {
  const Outcome o = run(StopMatcher({}), {"a", "", "b"});
  EXPECT_EQ(o.deltas, (std::vector<std::string>{"a", "", "b"}));
}

TEST(StopMatcher, RefusesEmptyAndInvalidStops) {
  EXPECT_THAT(error_of([] { StopMatcher({"a", ""}); }), HasSubstr("stop[1]"));
  EXPECT_THAT(error_of([] { StopMatcher({"\xff"}); }), HasSubstr("UTF-8"));
}

TEST(StopMatcher, DependsOnTheTextAndNotOnItsTokens) {
  std::mt19937 rng(3);
  const auto word = [&](int most) {
    std::string s(1 + rng() % most, 'a');
    for (char& c : s) c = static_cast<char>('a' + rng() % 2);
    return s;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (unsigned i = 0; i < 1 + rng() % 3; ++i) stops.push_back(word(6) + (rng() % 3 ? "c" : ""));
    std::string text;
    std::vector<std::string> tokens;
    for (int i = 0; i < 8; ++i) {
      tokens.push_back(rng() % 5 ? word(5) + (rng() % 4 ? "" : "c") : "");
      text += tokens.back();
    }
    // By definition: the least end, and there the least begin.
    size_t end = std::string::npos, begin = std::string::npos;
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      const size_t stop_end = at + stop.size();
      if (end == std::string::npos || stop_end < end || (stop_end == end && at < begin)) {
        end = stop_end;
        begin = at;
      }
    }
    const bool include = rng() % 2;
    const Outcome o = run(StopMatcher(stops, include), tokens);
    ASSERT_EQ(o.last.stopped, end != std::string::npos);
    if (!o.last.stopped) {
      ASSERT_EQ(o.text, text);
      continue;
    }
    const size_t cut = include ? end : begin;
    ASSERT_EQ(o.text, text.substr(0, cut));
    ASSERT_EQ(o.last.text_bytes, cut);
    int32_t kept = 0;
    for (size_t sum = 0; sum < cut; ++kept) sum += tokens[kept].size();
    ASSERT_EQ(o.last.kept_tokens, kept);
  }
}

}  // namespace
}  // namespace octet::text
