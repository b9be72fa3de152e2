// A quantized checkpoint of which some linears are the source's.
#include "offline/mixed_checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "model/model.h"
#include "numerics/scheme.h"
#include "offline/quantize.h"
#include "unit/base/temp_dir.h"
#include "unit/model/host_backend.h"

namespace octet::offline {
namespace {

namespace fs = std::filesystem;

class Mixed : public ::testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  Mixed() {
    quantize_checkpoint(
        {.source = source_, .out = quantized_, .scheme = scheme_named(GetParam().second).format});
  }
  void expect_same(const model::WeightSource& a, const model::WeightSource& b,
                   const std::string& name) {
    const Tensor *x = a.find(name, {}), *y = b.find(name, {});
    ASSERT_TRUE(x && y) << name;
    ASSERT_EQ(x->type, y->type) << name;
    ASSERT_EQ(x->shape, y->shape) << name;
    EXPECT_EQ(std::memcmp(x->data, y->data, static_cast<size_t>(x->bytes())), 0) << name;
  }

  const test::TempDir dir_;
  const std::string source_ = std::string(OCTET_SOURCE_DIR) + "/tests/golden/" + GetParam().first;
  const std::string quantized_ = (dir_ / "fp8").string();
};

TEST_P(Mixed, IsTheQuantizedOneWhereNothingIsKept) {
  const MixedCheckpoint mixed(source_, quantized_);
  const model::Checkpoint all(quantized_);
  const auto weights = mixed.weights({});
  EXPECT_EQ(weights->names(), all.names());
  EXPECT_EQ(mixed.bytes({}), all.bytes());
  for (const std::string& name : all.names()) expect_same(*weights, all, name);
}

TEST_P(Mixed, WhatIsKeptIsTheSourcesAndIsWrittenAsItWasRun) {
  const MixedCheckpoint mixed(source_, quantized_);
  const model::Checkpoint high(source_), all(quantized_);
  // Every other linear.
  Modules kept;
  int64_t more = 0;
  bool take = false;
  for (const auto& [module, sizes] : mixed.modules()) {
    if (!(take = !take)) continue;
    kept.insert(module);
    more += sizes.high - sizes.low;
  }
  ASSERT_FALSE(kept.empty());
  EXPECT_EQ(mixed.bytes(kept), all.bytes() + more);
  const auto weights = mixed.weights(kept);
  const fs::path out = dir_ / "out";
  fs::create_directory(out);
  mixed.write(kept, out, int64_t{1} << 30);
  const model::Checkpoint written(out.string());
  EXPECT_EQ(written.names(), weights->names());
  for (const std::string& name : written.names()) expect_same(written, *weights, name);

  test::HostBackend backend;
  const auto model = model::load_model(model::read_config(out.string()),
                                       model::open_weights(out.string()), backend, {});
  size_t plain = 0;
  for (const model::LinearUse& use : model->linears()) {
    const std::string& name = use.linear->name;
    if (!mixed.modules().contains(name)) continue;
    EXPECT_EQ(!use.linear->quant, kept.contains(name)) << name;
    EXPECT_EQ(!use.linear->input, kept.contains(name) || name.ends_with("kv_b_proj")) << name;
    if (use.linear->quant) continue;
    ++plain;
    expect_same(written, high, name + ".weight");
  }
  EXPECT_EQ(plain, kept.size());
}

TEST_P(Mixed, InputsThatAreLeftStayIn16Bits) {
  MixedCheckpoint mixed(source_, quantized_);
  std::vector<std::string> names;
  for (const auto& [module, sizes] : mixed.modules()) {
    if (!module.ends_with("kv_b_proj")) names.push_back(module);
  }
  ASSERT_GE(names.size(), 3u);
  // The first has 16-bit weights as well, and so needs no word of its input.
  mixed.leave_inputs({names[0], names[1]});
  const model::ModelConfig config = mixed.config({names[0]});
  EXPECT_EQ(config.recorded.weight_only, std::vector{names[1]});
  test::HostBackend backend;
  const auto model = model::load_model(config, mixed.weights({names[0]}), backend,
                                       {.compute = model::Compute::fp8});
  const auto linear = [&](const std::string& name) -> const ops::Linear& {
    for (const model::LinearUse& use : model->linears()) {
      if (use.linear->name == name) return *use.linear;
    }
    throw std::runtime_error(name);
  };
  EXPECT_FALSE(linear(names[0]).quant || linear(names[0]).input);
  EXPECT_TRUE(linear(names[1]).quant && !linear(names[1]).input);
  EXPECT_TRUE(linear(names[2]).quant && linear(names[2]).input);
}

INSTANTIATE_TEST_SUITE_P(Models, Mixed,
                         ::testing::Values(std::pair("llama_gqa_rope3", "fp8_channel"),
                                           std::pair("llama_f16", "fp8_block"),
                                           std::pair("deepseek_v3_groups", "fp8_block"),
                                           std::pair("deepseek_v3_groups", "mxfp8")));

}  // namespace
}  // namespace octet::offline
