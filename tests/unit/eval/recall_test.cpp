#include "eval/recall.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/mapped_file.h"
#include "unit/base/error_of.h"

namespace octet::eval {
namespace {

using test::error_of;
using ::testing::EndsWith;
using ::testing::HasSubstr;

const std::string kModel = std::string(OCTET_SOURCE_DIR) + "/models/octet-demo";

class Recall : public ::testing::Test {
 protected:
  std::vector<RecallCase> cases(RecallKind kind, int64_t length, int64_t count, uint64_t seed = 7) {
    return recall_cases(kind, tokenizer_, haystack_, length, count, seed);
  }
  text::Tokenizer tokenizer_ = text::Tokenizer::load(kModel);
  std::string haystack_ = read_text(kModel + "/eval_code.txt");
};

TEST_F(Recall, AFactSomewhereAndTheQuestionAtTheEnd) {
  const auto all = cases(RecallKind::needle, 1024, 5);
  ASSERT_EQ(all.size(), 5u);
  size_t before = 0;
  for (const RecallCase& one : all) {
    EXPECT_LE(one.prompt.size(), 1024u);
    EXPECT_GE(one.prompt.size(), 1000u);
    EXPECT_EQ(one.prompt[0], tokenizer_.bos_id());
    const std::string text = tokenizer_.decode(one.prompt, true);
    const size_t fact = text.find("The secret code of ");
    ASSERT_NE(fact, text.npos);
    EXPECT_THAT(text.substr(fact, 60), HasSubstr(" is " + one.answers[0] + ".\n"));
    EXPECT_THAT(text, EndsWith(" is"));
    EXPECT_THAT(text, HasSubstr("\n\nQuestion: What is the secret code of "));
    EXPECT_GE(fact, before);
    before = fact;
  }
  EXPECT_EQ(all.front().depth, 0.0);
  EXPECT_EQ(all.back().depth, 1.0);
}

TEST_F(Recall, EveryKindHoldsItsAnswersOnceAndFits) {
  for (const RecallKind kind : kRecallKinds) {
    for (const RecallCase& one : cases(kind, 900, 4)) {
      const std::string text = tokenizer_.decode(one.prompt, true);
      EXPECT_LE(one.prompt.size() + static_cast<size_t>(one.max_tokens), 900u) << name_of(kind);
      EXPECT_GE(one.prompt.size(), 700u) << name_of(kind);
      for (const std::string& answer : one.answers) {
        const size_t at = text.find(answer);
        ASSERT_NE(at, text.npos) << name_of(kind);
        EXPECT_EQ(text.find(answer, at + 1), text.npos) << name_of(kind);
      }
      EXPECT_EQ(one.answers.size(), kind == RecallKind::multi_value ? 4u : 1u);
    }
  }
}

TEST_F(Recall, TheDepthIsThatOfTheFact) {
  for (const RecallKind kind : {RecallKind::code, RecallKind::dialogue, RecallKind::multi_key}) {
    const auto all = cases(kind, 1500, 3);
    std::vector<double> places;
    for (const RecallCase& one : all) {
      const std::string text = tokenizer_.decode(one.prompt, true);
      places.push_back(static_cast<double>(text.find(one.answers[0])) /
                       static_cast<double>(text.size()));
    }
    EXPECT_LT(places[0], 0.15) << name_of(kind);
    EXPECT_NEAR(places[1], 0.5, 0.15) << name_of(kind);
    EXPECT_GT(places[2], 0.8) << name_of(kind);
  }
}

TEST_F(Recall, TheSeedDecidesEverything) {
  for (const RecallKind kind : kRecallKinds) {
    const auto a = cases(kind, 600, 3, 1), b = cases(kind, 600, 3, 1), c = cases(kind, 600, 3, 2);
    EXPECT_EQ(a[2].prompt, b[2].prompt);
    EXPECT_NE(a[2].answers, c[2].answers);
  }
}

TEST_F(Recall, RefusesWhatHasNoRoom) {
  for (const RecallKind kind : kRecallKinds) {
    EXPECT_THAT(error_of([&] { cases(kind, 40, 1); }), HasSubstr("--lengths"));
  }
  EXPECT_THROW(recall_cases(RecallKind::needle, tokenizer_, "", 1024, 1, 1), Error);
}

TEST_F(Recall, AnAnswerIsTheNumberAndNoOther) {
  const RecallCase one{.answers = {"12345"}};
  EXPECT_EQ(recall_score(one, " 12345.\n"), 1);
  EXPECT_EQ(recall_score(one, " 123456"), 0);
  EXPECT_EQ(recall_score(one, " not 12345"), 0);
  EXPECT_EQ(recall_score(one, ""), 0);
  const RecallCase four{.answers = {"11111", "22222", "33333", "44444"}};
  EXPECT_EQ(recall_score(four, " 22222, 11111 and 133333."), 0.5);
  EXPECT_EQ(recall_score(four, " 44444, 33333, 22222, 11111"), 1);
}

}  // namespace
}  // namespace octet::eval
