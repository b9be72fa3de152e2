#include "text/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/utf8.h"
#include "unit/base/error_of.h"

namespace octet::text {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

bool matches(const std::string& pattern, std::string_view text) {
  RegexScratch scratch;
  const auto match = Regex::compile(pattern, "test").search(text, 0, scratch);
  return match && match->begin == 0 && match->end == text.size();
}

TEST(Regex, FindsTheLeftmostMatchFromAPlace) {
  const Regex regex = Regex::compile("b+", "test");
  RegexScratch scratch;
  const auto match = regex.search("abbcbb", 3, scratch);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->begin, 4u);
  EXPECT_EQ(match->end, 6u);
  EXPECT_FALSE(regex.search("abbc", 3, scratch));
  EXPECT_FALSE(regex.search("", 0, scratch));
}

TEST(Regex, WhiteSpaceIsTheUnicodeProperty) {
  int count = 0;
  const Regex space = Regex::compile("\\s", "test");
  const Regex not_space = Regex::compile("[^\\S]", "test");
  RegexScratch scratch;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(c, text);
    const bool is = space.search(text, 0, scratch).has_value();
    count += is;
    ASSERT_EQ(is, not_space.search(text, 0, scratch).has_value()) << static_cast<uint32_t>(c);
  }
  EXPECT_EQ(count, 25);
  EXPECT_FALSE(matches("\\s", "\u180e"));
}

TEST(Regex, ReadsOnigurumasDialect) {
  EXPECT_TRUE(matches("\\h\\h", "aF"));
  EXPECT_FALSE(matches("\\h", " "));
  EXPECT_TRUE(matches("[\\h]", "9"));
  EXPECT_TRUE(matches("\\H", "g"));
  EXPECT_TRUE(matches("\\w", "\u0301"));   // a mark
  EXPECT_FALSE(matches("\\w", "\u09F4"));  // a number that is no digit
  EXPECT_TRUE(matches("\\W", "-"));
  EXPECT_TRUE(matches("(?m:.)", "\n"));
  EXPECT_FALSE(matches(".", "\n"));
  EXPECT_TRUE(matches("a$\n^b", "a\nb"));
  EXPECT_TRUE(matches("(?i:'s)", "'\u017F"));
  EXPECT_TRUE(matches("[[:alpha:]]", "a"));
  EXPECT_TRUE(matches("[]a]", "]"));
  EXPECT_TRUE(matches("[^]a]", "b"));
  EXPECT_TRUE(matches("\\[\\\\[\\]]", "[\\]"));
  // "\b" by the same word characters as "\w".
  EXPECT_TRUE(matches("a\\b-\\Bx?", "a-"));
}

TEST(Regex, KnowsCharactersYoungerThanUnicode14) {
  EXPECT_TRUE(matches("\\p{S}", "\U0001FA77"));
  EXPECT_TRUE(matches("[\\p{L}]", "\U0002EBF0"));
  EXPECT_TRUE(matches("\\p{Lo}", "\U0002EBF0"));
  EXPECT_FALSE(matches("\\P{L}", "\U0002EBF0"));
  EXPECT_FALSE(matches("[^\\p{L}]", "\U0002EBF0"));
  EXPECT_FALSE(matches("\\p{Lu}", "\U0002EBF0"));
  EXPECT_TRUE(matches("\\d", "\U0001E5F1"));
}

TEST(Regex, RefusesWhatPcreWouldReadInAnotherWay) {
  const auto error = [](const char* pattern) {
    return error_of([&] { Regex::compile(pattern, "tokenizer.json, $.pattern"); });
  };
  EXPECT_THAT(error("[a[bc]]"), AllOf(HasSubstr("class inside"), HasSubstr("$.pattern")));
  EXPECT_THAT(error("[a&&b]"), HasSubstr("intersection"));
  EXPECT_THAT(error("[\\W]"), HasSubstr("\\W"));
  EXPECT_THAT(error("(a"), AllOf(HasSubstr("invalid regular expression"), HasSubstr("(a")));
  EXPECT_THAT(error("\\C"), HasSubstr("invalid"));
  EXPECT_THAT(error(std::string(70000, 'a').c_str()), HasSubstr("too long"));
  EXPECT_EQ(error("\\"), error_of([] { Regex::compile("\\", "tokenizer.json, $.pattern"); }));
}

TEST(Regex, GivesUpWithAnErrorOnExponentialPatterns) {
  const Regex regex = Regex::compile("(?:(?:a|a)*)*[bc]", "here");
  RegexScratch scratch;
  EXPECT_THAT(error_of([&] { regex.search(std::string(200, 'a'), 0, scratch); }),
              AllOf(HasSubstr("gave up"), HasSubstr("here")));
  // The scratch serves on.
  EXPECT_TRUE(regex.search("ab", 0, scratch));
}

TEST(Regex, GrowsItsStack) {
  // Captures inside a repeat need a frame for each turn.
  const Regex regex = Regex::compile("(?:(a)|(b))*c", "here");
  RegexScratch scratch;
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "ab";
  const auto match = regex.search(text + "c", 0, scratch);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->end, text.size() + 1);
}

TEST(Regex, LiteralsAreTakenAsTheyAre) {
  const Regex regex = Regex::literal("a.\\s", "test");
  RegexScratch scratch;
  EXPECT_FALSE(regex.search("abss", 0, scratch));
  EXPECT_EQ(regex.search("xa.\\s", 0, scratch)->begin, 1u);
}

}  // namespace
}  // namespace octet::text
