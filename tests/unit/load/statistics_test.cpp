// Figures against what can be counted by hand, and percentiles against a sort.
#include "load/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "unit/base/error_of.h"

namespace octet::load {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Statistics, PercentilesAreThoseOfASort) {
  const std::vector<double> values = {10, 20, 30, 40};
  EXPECT_EQ(percentile(values, 0), 10);
  EXPECT_EQ(percentile(values, 50), 25);
  EXPECT_EQ(percentile(values, 100), 40);
  EXPECT_NEAR(percentile(values, 99), 39.7, 1e-12);
  EXPECT_TRUE(std::isnan(percentile({}, 99)));
  Philox random(1);
  for (const size_t count : {1, 2, 3, 10, 1001}) {
    std::vector<double> drawn(count);
    for (double& value : drawn) value = random.uniform();
    const Distribution distribution(drawn);
    std::ranges::sort(drawn);
    for (size_t rank = 0; rank < count; ++rank) {
      const double percent =
          count == 1 ? 50 : 100 * static_cast<double>(rank) / static_cast<double>(count - 1);
      EXPECT_NEAR(distribution.at(percent), drawn[rank], 1e-9);
    }
  }
}

Outcome outcome(double start, double ttft, std::vector<double> itls, int64_t tokens) {
  Outcome o;
  o.start = start;
  o.ttft = ttft;
  o.latency = ttft;
  for (const double itl : itls) o.latency += itl;
  o.itls = std::move(itls);
  o.prompt_tokens = 7;
  o.output_tokens = tokens;
  return o;
}

// Two that overlap, one chunk with three tokens, one failure, and one of a single token.
RunResult example() {
  RunResult run;
  run.seconds = 4;
  run.outcomes.push_back(outcome(0, 0.5, {0.25, 0.25}, 5));
  run.outcomes.push_back(outcome(0.5, 1, {1}, 2));
  run.outcomes.push_back(outcome(2.5, 0.25, {}, 1));
  Outcome failed;
  failed.failure = Failure::timeout;
  failed.message = "too late";
  run.outcomes.push_back(failed);
  return run;
}

TEST(Statistics, ARunIsCounted) {
  const Statistics s = statistics_of(example());
  EXPECT_EQ(s.completed, 3);
  EXPECT_EQ(s.failed, 1);
  EXPECT_EQ(s.input_tokens, 21);
  EXPECT_EQ(s.output_tokens, 8);
  EXPECT_EQ(s.request_throughput(), 0.75);
  EXPECT_EQ(s.output_throughput(), 2);
  // (1.0 - 0.5) / 4 and (2 - 1) / 1; the one with a single token has none.
  EXPECT_EQ(s.tpot.sorted, (std::vector{0.125, 1.0}));
  EXPECT_EQ(s.itl.sorted, (std::vector{0.25, 0.25, 1.0}));
  EXPECT_EQ(s.ttft.sorted, (std::vector{0.25, 0.5, 1.0}));
  EXPECT_NEAR(s.ttft.mean, 1.75 / 3, 1e-12);
  EXPECT_NEAR(s.itl.std, std::sqrt(0.125), 1e-12);
  EXPECT_EQ(s.max_concurrent_requests, 2);
  // Chunks at 0.5, 0.75, 1.0, 1.5, 2.5, 2.75.
  EXPECT_EQ(s.max_output_tokens_per_s, 2);
  EXPECT_EQ(s.failures[static_cast<size_t>(Failure::timeout)], 1);
}

TEST(Statistics, OneThatEndsWhenAnotherBeginsIsNoCompany) {
  RunResult run;
  run.seconds = 2;
  run.outcomes = {outcome(0, 1, {}, 1), outcome(1, 1, {}, 1)};
  EXPECT_EQ(statistics_of(run).max_concurrent_requests, 1);
}

TEST(Statistics, NothingIsNoDivisionByZero) {
  const Statistics s = statistics_of({});
  EXPECT_EQ(s.request_throughput(), 0);
  EXPECT_THAT(result_text(s, {}), Not(HasSubstr("nan")));
  EXPECT_THAT(dump_json(result_json(s, {}, {}, true)), Not(HasSubstr("nan")));
}

TEST(Statistics, GoodRequestsKeepAllLimits) {
  EXPECT_EQ(statistics_of(example(), parse_goodput({"ttft:500"})).good, 2);
  EXPECT_EQ(statistics_of(example(), parse_goodput({"ttft:500", "tpot:100"})).good, 1);
  EXPECT_EQ(statistics_of(example(), parse_goodput({"e2el:2000"})).good, 3);
  for (const char* bad : {"ttft", "ttft:", "ttft:x", "ttft:-1", "ttft:0", "itl:5", "ttft:5ms",
                          "ttft:nan", "ttft:inf", ":5", ""}) {
    EXPECT_THAT(error_of([&] { parse_goodput({bad}); }), HasSubstr("--goodput")) << bad;
  }
}

TEST(Statistics, TheResultHasTheFieldsOfVllm) {
  const RunResult run = example();
  const OrderedJson json =
      result_json(statistics_of(run), run, {.percentiles = {50, 99.9}, .max_concurrency = 2}, true);
  for (const char* field : {"duration",
                            "completed",
                            "failed",
                            "total_input_tokens",
                            "total_output_tokens",
                            "request_throughput",
                            "request_goodput",
                            "output_throughput",
                            "total_token_throughput",
                            "max_output_tokens_per_s",
                            "max_concurrent_requests",
                            "input_lens",
                            "output_lens",
                            "ttfts",
                            "itls",
                            "latencies",
                            "start_times",
                            "generated_texts",
                            "errors",
                            "mean_ttft_ms",
                            "median_tpot_ms",
                            "std_itl_ms",
                            "p99.9_e2el_ms",
                            "p50_ttft_ms",
                            "mean_client_queue_time_ms"}) {
    EXPECT_TRUE(json.contains(field)) << field;
  }
  EXPECT_TRUE(json["request_goodput"].is_null());
  EXPECT_EQ(json["output_lens"], OrderedJson({5, 2, 1, 0}));
  EXPECT_EQ(json["errors"], OrderedJson({"", "", "", "timeout: too late"}));
  EXPECT_EQ(json["failures"], OrderedJson({{"timeout", 1}}));
  EXPECT_DOUBLE_EQ(json["median_ttft_ms"].get<double>(), 500);
  EXPECT_FALSE(result_json(statistics_of(run), run, {}, false).contains("ttfts"));
  EXPECT_THAT(failure_text(run), HasSubstr("1 of 4 requests failed: 1 timeout"));
}

TEST(Statistics, TheBlockIsVllms) {
  const std::string text = result_text(statistics_of(example()), {.request_rate = 2});
  EXPECT_THAT(text, HasSubstr("============ Serving Benchmark Result ============\n"));
  EXPECT_THAT(text, HasSubstr("Successful requests:                     3         \n"));
  EXPECT_THAT(text, HasSubstr("Request rate configured (RPS):           2.00      \n"));
  EXPECT_THAT(text, HasSubstr("---------------Time to First Token----------------\n"));
  EXPECT_THAT(text, HasSubstr("Median TTFT (ms):                        500.00    \n"));
}

}  // namespace
}  // namespace octet::load
