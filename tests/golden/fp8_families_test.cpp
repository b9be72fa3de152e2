// Every family in FP8: the checkpoint that `octet quantize` writes loads again and computes, bit
// for bit, what the 16-bit one computes when it is quantized at load. Routers and heads stay high
// in both, whatever the family calls them.
#include <gtest/gtest.h>

#include <cmath>

#include "backends/cpu/cpu_backend.h"
#include "engine/session.h"
#include "model/binder.h"
#include "numerics/scheme.h"
#include "offline/quantize.h"
#include "unit/base/temp_dir.h"

namespace octet::golden {
namespace {

struct Subject {
  const char* name;
  const char* scheme;
};

constexpr Subject kSubjects[] = {
    {"llama_bias_sharded", "fp8_channel"}, {"llama_longrope", "fp8_block"},
    {"mistral_window", "fp8_block"},       {"mixtral_window", "fp8_channel"},
    {"mixtral_window", "fp8_block"},       {"qwen2_window", "fp8_channel"},
    {"qwen2_yarn", "fp8_block"},           {"qwen3_norms", "fp8_channel"},
    {"qwen3_layer_types", "fp8_block"},    {"qwen3_moe_sparse", "fp8_channel"},
    {"qwen3_moe_window", "fp8_block"},     {"deepseek_v2_greedy", "fp8_block"},
    {"deepseek_v3_groups", "fp8_channel"}};

class Fp8Family : public ::testing::TestWithParam<Subject> {
 protected:
  Fp8Family() : cpu_({.threads = 1}) {}

  std::unique_ptr<model::Model> load(const std::string& folder) {
    return model::load_model(
        model::read_config(folder), std::make_shared<model::Checkpoint>(folder), cpu_,
        {.compute = model::Compute::fp8, .online = scheme_named(GetParam().scheme).format});
  }

  std::vector<float> logits_of(const model::Model& model) {
    engine::Session session(model, cpu_, {.max_tokens = 48, .chunk = 7});
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 40; ++i) ids.push_back((7 * i + 3) % 60);
    std::vector<float> all;
    session.extend(0, ids, engine::Wanted::all, [&](int64_t, const Tensor& logits) {
      all.insert(all.end(), logits.as<float>(), logits.as<float>() + logits.count());
    });
    return all;
  }

  const test::TempDir dir_;
  cpu::CpuBackend cpu_;
};

TEST_P(Fp8Family, WrittenAndQuantizedAtLoadAreEqual) {
  const std::string source = std::string(OCTET_SOURCE_DIR) + "/tests/golden/" + GetParam().name;
  const std::string out = (dir_.path() / "out").string();
  offline::quantize_checkpoint(
      {.source = source, .out = out, .scheme = scheme_named(GetParam().scheme).format});

  const auto online = load(source), written = load(out);
  int64_t fp8 = 0, routers = 0;
  for (const model::LinearUse& use : written->linears()) {
    const ops::Linear& linear = *use.linear;
    const bool high = linear.role == Role::router || linear.role == Role::lm_head;
    EXPECT_EQ(static_cast<bool>(linear.quant), !high) << linear.name;
    fp8 += linear.quant ? 1 : 0;
    routers += linear.role == Role::router ? 1 : 0;
  }
  EXPECT_GT(fp8, 0);
  int64_t mixtures = 0;
  for (int64_t i = 0; i < written->config().layers; ++i) {
    mixtures += written->config().is_moe_layer(i) ? 1 : 0;
  }
  EXPECT_EQ(routers, mixtures);

  const std::vector<float> expected = logits_of(*online);
  EXPECT_EQ(logits_of(*written), expected);
  for (const float logit : expected) ASSERT_TRUE(std::isfinite(logit));
}

INSTANTIATE_TEST_SUITE_P(Golden, Fp8Family, ::testing::ValuesIn(kSubjects), [](const auto& info) {
  return std::string(info.param.name) + "_" + info.param.scheme;
});

}  // namespace
}  // namespace octet::golden
