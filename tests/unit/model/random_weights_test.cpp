#include "model/random_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>

#include "model/binder.h"
#include "model/model.h"
#include "numerics/fp8.h"
#include "unit/model/host_backend.h"
#include "unit/model/support.h"

namespace octet::model {
namespace {

using test::HostBackend;

ModelConfig llama_1b() {
  return read_config(test::source("models/configs/llama-3.2-1b").string());
}
ModelConfig demo() {
  return read_config(test::source("models/octet-demo").string());
}

double deviation(const std::vector<float>& values) {
  double sum = 0, squares = 0;
  for (const float v : values) sum += v, squares += double{v} * v;
  const double mean = sum / static_cast<double>(values.size());
  return std::sqrt(squares / static_cast<double>(values.size()) - mean * mean);
}

TEST(RandomWeights, LinearsKeepTheirInputsMagnitude) {
  const RandomWeights source(llama_1b());
  const Tensor* weight = source.find("model.layers.0.mlp.up_proj.weight", {256, 2048});
  ASSERT_NE(weight, nullptr);
  EXPECT_EQ(weight->type, DType::bf16);
  EXPECT_NEAR(deviation(to_float(*weight)) * std::sqrt(2048.0), 1.0, 0.02);
  const Tensor* norm = source.find("model.layers.0.input_layernorm.weight", {2048});
  EXPECT_NEAR(to_float(*norm)[7], 1.0f, 0.5f);
  EXPECT_NEAR(deviation(to_float(*norm)), 0.1, 0.02);
  const Tensor* bias = source.find("model.layers.1.mlp.gate.e_score_correction_bias", {256});
  EXPECT_EQ(bias->type, DType::f32);
  EXPECT_LT(deviation(to_float(*bias)), 0.1);
  const RandomWeights untied(demo());
  ASSERT_NE(untied.find("lm_head.weight", {64, 256}), nullptr);
  EXPECT_EQ(untied.find("lm_head.weight", {64, 256})->type, DType::bf16);
  // The same question has the same answer.
  EXPECT_EQ(source.find("model.layers.0.mlp.up_proj.weight", {256, 2048}), weight);
}

TEST(RandomWeights, Fp8WeightsTimesScalesHaveTheSameMagnitude) {
  for (const char* scheme : {"fp8_block", "fp8_channel"}) {
    const ModelConfig config = with_scheme(llama_1b(), scheme_named(scheme).format);
    const RandomWeights source(config);
    const std::string module = "model.layers.0.mlp.up_proj";
    const Tensor* weight = source.find(module + ".weight", {256, 2048});
    ASSERT_EQ(weight->type, DType::e4m3);
    const Tensor* scales = source.find(module + config.quant->scale_suffix, {2, 16});
    ASSERT_EQ(scales->type, DType::f32);
    std::vector<float> values;
    for (int64_t i = 0; i < weight->count(); ++i) {
      values.push_back(fp8_decode<Code::e4m3>(weight->as<uint8_t>()[i]));
      EXPECT_TRUE(std::isfinite(values.back()));
    }
    float mean = 0;
    for (int i = 0; i < 32; ++i) {
      EXPECT_GT(scales->as<float>()[i], 0.0f);
      mean += scales->as<float>()[i] / 32;
    }
    EXPECT_NEAR(deviation(values) * mean * std::sqrt(2048.0), 1.0, 0.1);
    // A tied model has no head of its own.
    EXPECT_EQ(source.find("lm_head.weight", {64, 2048}), nullptr);
    EXPECT_EQ(source.find("model.embed_tokens.weight", {64, 2048})->type, DType::bf16);
    EXPECT_EQ(source.find("model.layers.0.mlp.gate.weight", {64, 2048})->type, DType::bf16);
    EXPECT_EQ(source.find("model.layers.0.self_attn.k_scale", {1}), nullptr);
  }
}

// Whatever a family calls its linears: all of them in FP8, and its routers and head not.
TEST(RandomWeights, EveryFamilyInFp8) {
  for (const char* name : {"mixtral_window", "qwen3_moe_sparse", "deepseek_v3_groups"}) {
    SCOPED_TRACE(name);
    const ModelConfig config =
        with_scheme(read_config(test::source("tests/golden") / name),
                    {.weight = QuantFormat{Code::e4m3, grids::block128, ScaleType::f32},
                     .input = QuantFormat{Code::e4m3, grids::group128, ScaleType::f32}});
    HostBackend backend;
    const auto model =
        load_model(config, std::make_shared<RandomWeights>(config), backend, {.max_positions = 1});
    for (const LinearUse& use : model->linears()) {
      const Role role = use.linear->role;
      const bool high = role == Role::router || role == Role::lm_head;
      EXPECT_EQ(static_cast<bool>(use.linear->quant), !high) << use.linear->name;
    }
  }
}

TEST(RandomWeights, SeedAndNameDecide) {
  const auto first = [](uint64_t seed, const char* name) {
    const RandomWeights source(demo(), {.seed = seed});
    return to_float(*source.find(name, {100, 3000}));
  };
  EXPECT_EQ(first(1, "a_proj.weight"), first(1, "a_proj.weight"));
  EXPECT_NE(first(1, "a_proj.weight"), first(2, "a_proj.weight"));
  EXPECT_NE(first(1, "a_proj.weight"), first(1, "b_proj.weight"));
  // The order of the questions does not.
  const RandomWeights source(demo(), {.seed = 1});
  source.find("b_proj.weight", {100, 3000});
  EXPECT_EQ(to_float(*source.find("a_proj.weight", {100, 3000})), first(1, "a_proj.weight"));
}

TEST(RandomWeights, ModelsLoad) {
  for (const bool shared : {false, true}) {
    for (const char* scheme : {"", "fp8_block", "fp8_channel"}) {
      ModelConfig config = demo();
      if (*scheme) config = with_scheme(config, scheme_named(scheme).format);
      const auto source = std::make_shared<RandomWeights>(config, RandomOptions{.shared = shared});
      HostBackend backend;
      const auto model = load_model(config, source, backend, {});
      for (const LinearUse& use : model->linears()) {
        EXPECT_EQ(static_cast<bool>(use.linear->quant), *scheme && is_quantizable(use.linear->role))
            << use.linear->name;
      }
      EXPECT_GT(source->bytes(), model->parameters());
    }
  }
}

TEST(RandomWeights, FillingIsFast) {
  const ModelConfig config = with_scheme(llama_1b(), scheme_named("fp8_channel").format);
  const RandomWeights source(config);
  source.find("first_proj.weight", {64, 64});  // makes the table
  const std::clock_t start = std::clock();
  double bytes = 0;
  for (int i = 0; i < 4; ++i) {
    bytes += static_cast<double>(
        source.find("w" + std::to_string(i) + "_proj.weight", {8192, 8192})->bytes());
  }
  const double rate = bytes / (static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  RecordProperty("MB_per_second", static_cast<int>(rate / 1e6));
  EXPECT_GT(rate, 0.3e9);  // 1.5e9 and more on an idle machine
}

}  // namespace
}  // namespace octet::model
