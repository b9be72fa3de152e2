// Which experts are hot.
#include "offline/expert_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace octet::offline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ExpertUse, CountsTheRowsOfEachExpertOnce) {
  std::vector<float> values(12);
  const auto rows = [&](int64_t count) { return Tensor(values.data(), DType::f32, {count, 2}); };
  ExpertUse use;
  const auto tell = [&](const char* name, Role role, int64_t count) {
    const ops::Linear linear{.name = name, .role = role};
    const ops::Linear* const ws[] = {&linear};
    use.add(ws, rows(count));
  };
  tell("model.layers.1.mlp.experts.2.gate_proj", Role::expert_gate_up, 3);
  tell("model.layers.1.mlp.experts.2.down_proj", Role::expert_down, 3);
  tell("model.layers.1.mlp.experts.0.gate_proj", Role::expert_gate_up, 1);
  tell("model.layers.1.mlp.experts.2.gate_proj", Role::expert_gate_up, 2);
  tell("model.layers.1.mlp.shared_experts.gate_proj", Role::shared_gate_up, 6);
  tell("model.layers.1.self_attn.q_proj", Role::attn_in, 6);
  tell("model.layers.4.mlp.experts.11.gate_proj", Role::expert_gate_up, 1);
  ASSERT_EQ(use.counts().size(), 2u);
  EXPECT_THAT(use.counts().at("model.layers.1.mlp.experts"), ElementsAre(1, 0, 5));
  EXPECT_EQ(use.counts().at("model.layers.4.mlp.experts").size(), 12u);
}

TEST(ExpertUse, AShareOfTheExpertsIsHot) {
  const std::vector<int64_t> counts = {5, 9, 0, 9, 1};
  EXPECT_THAT(hot_experts(counts, 8, 0.125), ElementsAre(1));
  EXPECT_THAT(hot_experts(counts, 8, 0.25), ElementsAre(1, 3));
  EXPECT_THAT(hot_experts(counts, 8, 0.26), ElementsAre(1, 3, 0));
  // Whoever was never chosen is not hot, however many may be.
  EXPECT_THAT(hot_experts(counts, 8, 1), ElementsAre(1, 3, 0, 4));
  EXPECT_THAT(hot_experts(counts, 8, 0), IsEmpty());
  EXPECT_THAT(hot_experts({}, 8, 1), IsEmpty());
}

TEST(ExpertUse, HotOnesAreKeptByAPolicy) {
  const ExpertUse::Counts counts = {{"model.layers.1.mlp.experts", {1, 0, 3}},
                                    {"model.layers.10.mlp.experts", {0, 4}}};
  Policy policy{keep_hot_experts(counts, 4, 0.25)};
  ASSERT_EQ(policy.rows.size(), 2u);
  EXPECT_EQ(policy.rows[0].reason, "a hot expert: 75.0 % of its layer's tokens");
  const LinearFormat fp8 = scheme_named("fp8_channel").format;
  const Policy defaults = default_policy(fp8);
  policy.rows.insert(policy.rows.end(), defaults.rows.begin(), defaults.rows.end());
  const auto format_of = [&](const char* module) {
    return resolve(policy, Role::expert_down, module).format;
  };
  EXPECT_EQ(format_of("model.layers.1.mlp.experts.2.down_proj"), LinearFormat{});
  EXPECT_EQ(format_of("model.layers.10.mlp.experts.1.down_proj"), LinearFormat{});
  EXPECT_EQ(format_of("model.layers.1.mlp.experts.0.down_proj"), fp8);
  EXPECT_EQ(format_of("model.layers.1.mlp.experts.20.down_proj"), fp8);
  EXPECT_DOUBLE_EQ(hot_share_of_tokens(counts, 4, 0.25), 7.0 / 8);
}

}  // namespace
}  // namespace octet::offline
