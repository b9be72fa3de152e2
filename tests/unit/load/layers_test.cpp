// Where the knee is, and what a report shows.
#include "load/layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "load/live.h"
#include "load/report.h"

namespace octet::load {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// `count` requests of 10 tokens in `seconds`, all with this TTFT.
Step step(int64_t concurrency, double rate, double seconds, double ttft, int64_t count = 100,
          int64_t failed = 0) {
  Step step;
  step.concurrency = concurrency;
  step.rate = rate;
  step.name = concurrency > 0 ? "closed" : "open";
  step.run.seconds = seconds;
  for (int64_t i = 0; i < count; ++i) {
    Outcome outcome;
    outcome.ttft = ttft;
    outcome.latency = ttft + 0.09;
    outcome.itls.assign(9, 0.01);
    outcome.output_tokens = 10;
    if (i < failed) outcome.failure = Failure::status;
    step.run.outcomes.push_back(outcome);
  }
  step.statistics = statistics_of(step.run);
  return step;
}

const double kInf = ArrivalOptions::kInfinite;

TEST(Layers, TheKneeIsWhereMoreGivesNoMore) {
  std::vector<Step> steps = {step(1, kInf, 100, 0.01), step(2, kInf, 50, 0.01),
                             step(4, kInf, 26, 0.02), step(8, kInf, 25, 0.05),
                             step(16, kInf, 25, 0.1)};
  Knee knee = find_knee(steps, {}, {});
  EXPECT_EQ(knee.concurrency, 4);
  EXPECT_EQ(knee.concurrency_text, "4");
  EXPECT_FALSE(knee.rate);
  steps.resize(2);
  knee = find_knee(steps, {}, {});
  EXPECT_FALSE(knee.concurrency);
  EXPECT_THAT(knee.concurrency_text, HasSubstr("not reached up to 2"));
}

TEST(Layers, ARateHoldsWhileTheFirstTokenComesSoon) {
  std::vector<Step> steps = {step(1, kInf, 100, 0.01), step(0, 1, 100, 0.012),
                             step(0, 2, 50, 0.049), step(0, 3, 40, 0.06)};
  Knee knee = find_knee(steps, {}, {});
  EXPECT_EQ(knee.rate, 2);
  EXPECT_THAT(knee.rate_text, HasSubstr("2.00 req/s"));
  EXPECT_THAT(knee.rule, HasSubstr("5.0 times"));
  steps.pop_back();
  EXPECT_THAT(find_knee(steps, {}, {}).rate_text, HasSubstr("not reached up to 2.00"));
  steps[1] = step(0, 1, 100, 0.012, 100, 1);  // one failed
  knee = find_knee(steps, {}, {});
  EXPECT_FALSE(knee.rate);
  EXPECT_THAT(knee.rate_text, HasSubstr("below the lowest"));
  EXPECT_TRUE(holds(step(0, 1, 9, 0.02), steps[0], {}, {}));
}

TEST(Layers, GoodputCountsToo) {
  const Goodput strict = parse_goodput({"ttft:5"});
  Step slow = step(0, 1, 100, 0.01);
  slow.statistics = statistics_of(slow.run, strict);
  EXPECT_FALSE(holds(slow, step(1, kInf, 100, 0.01), {}, strict));
  EXPECT_THAT(find_knee({step(1, kInf, 100, 0.01)}, {}, strict).rule, HasSubstr("90 %"));
}

TEST(Layers, AServerThatNeverAnswersHasNoKnee) {
  const Knee knee = find_knee({step(1, kInf, 9, 0.01, 5, 5), step(2, kInf, 9, 0.01, 5, 5)}, {}, {});
  EXPECT_FALSE(knee.concurrency);
  EXPECT_FALSE(knee.rate);
}

TEST(Layers, GroupsAreToldApart) {
  RunResult run;
  run.outcomes.resize(3);
  run.outcomes[0].group = run.outcomes[2].group = "short";
  run.outcomes[1].group = "long";
  const auto groups = statistics_by_group(run, {});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].first, "short");
  EXPECT_EQ(groups[0].second.completed, 2);
  EXPECT_EQ(groups[1].second.completed, 1);
}

TEST(Report, AllIsEscapedAndNothingComesFromOutside) {
  Layer layer{"stress", {step(1, kInf, 100, 0.01), step(0, 2, 50, 0.02, 100, 3)}, std::nullopt};
  layer.steps[1].run.outcomes[0].message = "<script>alert(1)</script>";
  layer.knee = find_knee(layer.steps, {}, {});
  Layer mixed{"mixed", {step(0, kInf, 3, 0.01)}, std::nullopt};
  mixed.steps[0].run.outcomes[0].group = "<i>";
  const std::string html = html_of({"A \"model\" & <more>", {{"a<b", "c>d"}}, {layer, mixed}, {}});
  for (const char* bad : {"<script", "<i>", "http:", "https:", "src=", "<link", "nan", "inf<"}) {
    EXPECT_THAT(html, Not(HasSubstr(bad))) << bad;
  }
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(1)"));
  EXPECT_THAT(html, HasSubstr("3 http_status"));
  EXPECT_THAT(html, HasSubstr("A &quot;model&quot; &amp; &lt;more&gt;"));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme:dark"));
}

TEST(Report, EmptyRunsHaveAReportToo) {
  EXPECT_THAT(html_of({"x", {}, {{"plain", {Step{}}, std::nullopt}}, {}}), HasSubstr("</html>"));
  EXPECT_THAT(html_of({}), HasSubstr("</html>"));
}

TEST(Live, TheLineSaysWhatGoesOn) {
  Live live;
  for (int i = 0; i < 3; ++i) live.sent();
  live.first_token(0.02);
  live.first_token(0.03);
  live.first_token(0.08);
  for (int i = 0; i < 10; ++i) live.token();
  live.ended(true);
  live.ended(false);
  EXPECT_EQ(live.line(2), " 2/0  1 in flight  0.5 req/s  5 tok/s  P50 TTFT 30 ms  1 failed");
}

}  // namespace
}  // namespace octet::load
