// MMLU, GSM8K and HumanEval: the prompts as lm-eval writes them, and how answers are judged.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>

#include "eval/gsm8k.h"
#include "eval/humaneval.h"
#include "eval/mmlu.h"
#include "unit/base/error_of.h"
#include "unit/base/temp_dir.h"

namespace octet::eval {
namespace {

using test::error_of;
using test::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kRows =
    R"({"subject":"high_school_art","question":" What? ","choices":["a","b","c","d"],"answer":1}
{"subject":"high_school_art","question":"Which?","choices":["e","f","g","h"],"answer":"C"}
{"subject":"high_school_art","question":"Who?","choices":["i","j","k","l"],"answer":0}
)";

TEST(Mmlu, ThePromptIsThatOfLmEval) {
  const TempDir dir;
  MmluSet set = read_mmlu(dir.file("rows.jsonl", kRows));
  const MmluSet examples = split_examples(set, 2, "rows.jsonl");
  ASSERT_EQ(set.questions.size(), 1u);
  EXPECT_EQ(mmlu_prompt(set.questions[0], examples, 2),
            "The following are multiple choice questions (with answers) about high school art.\n\n"
            "What?\nA. a\nB. b\nC. c\nD. d\nAnswer: B\n\n"
            "Which?\nA. e\nB. f\nC. g\nD. h\nAnswer: C\n\n"
            "Who?\nA. i\nB. j\nC. k\nD. l\nAnswer:");
  EXPECT_EQ(mmlu_continuation(3), " D");
}

TEST(Csv, OneQuoteTooManyCostsItsOwnRow) {
  const auto lines_of = [](std::string_view text) {
    std::vector<std::string> lines;
    for (const CsvRecord& record : parse_csv(text)) {
      std::string line = fmt::format("{}:", record.line);
      for (const std::string& field : record.fields) line += "[" + field + "]";
      lines.push_back(line + (record.fault.empty() ? "" : "!"));
    }
    return lines;
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines_of("a,b\r\n\"c, d\",\"e\nf\"\n\ng,5\" pipe,\"h \"\"i\"\"\"\n"),
            (Lines{"1:[a][b]", "2:[c, d][e\nf]", "5:[g][5\" pipe][h \"i\"]"}));
  // Never closed; closed by a quote of a later row; text behind a quote.
  EXPECT_EQ(lines_of("a,\"b\nc,d\ne,f"), (Lines{"1:!", "2:[c][d]", "3:[e][f]"}));
  EXPECT_EQ(lines_of("a,\"b\nc,\"d, e\"\nf,g\n"), (Lines{"1:!", "2:[c][d, e]", "3:[f][g]"}));
  EXPECT_EQ(lines_of("\"a\"b,c\nd,e"), (Lines{"1:!", "2:[d][e]"}));
  EXPECT_EQ(lines_of("\""), (Lines{"1:!"}));
  EXPECT_EQ(lines_of("a,\n"), (Lines{"1:[a][]"}));
  EXPECT_EQ(lines_of(""), Lines{});
}

TEST(Mmlu, ThePublishedCsvIsTheSame) {
  const TempDir dir;
  dir.file("art_test.csv", "\"What, \"\"now\"\"?\nYes\",a,b,c,d,B\nWho?,1,2,3,4,D\n");
  dir.file("zoo_test.csv", "Which?,x,y,z,w,A\n");
  const MmluSet set = read_mmlu(dir.path());
  ASSERT_EQ(set.questions.size(), 3u);
  EXPECT_EQ(set.questions[0].subject, "art");
  EXPECT_EQ(set.questions[0].question, "What, \"now\"?\nYes");
  EXPECT_THAT(set.questions[0].choices, ElementsAre("a", "b", "c", "d"));
  EXPECT_EQ(set.questions[1].answer, 3);
  EXPECT_EQ(set.questions[2].subject, "zoo");
  EXPECT_EQ(set.questions[2].number, 0);
}

TEST(Mmlu, BrokenRowsAreCountedAndNamed) {
  const TempDir dir;
  const MmluSet set = read_mmlu(dir.file(
      "rows.jsonl", std::string(kRows) +
                        "{\"subject\":\"a\",\"question\":\"q\",\"choices\":[\"1\"],\"answer\":0}\n"
                        "{\"subject\":\"a\",\"question\":\"q\"}\nnot JSON\n[]\n\n"));
  EXPECT_EQ(set.rows.used, 3);
  EXPECT_EQ(set.rows.broken, 4);
  EXPECT_THAT(set.rows.faults, ElementsAre(HasSubstr("rows.jsonl:4"), HasSubstr("choices"),
                                           HasSubstr("rows.jsonl:6"), HasSubstr("rows.jsonl:7")));
}

TEST(Mmlu, NothingToAskIsAnError) {
  const TempDir dir;
  EXPECT_THAT(error_of([&] { read_mmlu(dir.file("a.jsonl", "")); }), HasSubstr("no row"));
  EXPECT_THAT(error_of([&] { read_mmlu(dir.file("b.jsonl", "{}\n{\n")); }),
              AllOf(HasSubstr("2 broken rows"), HasSubstr("subject")));
  EXPECT_THAT(error_of([&] { read_mmlu(dir / "c.jsonl"); }), HasSubstr("c.jsonl"));
  EXPECT_THAT(error_of([&] { read_mmlu(dir.path()); }), HasSubstr("no CSV files"));
  MmluSet set = read_mmlu(dir.file("rows.jsonl", kRows));
  EXPECT_THAT(error_of([&] { split_examples(set, 3, "rows.jsonl"); }),
              HasSubstr("high_school_art"));
}

TEST(Gsm8k, ThePromptIsThatOfLmEval) {
  const std::vector<Gsm8kProblem> examples = {{"1+1?", "Add.\n#### 2"}};
  EXPECT_EQ(gsm8k_prompt({"2+2?", "#### 4"}, examples),
            "Question: 1+1?\nAnswer: Add.\n#### 2\n\nQuestion: 2+2?\nAnswer:");
}

TEST(Gsm8k, NumbersAreFoundAsItsExpressionsFindThem) {
  // Strict: #### (\-?[0-9\.\,]+), the first.
  EXPECT_EQ(strict_match("so\n#### 1,234.\n#### 5"), "1,234.");
  EXPECT_EQ(strict_match("#### -7 "), "-7");
  EXPECT_EQ(strict_match("#### $7 and #### 8"), "8");
  EXPECT_EQ(strict_match("##### 7"), "7");
  EXPECT_EQ(strict_match("####7"), "[invalid]");
  EXPECT_EQ(strict_match("#### "), "[invalid]");
  EXPECT_EQ(strict_match(""), "[invalid]");
  // Flexible: (-?[$0-9.,]{2,})|(-?[0-9]+), the last.
  EXPECT_EQ(flexible_extract("has 3 and 12 left."), "12");
  EXPECT_EQ(flexible_extract("it is -5"), "-5");
  EXPECT_EQ(flexible_extract("costs $1,200.50 now"), "$1,200.50");
  EXPECT_EQ(flexible_extract("costs $12."), "$12.");
  EXPECT_EQ(flexible_extract("3 eggs..."), "...");
  EXPECT_EQ(flexible_extract("a. b, -"), "[invalid]");
  EXPECT_EQ(flexible_extract(""), "[invalid]");
}

TEST(Gsm8k, WhatDoesNotCount) {
  EXPECT_TRUE(exact_match("$1,200", "reasons\n#### 1200"));
  EXPECT_TRUE(exact_match("18.", "x #### 18"));
  EXPECT_FALSE(exact_match("18.0", "#### 18"));
  EXPECT_FALSE(exact_match("[invalid]", "#### 18"));
}

TEST(HumanEval, AGzippedFileIsUnpacked) {
  const TempDir dir;
  const std::string path = (dir / "h.jsonl.gz").string();
  gzFile file = gzopen(path.c_str(), "wb");
  gzputs(
      file,
      R"({"task_id":"T/0","prompt":"def f():\n","test":"def check(f): pass","entry_point":"f"})");
  gzclose(file);
  const HumanEvalSet set = read_humaneval(path);
  ASSERT_EQ(set.tasks.size(), 1u);
  const JudgedProgram program = humaneval_program(set.tasks[0], "    return 1");
  EXPECT_EQ(program.known, "def f():\n");
  EXPECT_EQ(program.answer, "def f():\n    return 1\n");
  EXPECT_EQ(program.entry, "f");
  EXPECT_EQ(program.test, "def check(f): pass\ncheck(f)\n");
  const std::string whole = test::slurp(path);
  dir.file("cut.gz", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(error_of([&] { read_humaneval(dir / "cut.gz"); }), HasSubstr("damaged"));
}

// 1 - C(n - c, k) / C(n, k), with the binomials themselves.
double pass_at_k_by_binomials(int n, int c, int k) {
  const auto choose = [](int a, int b) {
    double value = 1;
    for (int i = 0; i < b; ++i) value = value * (a - i) / (i + 1);
    return value;
  };
  return 1 - choose(n - c, k) / choose(n, k);
}

TEST(HumanEval, PassAtKIsTheUnbiasedEstimate) {
  for (int n = 1; n <= 12; ++n) {
    for (int c = 0; c <= n; ++c) {
      for (int k = 1; k <= n; ++k) {
        EXPECT_NEAR(pass_at_k(n, c, k), pass_at_k_by_binomials(n, c, k), 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace octet::eval
