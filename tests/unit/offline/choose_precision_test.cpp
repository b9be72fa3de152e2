// Which linears stay in 16 bits under a budget.
#include "offline/choose_precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "unit/model/support.h"

namespace octet::offline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Kept = std::span<const size_t>;

// Costs for each byte saved: 0.0002, 0.0008, 0.0001, none, 0.0004.
const std::vector<Candidate> kFive = {{"a", {"a"}, 200, 100, 0.02},
                                      {"b", {"b"}, 100, 50, 0.04},
                                      {"c", {"c"}, 400, 200, 0.02},
                                      {"d", {"d"}, 200, 100, -0.001},
                                      {"e", {"e"}, 100, 50, 0.02}};

constexpr auto additive = [](Kept kept) {
  double kl = 0.1;
  for (const size_t i : kept) kl -= kFive[i].cost;
  return kl;
};

TEST(ChoosePrecision, WhatCostsMostForEachByteIsKeptFirst) {
  EXPECT_THAT(keeping_order(kFive, {.most_kept = 1}), ElementsAre(1, 4, 0, 2));
  // 400 of 1,000 bytes: c does not fit any more.
  EXPECT_THAT(keeping_order(kFive, {.most_kept = 0.4}), ElementsAre(1, 4, 0));
  // 110 bytes more than all in FP8: a does not fit after b and e, and nothing smaller is left.
  EXPECT_THAT(keeping_order(kFive, {.extra = 110}), ElementsAre(1, 4));
  EXPECT_THAT(keeping_order({}, {}), IsEmpty());
}

TEST(ChoosePrecision, AsFewAsTheDivergenceAsksFor) {
  for (const auto& [budget, kept] : std::vector<std::pair<double, size_t>>{
           {0.2, 0}, {0.1, 0}, {0.09, 1}, {0.0601, 1}, {0.0401, 2}, {0.0201, 3}, {0.0001, 4}}) {
    const Choice choice = choose_kept(kFive, {.kl = budget, .most_kept = 1}, additive);
    EXPECT_THAT(choice.kept, SizeIs(kept)) << budget;
    EXPECT_NEAR(choice.kl, additive(choice.kept), 1e-12);
    EXPECT_NEAR(choice.estimated, choice.kl, 1e-12);  // they do add up here
    EXPECT_LE(choice.kl, budget);
  }
}

// The estimate says that one suffices; measured, each saves a third of its cost.
TEST(ChoosePrecision, MeasuringCorrectsASumThatIsWrong) {
  const auto third = [](Kept kept) { return 0.1 - (0.1 - additive(kept)) / 3; };
  const Choice choice = choose_kept(kFive, {.kl = 0.0801, .most_kept = 1}, third);
  EXPECT_THAT(choice.kept, ElementsAre(1, 4));
  EXPECT_NEAR(choice.kl, 0.08, 1e-12);
  EXPECT_LT(choice.estimated, 0.05);
  // What was taken was measured as such.
  EXPECT_TRUE(std::ranges::any_of(choice.trials, [&](const Choice::Trial& trial) {
    return trial.kept == 2 && trial.kl == choice.kl;
  }));
}

TEST(ChoosePrecision, FewMeasurementsFindTheBorderAmongMany) {
  std::vector<Candidate> many;
  for (int i = 0; i < 500; ++i) many.push_back({std::to_string(i), {}, 2, 1, 0.001 * (500 - i)});
  const auto most = static_cast<double>(many.size());
  for (const size_t border : {size_t{1}, size_t{137}, size_t{499}}) {
    const auto measure = [&](Kept kept) { return most - static_cast<double>(kept.size()); };
    const Choice choice =
        choose_kept(many, {.kl = most - static_cast<double>(border), .most_kept = 1}, measure);
    EXPECT_THAT(choice.kept, SizeIs(border));
    EXPECT_LT(choice.trials.size(), 15u);
  }
}

TEST(ChoosePrecision, ABudgetThatNothingMeetsIsAnError) {
  EXPECT_THAT(test::error_of([] { choose_kept(kFive, {.kl = 0.01, .most_kept = 0.2}, additive); }),
              AllOf(HasSubstr("--budget"), HasSubstr("0.10000 with all in FP8"),
                    HasSubstr("0.04000 with 2 of 5"), HasSubstr("--min-fp8-share")));
}

TEST(ChoosePrecision, BytesAreFilledWithWhatIsWorthMost) {
  const Choice choice = choose_kept(kFive, {.extra = 200}, additive);
  EXPECT_THAT(choice.kept, ElementsAre(1, 4, 0));
  EXPECT_NEAR(choice.kl, 0.02, 1e-12);
  EXPECT_THAT(choose_kept(kFive, {.extra = 0}, additive).kept, IsEmpty());
}

TEST(ChoosePrecision, WhatEnginesRunAsOneHasOnePrecision) {
  for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
    EXPECT_EQ(fused_name(std::string("model.layers.3.self_attn.") + part),
              "model.layers.3.self_attn.qkv");
  }
  EXPECT_EQ(fused_name("model.layers.3.mlp.gate_proj"), "model.layers.3.mlp.gate_up");
  EXPECT_EQ(fused_name("model.layers.3.mlp.shared_experts.up_proj"),
            "model.layers.3.mlp.shared_experts.gate_up");
  EXPECT_EQ(fused_name("model.layers.3.mlp.experts.7.down_proj"), "model.layers.3.mlp.experts");
  EXPECT_EQ(fused_name("model.layers.3.self_attn.o_proj"), "model.layers.3.self_attn.o_proj");
}

}  // namespace
}  // namespace octet::offline
