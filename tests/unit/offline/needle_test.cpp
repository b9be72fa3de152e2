#include "offline/needle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/mapped_file.h"

namespace octet::offline {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

const std::string kModel = std::string(OCTET_SOURCE_DIR) + "/models/octet-demo";

class Needle : public ::testing::Test {
 protected:
  text::Tokenizer tokenizer_ = text::Tokenizer::load(kModel);
  std::string haystack_ = read_text(kModel + "/eval_code.txt");
};

TEST_F(Needle, AFactSomewhereAndTheQuestionAtTheEnd) {
  const auto cases = needle_cases(tokenizer_, haystack_, 1024, 5, 7);
  ASSERT_EQ(cases.size(), 5u);
  size_t before = 0;
  for (const NeedleCase& one : cases) {
    EXPECT_LE(one.prompt.size(), 1024u);
    EXPECT_GE(one.prompt.size(), 1000u);
    EXPECT_EQ(one.prompt[0], tokenizer_.bos_id());
    const std::string text = tokenizer_.decode(one.prompt, true);
    const size_t fact = text.find("The secret code of ");
    ASSERT_NE(fact, text.npos);
    EXPECT_THAT(text.substr(fact, 60), HasSubstr(" is " + one.answer + ".\n"));
    EXPECT_THAT(text, EndsWith(" is"));
    EXPECT_THAT(text, HasSubstr("\n\nQuestion: What is the secret code of "));
    EXPECT_GE(fact, before);
    before = fact;
  }
  EXPECT_EQ(cases.front().depth, 0.0);
  EXPECT_EQ(cases.back().depth, 1.0);
}

TEST_F(Needle, TheSeedDecidesEverything) {
  const auto a = needle_cases(tokenizer_, haystack_, 512, 3, 1);
  const auto b = needle_cases(tokenizer_, haystack_, 512, 3, 1);
  const auto c = needle_cases(tokenizer_, haystack_, 512, 3, 2);
  EXPECT_EQ(a[2].prompt, b[2].prompt);
  EXPECT_NE(a[2].answer, c[2].answer);
}

TEST_F(Needle, RefusesWhatHasNoRoom) {
  EXPECT_THROW(needle_cases(tokenizer_, haystack_, 40, 1, 1), Error);
  EXPECT_THROW(needle_cases(tokenizer_, "", 1024, 1, 1), Error);
}

}  // namespace
}  // namespace octet::offline
