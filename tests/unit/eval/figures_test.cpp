// What the figures of a report are worth: intervals, repetition, agreement, kept answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "eval/by_position.h"
#include "eval/dataset.h"
#include "eval/item_log.h"
#include "eval/paired.h"
#include "eval/prompts.h"
#include "eval/repetition.h"
#include "eval/task_result.h"
#include "unit/base/error_of.h"
#include "unit/base/temp_dir.h"

namespace octet::eval {
namespace {

using test::error_of;
using test::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Paired, McNemarIsTheBinomialTest) {
  EXPECT_DOUBLE_EQ(mcnemar(0, 0), 1);
  EXPECT_NEAR(mcnemar(0, 5), 2 / 32.0, 1e-12);
  EXPECT_NEAR(mcnemar(1, 3), 2 * 5 / 16.0, 1e-12);
  EXPECT_NEAR(mcnemar(3, 1), mcnemar(1, 3), 1e-15);
  EXPECT_DOUBLE_EQ(mcnemar(4, 4), 1);
}

TEST(Paired, WilsonStaysBetweenZeroAndOne) {
  // 8 of 10: 0.490 to 0.943.
  EXPECT_NEAR(wilson(0.8, 10).low, 0.4902, 1e-4);
  EXPECT_NEAR(wilson(0.8, 10).high, 0.9433, 1e-4);
  EXPECT_NEAR(wilson(0, 5).low, 0, 1e-15);
  EXPECT_NEAR(wilson(1, 5).high, 1, 1e-15);
}

TEST(Paired, TheBootstrapCoversTheNormalInterval) {
  // 400 questions, of which 40 are lost and 20 won: mean -0.05, standard error 0.0191.
  std::vector<double> ours(400, 1), theirs(400, 1);
  for (size_t i = 0; i < 40; ++i) ours[i] = 0;
  for (size_t i = 40; i < 60; ++i) theirs[i] = 0;
  const PairedDifference d = paired_difference(ours, theirs);
  EXPECT_NEAR(d.mean, -0.05, 1e-12);
  EXPECT_EQ(d.lost, 40);
  EXPECT_EQ(d.won, 20);
  EXPECT_NEAR(d.interval.low, -0.05 - 1.96 * 0.0191, 0.004);
  EXPECT_NEAR(d.interval.high, -0.05 + 1.96 * 0.0191, 0.004);
  EXPECT_EQ(paired_difference(ours, theirs).interval.low, d.interval.low) << "the seed decides";
  EXPECT_EQ(paired_difference(ours, ours).interval.high, 0);
}

TEST(Repetition, CountsWhatComesTwice) {
  const std::vector<int32_t> all = {1, 2, 3, 4}, twice = {1, 2, 1, 2, 1};
  EXPECT_EQ(distinct_n(all, 2), 1);
  EXPECT_EQ(distinct_n(twice, 2), 0.5);
  EXPECT_EQ(distinct_n(std::vector<int32_t>{1}, 2), 0);
  const std::vector<std::vector<int32_t>> answers = {all, all};
  EXPECT_EQ(distinct_n(std::span(answers), 2), 0.5);
}

TEST(Repetition, ALoopIsAtTheEndAndLong) {
  std::vector<int32_t> loop = {9, 8, 7, 6, 5};
  for (int i = 0; i < 6; ++i) loop.insert(loop.end(), {1, 2, 3});
  EXPECT_TRUE(ends_in_loop(loop));
  loop.push_back(4);
  EXPECT_FALSE(ends_in_loop(loop)) << "it came out of it";
  EXPECT_TRUE(ends_in_loop(std::vector<int32_t>(16, 3)));
  EXPECT_FALSE(ends_in_loop(std::vector<int32_t>(15, 3)));
  std::vector<int32_t> counting(500);
  std::iota(counting.begin(), counting.end(), 0);
  EXPECT_FALSE(ends_in_loop(counting));
}

TEST(Prompts, ReadsWhatIsRight) {
  const TempDir dir;
  const UserPrompts read =
      read_prompts(dir.file("p.jsonl",
                            "{\"prompt\":\"a\"}\n{\"prompt\":\"b\",\"id\":7}\n{\"prompt\":\"\"}\n"
                            "{\"text\":\"c\"}\n{\"prompt\":\"d\",\"id\":\"7\"}\n{\"prompt\":3}\n"));
  ASSERT_EQ(read.prompts.size(), 2u);
  EXPECT_EQ(read.prompts[0].id, "1");
  EXPECT_EQ(read.prompts[1].id, "7");
  EXPECT_EQ(read.rows.broken, 4);
  EXPECT_EQ(common_beginning({1, 2, 3, 4}, {1, 2, 5}), 0.5);
  EXPECT_EQ(common_beginning({}, {}), 1);
  EXPECT_EQ(common_beginning({1}, {}), 0);
}

TEST(Dataset, AChoiceIsSeededAndAscending) {
  EXPECT_THAT(choose(4, 0, 1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(choose(3, 9, 1), ElementsAre(0, 1, 2));
  const std::vector<size_t> some = choose(1000, 10, 1);
  EXPECT_EQ(some.size(), 10u);
  EXPECT_TRUE(std::ranges::is_sorted(some));
  EXPECT_EQ(std::ranges::adjacent_find(some), some.end());
  EXPECT_EQ(some, choose(1000, 10, 1));
  EXPECT_NE(some, choose(1000, 10, 2));
}

TEST(ItemLog, WhatWasAnsweredIsFoundAgain) {
  const TempDir dir;
  const auto path = dir / "answers.jsonl";
  const ItemKey key{"m", "mmlu", "a/1", "in"};
  {
    ItemLog log(path);
    EXPECT_EQ(log.find(key), nullptr);
    log.add(key, {{"text", "yes"}});
  }
  dir.file("cut.jsonl", test::slurp(path) + "{\"model\": \"m");
  ItemLog cut(dir / "cut.jsonl");
  EXPECT_EQ(cut.broken(), 1) << "the line that a killed run left";
  ASSERT_NE(cut.find(key), nullptr);
  EXPECT_EQ((*cut.find(key))["text"], "yes");
  for (const ItemKey& other :
       {ItemKey{"n", "mmlu", "a/1", "in"}, ItemKey{"m", "x", "a/1", "in"},
        ItemKey{"m", "mmlu", "a/2", "in"}, ItemKey{"m", "mmlu", "a/1", "i"}}) {
    EXPECT_EQ(cut.find(other), nullptr);
  }
  cut.add({"m", "mmlu", "a/2", "in"}, {{"text", "no"}});
  EXPECT_EQ(ItemLog(dir / "cut.jsonl").size(), 2) << "what was cut does not swallow the next line";
}

TEST(ItemLog, AnotherFileIsRefused) {
  const TempDir dir;
  EXPECT_THAT(error_of([&] { ItemLog(dir.file("x.txt", "a\nb\nc\n")); }),
              HasSubstr("no file of answers"));
  EXPECT_THAT(error_of([&] { ItemLog(dir.path()); }), Not("no error"));
  EXPECT_THAT(error_of([&] { ItemLog(dir / "no/folder"); }), HasSubstr("no/folder"));
}

TEST(ByPosition, EveryScoredTokenIsInOneBucket) {
  std::vector<Piece> pieces(2);
  pieces[0].tokens.assign(100, 1);
  pieces[1].tokens.assign(130, 1);
  Comparison comparison;
  for (const Piece& piece : pieces) {
    for (int64_t at = 1; at < static_cast<int64_t>(piece.tokens.size()); ++at) {
      comparison.scored.push_back({.best = at >= 64 ? 1 : 0,
                                   .logprob = -2,
                                   .baseline_logprob = -1,
                                   .kl = static_cast<double>(at)});
    }
  }
  const auto buckets = by_position(comparison, pieces);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].first, 1);
  EXPECT_EQ(buckets[0].last, 64);
  EXPECT_EQ(buckets[0].baseline.tokens, 2 * 63);
  EXPECT_EQ(buckets[1].baseline.tokens, 36 + 64);
  EXPECT_EQ(buckets[2].baseline.tokens, 2);
  EXPECT_EQ(buckets[2].kl_mean, 128.5);
  EXPECT_EQ(buckets[0].top1_agreement, 1);
  EXPECT_EQ(buckets[1].top1_agreement, 0);
  EXPECT_NEAR(buckets[0].candidate.value() / buckets[0].baseline.value(), std::exp(1), 1e-12);
  EXPECT_FALSE(perplexity_interval(comparison, pieces)) << "two pieces say nothing";
}

TEST(TaskResult, AReportSaysAllAndEscapesIt) {
  TaskResult result{.task = "mmlu",
                    .how = "5-shot",
                    .metrics = {"acc"},
                    .candidate = {"<m>", "fp8", {{"a/1", "<a>", {1}}, {"b/1", "b", {0}}}},
                    .baseline = TaskRun{"base", "bf16", {{"a/1", "<a>", {1}}, {"b/1", "b", {1}}}}};
  EXPECT_THAT(text_of(result), HasSubstr("50.00 %"));
  EXPECT_THAT(text_of(result), HasSubstr("-50.00 points"));
  const OrderedJson json = json_of(result);
  EXPECT_EQ(json["metrics"]["acc"]["difference"], -0.5);
  EXPECT_EQ(json["groups"]["b"]["acc_baseline"], 1);
  EXPECT_EQ(json["items"].size(), 2u);
  const std::string html = html_of(result, {{"k", "<v>"}});
  EXPECT_THAT(html, HasSubstr("&lt;a&gt;"));
  EXPECT_THAT(html, Not(HasSubstr("<v>")));
  EXPECT_THAT(html, Not(HasSubstr("<m>")));
}

}  // namespace
}  // namespace octet::eval
