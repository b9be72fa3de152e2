#include "eval/text_windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"

namespace octet::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> counting(int count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 100);
  return ids;
}

TEST(TextWindows, EachWindowBeginsWithBosAndScoresAllItsText) {
  const auto pieces = cut(counting(8), 1, Convention::windows, 4, 100);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_THAT(pieces[0].tokens, ElementsAre(1, 100, 101, 102));
  EXPECT_THAT(pieces[1].tokens, ElementsAre(1, 103, 104, 105));
  EXPECT_THAT(pieces[2].tokens, ElementsAre(1, 106, 107));
  EXPECT_EQ(scored_tokens(pieces), 8);
  EXPECT_EQ(longest(pieces), 4);
}

TEST(TextWindows, WithoutBosTheFirstTokenOfAWindowIsContext) {
  const auto pieces = cut(counting(9), std::nullopt, Convention::chunks, 4, 100);
  ASSERT_EQ(pieces.size(), 2u);  // the last window has one token: nothing to score
  EXPECT_THAT(pieces[1].tokens, ElementsAre(104, 105, 106, 107));
  EXPECT_EQ(scored_tokens(pieces), 6);
}

TEST(TextWindows, OnePassTakesAll) {
  const auto pieces = cut(counting(5), 1, Convention::single, 0, 6);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].tokens.size(), 6u);
  EXPECT_EQ(scored_tokens(pieces), 5);
}

TEST(TextWindows, HalvesAreWholeWindowsWhoseSecondHalfIsScored) {
  auto pieces = cut(counting(11), std::nullopt, Convention::halves, 4, 100);
  ASSERT_EQ(pieces.size(), 2u);  // three tokens are no window
  EXPECT_THAT(pieces[1].tokens, ElementsAre(104, 105, 106, 107));
  EXPECT_EQ(pieces[0].context, 3);
  EXPECT_EQ(scored_tokens(pieces), 2);
  pieces = cut(counting(11), 1, Convention::halves, 4, 100);
  ASSERT_EQ(pieces.size(), 3u);  // BOS before the text makes them twelve
  EXPECT_THAT(pieces[0].tokens, ElementsAre(1, 100, 101, 102));
  EXPECT_THAT(pieces[1].tokens, ElementsAre(1, 104, 105, 106));  // in the place of 103
  // 255 of 512, as llama.cpp counts.
  EXPECT_EQ(cut(counting(512), std::nullopt, Convention::halves, 512, 512)[0].scored(), 255);
}

TEST(TextWindows, ErrorsNameTheFlag) {
  const auto where = [](auto run) -> std::string {
    try {
      run();
    } catch (const Error& error) {
      return error.parts().where;
    }
    return "no error";
  };
  EXPECT_EQ(where([] { cut({}, 1, Convention::windows, 4, 100); }), "--text");
  EXPECT_EQ(where([] { cut(counting(1), std::nullopt, Convention::single, 0, 9); }), "--text");
  EXPECT_EQ(where([] { cut(counting(9), 1, Convention::single, 0, 9); }), "--text");
  EXPECT_EQ(where([] { cut(counting(50), 1, Convention::windows, 40, 39); }), "--window");
  EXPECT_EQ(where([] { cut(counting(3), 1, Convention::halves, 5, 100); }), "--text");
  EXPECT_EQ(where([] { parse_convention("window"); }), "--convention");
}

TEST(TextWindows, NamesParseBack) {
  for (const auto convention :
       {Convention::windows, Convention::single, Convention::chunks, Convention::halves}) {
    EXPECT_EQ(parse_convention(name_of(convention)), convention);
  }
  EXPECT_THAT(describe(Convention::chunks, 2048, true), HasSubstr("2047 tokens"));
}

}  // namespace
}  // namespace octet::eval
