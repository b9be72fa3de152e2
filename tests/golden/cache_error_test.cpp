// The error of a cache, read back from it.
#include "backends/probe/cache_error.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "engine/session.h"
#include "model/model.h"
#include "numerics/scheme.h"

namespace octet {
namespace {

// What is stored is half of what was written.
class HalvedScales final : public probe::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void kv_write(const Tensor& k, const Tensor& v, const ops::GqaCache& cache,
                const ops::Batch& batch) override {
    inner().kv_write(k, v, cache, batch);
    if (halved_) return;
    halved_ = true;
    for (int64_t i = 0; i < cache.k_scale.count(); ++i) cache.k_scale.as<float>()[i] *= 0.5f;
    for (int64_t i = 0; i < cache.v_scale.count(); ++i) cache.v_scale.as<float>()[i] *= 0.5f;
  }

 private:
  bool halved_ = false;  // in the first layer
};

double error_of(const std::string& name, model::KvType type, bool halved = false,
                model::Compute compute = model::Compute::fp8) {
  const std::string folder = std::string(OCTET_SOURCE_DIR) + "/tests/golden/" + name;
  cpu::CpuBackend cpu({.threads = 1});
  HalvedScales faulty(cpu);
  probe::CacheErrorBackend probe(halved ? static_cast<ops::Backend&>(faulty) : cpu);
  const auto model =
      model::load_model(model::read_config(folder), model::open_weights(folder), cpu,
                        {.compute = compute, .online = scheme_named("fp8_channel").format});
  constexpr int64_t tokens = 40;
  engine::Session session(*model, probe,
                          {.max_tokens = tokens, .chunk = 7, .logits_rows = 1, .kv_type = type});
  EXPECT_EQ(probe.relative_error(), 0);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < tokens; ++i) ids.push_back(3 + i % 40);
  session.extend(0, ids);
  return probe.relative_error();
}

TEST(CacheError, IsThatOfTheCodes) {
  for (const char* name : {"llama_gqa_rope3", "deepseek_v3_groups"}) {
    SCOPED_TRACE(name);
    // Three and two bits of mantissa: models-numerics D.1.
    EXPECT_NEAR(error_of(name, model::KvType::fp8_e4m3), 0.026, 0.006);
    EXPECT_NEAR(error_of(name, model::KvType::fp8_e5m2), 0.052, 0.012);
    EXPECT_EQ(error_of(name, model::KvType::bf16, false, model::Compute::bf16), 0);
  }
}

TEST(CacheError, OfScalesByTokenAndHead) {
  const char* const name = "llama_gqa_rope3";
  EXPECT_NEAR(error_of(name, model::KvType::fp8_token_heads), 0.026, 0.006);
  // A step is 1/127 of the largest of 16 values, some two standard deviations; the error of
  // rounding to it is 0.29 of a step.
  EXPECT_NEAR(error_of(name, model::KvType::int8_token_heads), 0.0045, 0.0015);
}

TEST(CacheError, OfALatentInInt8) {
  // As above, of groups of 128, whose largest is some 2.6 standard deviations.
  EXPECT_NEAR(error_of("deepseek_v3_groups", model::KvType::int8_token_groups), 0.006, 0.002);
}

TEST(CacheError, SeesAWrongScale) {
  EXPECT_GT(error_of("llama_gqa_rope3", model::KvType::fp8_token_heads, true), 0.1);
  EXPECT_GT(error_of("llama_gqa_rope3", model::KvType::fp8_e4m3, true), 0.1);
}

}  // namespace
}  // namespace octet
