// The divergence of reports that are cut off, against the whole distributions.
#include "load/fidelity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/philox.h"

namespace octet::load {
namespace {

// The `count` best of a distribution.
Place report(const std::vector<double>& p, size_t count) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return p[a] > p[b]; });
  Place place{std::to_string(order[0]), std::log(p[order[0]]), {}};
  for (size_t i = 0; i < count; ++i) {
    place.top.emplace_back(std::to_string(order[i]), std::log(p[order[i]]));
  }
  return place;
}

std::vector<double> random_distribution(Philox& random, size_t count) {
  std::vector<double> p(count);
  for (double& x : p) x = std::pow(random.uniform(), 4) + 1e-6;
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

TEST(Fidelity, TheTruncatedDivergenceIsALowerBoundAndExactWhenNothingIsCut) {
  Philox random(5);
  for (int round = 0; round < 200; ++round) {
    const auto p = random_distribution(random, 12), q = random_distribution(random, 12);
    double kl = 0;
    for (size_t i = 0; i < p.size(); ++i) kl += p[i] * std::log(p[i] / q[i]);
    EXPECT_NEAR(truncated_kl(report(p, 12), report(q, 12)).kl, kl, 1e-6);
    for (const size_t count : {1, 3, 8, 11}) {
      const TruncatedKl cut = truncated_kl(report(p, count), report(q, count));
      EXPECT_LE(cut.kl, kl + 1e-9);
      EXPECT_GE(cut.kl, 0);
      EXPECT_LE(cut.covered_left, 1 + 1e-9);
    }
    EXPECT_NEAR(truncated_kl(report(p, 5), report(p, 5)).kl, 0, 1e-12);
  }
}

TEST(Fidelity, ReportsWithoutACommonTokenSayNothing) {
  EXPECT_EQ(truncated_kl({"a", -1, {{"a", -1}}}, {"b", -1, {{"b", -1}}}).kl, 0);
  EXPECT_EQ(truncated_kl({}, {}).kl, 0);
}

Place sure(const char* token) {
  return {token, 0, {{token, 0}}};
}

TEST(Fidelity, AnswersAreComparedUpToWhereTheyPart) {
  Fidelity f;
  compare_answers({sure("a"), sure("b"), sure("c")}, {sure("a"), sure("x"), sure("c")}, f);
  EXPECT_EQ(f.places, 2);
  EXPECT_EQ(f.same_tokens, 1);
  EXPECT_EQ(f.same_answers, 0);
  ASSERT_EQ(f.splits.size(), 1u);
  EXPECT_EQ(f.splits[0].place, 1u);
  EXPECT_EQ(f.splits[0].right, "x");
  compare_answers({sure("a"), sure("b")}, {sure("a"), sure("b")}, f);
  EXPECT_EQ(f.same_answers, 1);
  compare_answers({sure("a")}, {sure("a"), sure("b")}, f);  // one ended earlier
  EXPECT_EQ(f.same_answers, 1);
  EXPECT_EQ(f.answers, 3);
  EXPECT_EQ(f.kl.size(), 5u);
}

TEST(Fidelity, LogprobsAreReadFromAnAnswer) {
  const auto places = places_of(Json::parse(R"({"choices": [{"logprobs": {
      "tokens": ["a", "b"], "token_logprobs": [-0.5, -1],
      "top_logprobs": [{"a": -0.5, "c": -2}, {"b": -1}], "text_offset": [0, 1]}}]})"));
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0].token, "a");
  EXPECT_EQ(places[0].logprob, -0.5);
  EXPECT_EQ(places[0].top.size(), 2u);
  for (
      const char* other :
      {"3", "{}", R"({"choices": []})", R"({"choices": [{"logprobs": null}]})",
       R"({"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [], "top_logprobs": []}}]})",
       R"({"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [null],
                                      "top_logprobs": [null]}}]})",
       R"({"choices": [{"logprobs": {"content": []}}]})"}) {
    EXPECT_TRUE(places_of(Json::parse(other)).empty()) << other;
  }
}

}  // namespace
}  // namespace octet::load
