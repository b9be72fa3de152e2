#include "numerics/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "unit/base/temp_dir.h"

namespace octet {
namespace {

using ::testing::HasSubstr;

constexpr Role kAllRoles[] = {Role::embedding,      Role::lm_head,        Role::norm,
                              Role::router,         Role::router_bias,    Role::attn_in,
                              Role::attn_latent,    Role::attn_out,       Role::mlp_gate_up,
                              Role::mlp_down,       Role::expert_gate_up, Role::expert_down,
                              Role::shared_gate_up, Role::shared_down,    Role::bias};

const LinearFormat& block() {
  return scheme_named("fp8_block").format;
}

TEST(Policy, RoleNamesRoundTrip) {
  for (const Role role : kAllRoles) EXPECT_EQ(parse_role(name_of(role)), role);
  EXPECT_EQ(parse_role("attention"), std::nullopt);
  EXPECT_THROW(name_of(static_cast<Role>(99)), Fault);
}

TEST(Policy, DefaultKeepsHighWhatIsNotALinear) {
  const Policy policy = default_policy(block());
  for (const Role role : kAllRoles) {
    const PolicyRow& row = resolve(policy, role, "model.layers.0.any");
    EXPECT_FALSE(row.reason.empty());
    EXPECT_EQ(row.origin, "default");
    EXPECT_EQ(row.format.weight.has_value(), is_quantizable(role)) << name_of(role);
  }
  EXPECT_EQ(resolve(policy, Role::mlp_down, "x").format, block());
  EXPECT_EQ(resolve(policy, Role::expert_gate_up, "x").format, block());
  // kv_b of MLA: the weight as the scheme says, its input in 16 bits.
  const PolicyRow& latent = resolve(policy, Role::attn_latent, "x");
  EXPECT_EQ(latent.format.weight, block().weight);
  EXPECT_EQ(latent.format.input, std::nullopt);
  EXPECT_THAT(latent.reason, HasSubstr("absorbed"));
}

TEST(Policy, WithoutASchemeAllIsHigh) {
  const Policy policy = default_policy({});
  for (const Role role : kAllRoles) EXPECT_EQ(resolve(policy, role, "x").format, LinearFormat{});
}

TEST(Policy, FirstMatchWins) {
  Policy policy = default_policy(block());
  const LinearFormat channel = scheme_named("fp8_channel").format;
  policy.rows.insert(policy.rows.begin(),
                     {{Role::mlp_down, "model.layers.0.*", {}, "sensitive", "test"},
                      {Role::mlp_down, "", channel, "cheaper", "test"}});
  EXPECT_EQ(resolve(policy, Role::mlp_down, "model.layers.0.mlp.down_proj").reason, "sensitive");
  EXPECT_EQ(resolve(policy, Role::mlp_down, "model.layers.10.mlp.down_proj").reason, "cheaper");
  EXPECT_EQ(resolve(policy, Role::mlp_gate_up, "model.layers.0.mlp.up_proj").format, block());
}

TEST(Policy, Globs) {
  const auto matches = [](const char* glob, const char* module) {
    Policy policy{{{std::nullopt, glob, {}, "hit", ""}, {std::nullopt, "", {}, "miss", ""}}};
    return resolve(policy, Role::attn_in, module).reason == "hit";
  };
  EXPECT_TRUE(matches("model.layers.?.self_attn.*", "model.layers.3.self_attn.q_proj"));
  EXPECT_FALSE(matches("model.layers.?.self_attn.*", "model.layers.13.self_attn.q_proj"));
  EXPECT_TRUE(matches("*", "anything.at.all"));
  EXPECT_TRUE(matches("*q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(matches("*q_proj", "model.layers.0.self_attn.q_proj.x"));
  EXPECT_TRUE(matches("a*b*c", "a.b.b.xc"));
  EXPECT_FALSE(matches("a*b*c", "a.c.b"));
  EXPECT_TRUE(matches("exact", "exact"));
  EXPECT_FALSE(matches("exact", "exactly"));
  EXPECT_FALSE(matches("exactly", "exact"));
  EXPECT_TRUE(matches("a**", "a"));
  EXPECT_FALSE(matches("a?", "a"));
}

TEST(Policy, ARowByNameAloneNeverGivesANormOrRouterAnFp8Format) {
  Policy policy = default_policy({});
  policy.rows.insert(policy.rows.begin(),
                     {std::nullopt, "model.layers.0.*", block(), "l0", "test"});
  EXPECT_EQ(resolve(policy, Role::attn_in, "model.layers.0.self_attn.q_proj").reason, "l0");
  EXPECT_EQ(resolve(policy, Role::norm, "model.layers.0.input_layernorm").format, LinearFormat{});
  EXPECT_EQ(resolve(policy, Role::router, "model.layers.0.mlp.gate").format, LinearFormat{});
}

TEST(Policy, NoMatchIsAFault) {
  EXPECT_THROW(resolve(Policy{}, Role::norm, "x"), Fault);
}

class PolicyFile : public ::testing::Test {
 protected:
  std::string write(const std::string& text) { return dir_.file("policy.json", text); }
  // Expects an Error whose place and value contain the two texts.
  void expect_error(const std::string& text, const std::string& where, const std::string& value) {
    try {
      read_policy_file(write(text));
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.parts().where, HasSubstr(path_));
      EXPECT_THAT(error.parts().where, HasSubstr(where)) << error.what();
      EXPECT_THAT(error.parts().value, HasSubstr(value)) << error.what();
    }
  }
  const test::TempDir dir_;
  const std::string path_ = dir_ / "policy.json";
};

TEST_F(PolicyFile, ReadsRowsInOrder) {
  const auto rows = read_policy_file(write(R"([
    {"role": "mlp_down", "name": "model.layers.0.*", "weight": null, "reason": "outliers"},
    {"weight": "e4m3[1x*]f32", "input": "e4m3[*x*]f32", "when": "calibrated"},
    {"role": "attn_out", "weight": "e4m3[1x*]f32", "input": null}
  ])"));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].role, Role::mlp_down);
  EXPECT_EQ(rows[0].name, "model.layers.0.*");
  EXPECT_EQ(rows[0].format, LinearFormat{});
  EXPECT_EQ(rows[0].reason, "outliers");
  EXPECT_EQ(rows[0].origin, "--policy " + path_);
  EXPECT_EQ(rows[1].role, std::nullopt);
  EXPECT_EQ(to_string(rows[1].format), "weight e4m3[1x*]f32, input e4m3[*x*]f32 calibrated");
  EXPECT_FALSE(rows[1].reason.empty());
  EXPECT_EQ(to_string(rows[2].format), "weight e4m3[1x*]f32, input 16-bit");

  Policy policy = default_policy(block());
  policy.rows.insert(policy.rows.begin(), rows.begin(), rows.end());
  // The row without a role is above the one for attn_out, and does not reach the head.
  EXPECT_EQ(resolve(policy, Role::attn_out, "model.layers.0.self_attn.o_proj").format,
            rows[1].format);
  EXPECT_EQ(resolve(policy, Role::lm_head, "lm_head").origin, "default");
  EXPECT_EQ(resolve(policy, Role::norm, "model.norm").origin, "default");
}

TEST_F(PolicyFile, AnEmptyArrayIsFine) {
  EXPECT_TRUE(read_policy_file(write("[]")).empty());
}

TEST_F(PolicyFile, ErrorsNameFileRowAndKey) {
  EXPECT_THROW(read_policy_file("/nonexistent/policy.json"), Error);
  expect_error("[{", "line 1", "");
  expect_error(R"([{"weight": null, "weight": "e4m3[1x*]f32"}])", "", "weight");
  expect_error("{}", "", "object");
  expect_error("[3]", "row 0", "3");
  expect_error(R"([{"weight": null}, {"rule": "x", "weight": null}])", "row 1, key \"rule\"",
               "rule");
  expect_error(R"([{"role": "attention", "weight": null}])", "row 0, key \"role\"", "attention");
  expect_error(R"([{"role": 3, "weight": null}])", "row 0, key \"role\"", "3");
  expect_error(R"([{"weight": "int8[1x*]f32"}])", "row 0, key \"weight\"", "int8[1x*]f32");
  expect_error(R"([{"weight": 8}])", "row 0, key \"weight\"", "8");
  expect_error(R"([{"weight": "e4m3[1x*]f32", "input": "e4m3[1x*]f32", "when": "later"}])",
               "row 0, key \"when\"", "later");
}

TEST_F(PolicyFile, ErrorsOfWholeRows) {
  expect_error(R"([{"role": "mlp_down"}])", "row 0", "mlp_down");
  expect_error(R"([{"weight": "e4m3[1x*]f32", "when": "dynamic"}])", "row 0", "when");
  expect_error(R"([{"weight": "e4m3[1x*]f32", "input": "e4m3[1x*]f32", "when": "calibrated"}])",
               "row 0", "e4m3[1x*]f32");
  expect_error(R"([{"role": "norm", "weight": "e4m3[1x*]f32"}])", "row 0", "norm");
  expect_error(R"([{"role": "router_bias", "weight": "e4m3[1x*]f32"}])", "row 0", "router_bias");
  expect_error(R"([{"role": "lm_head", "weight": "e4m3[1x*]f32"}])", "row 0", "lm_head");
}

// What no default does, but a measurement wants to know the cost of.
TEST_F(PolicyFile, InputsAloneAndRouters) {
  const QuantFormat row{Code::e4m3, grids::row, ScaleType::f32};
  Policy policy = default_policy({});
  const auto set = [&](std::string_view json) {
    policy = default_policy({});
    const std::vector<PolicyRow> rows = read_policy_file(write(std::string(json)));
    policy.rows.insert(policy.rows.begin(), rows.begin(), rows.end());
  };
  set(R"([{"weight": null, "input": "e4m3[1x*]f32"}])");
  const LinearFormat input_alone{std::nullopt, row, InputScale::dynamic};
  EXPECT_EQ(resolve(policy, Role::mlp_down, "model.layers.0.mlp.down_proj").format, input_alone);
  EXPECT_EQ(resolve(policy, Role::router, "model.layers.0.mlp.gate").format, LinearFormat{});
  EXPECT_EQ(resolve(policy, Role::lm_head, "lm_head").format, LinearFormat{});

  set(R"([{"role": "router", "weight": "e4m3[1x*]f32", "input": "e4m3[1x*]f32"}])");
  const LinearFormat both{row, row, InputScale::dynamic};
  EXPECT_EQ(resolve(policy, Role::router, "model.layers.0.mlp.gate").format, both);
  EXPECT_EQ(resolve(policy, Role::mlp_down, "model.layers.0.mlp.down_proj").format, LinearFormat{});
}

}  // namespace
}  // namespace octet
