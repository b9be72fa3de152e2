// The self-test of a device: sound kernels pass it with every family and format, and each kind of
// fault that engines have shipped fails it.
#include "engine/self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "backends/cpu/cpu_backend.h"
#include "backends/probe/forwarding_backend.h"
#include "model/random_weights.h"
#include "numerics/half.h"
#include "numerics/scheme.h"
#include "unit/base/error_of.h"

namespace octet::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

model::ModelConfig config_of(const std::string& name) {
  return model::read_config(std::string(OCTET_SOURCE_DIR) + "/" + name);
}

constexpr const char* kModels[] = {"models/octet-demo",
                                   "tests/golden/llama_gqa_rope3",
                                   "tests/golden/mistral_window",
                                   "tests/golden/mixtral_window",
                                   "tests/golden/qwen2_window",
                                   "tests/golden/qwen3_norms",
                                   "tests/golden/qwen3_moe_sparse",
                                   "tests/golden/deepseek_v2_group_limited",
                                   "tests/golden/deepseek_v3_groups",
                                   "tests/golden/qwen3_layer_types"};

model::LoadOptions fp8() {
  return {.compute = model::Compute::fp8, .online = scheme_named("fp8_channel").format};
}

double error_of(const model::ModelConfig& config, const model::LoadOptions& options,
                ops::Backend& device) {
  cpu::CpuBackend reference({.threads = 1, .kernels = "exact"});
  return self_test(small_version(config), options, model::KvType::automatic, device, reference)
      .error;
}

TEST(SelfTest, SoundKernelsPassWithEveryFamily) {
  for (const char* kernels : {"auto", "portable"}) {
    cpu::CpuBackend device({.threads = 2, .kernels = kernels});
    for (const char* name : kModels) {
      for (const auto compute : {model::Compute::fp8, model::Compute::bf16}) {
        model::LoadOptions options = fp8();
        options.compute = compute;
        const double error = error_of(config_of(name), options, device);
        EXPECT_LT(error, SelfTest::kMost / 2) << name << ", " << kernels;  // room to spare
        EXPECT_GT(error, 0) << name << ": the reference itself was compared";
      }
    }
  }
}

TEST(SelfTest, SoundKernelsPassWithEveryFormat) {
  cpu::CpuBackend device({.threads = 2});
  for (const Scheme& scheme : schemes()) {
    const auto config =
        model::with_scheme(config_of("tests/golden/llama_gqa_rope3"), scheme.format);
    EXPECT_LT(error_of(config, {.compute = model::Compute::fp8}, device), SelfTest::kMost / 2)
        << scheme.name;
  }
}

// What a kernel gives, spoilt.
class FaultyBackend final : public probe::ForwardingBackend {
 public:
  using Spoil = std::function<void(const Tensor& out)>;
  FaultyBackend(ops::Backend& inner, std::string op, Spoil spoil)
      : ForwardingBackend(inner), op_(std::move(op)), spoil_(std::move(spoil)) {}

  void linear(const ops::Activation& x, const ops::Linear& w, const Tensor& out) override {
    ForwardingBackend::linear(x, w, out);
    if (op_ == "linear" && w.quant) spoil_(out);
  }
  void linear_group(const ops::Activation& x, std::span<const ops::Linear* const> ws,
                    std::span<const Tensor> outs) override {
    ForwardingBackend::linear_group(x, ws, outs);
    if (op_ == "linear_group") spoil_(outs.back());
  }
  void attention(const Tensor& q, const ops::GqaCache& cache, const ops::Batch& batch,
                 const ops::AttentionSpec& spec, const Tensor& out, const Tensor& lse) override {
    ForwardingBackend::attention(q, cache, batch, spec, out, lse);
    if (op_ == "attention") spoil_(out);
  }
  void mla_attention(const Tensor& q_latent, const Tensor& q_pe, const ops::MlaCache& cache,
                     const ops::Batch& batch, const ops::AttentionSpec& spec, const Tensor& out,
                     const Tensor& lse) override {
    ForwardingBackend::mla_attention(q_latent, q_pe, cache, batch, spec, out, lse);
    if (op_ == "mla_attention") spoil_(out);
  }
  void moe_experts(const ops::Activation& x, const ops::Routing& routing,
                   std::span<const ops::GatedMlp> experts, const Tensor& out) override {
    ForwardingBackend::moe_experts(x, routing, experts, out);
    if (op_ == "moe_experts") spoil_(out);
  }

 private:
  std::string op_;
  Spoil spoil_;
};

void scale(const Tensor& out, float factor) {
  for (int64_t row = 0; row < out.rows(); ++row) {
    for (int64_t i = 0; i < out.cols(); ++i) {
      const int64_t at = row * out.row_stride() + i;
      if (out.type == DType::f32) {
        out.as<float>()[at] *= factor;
      } else {
        bf16& value = out.as<bf16>()[at];
        value = to_bf16(to_float(value) * factor);
      }
    }
  }
}

TEST(SelfTest, AFaultyKernelFails) {
  cpu::CpuBackend sound({.threads = 1});
  const std::pair<const char*, FaultyBackend::Spoil> faults[] = {
      {"a descale is left out", [](const Tensor& out) { scale(out, 4.0f); }},
      {"the scale is applied twice", [](const Tensor& out) { scale(out, 0.25f); }},
      {"nothing is written", [](const Tensor& out) { scale(out, 0.0f); }},
      {"NaN", [](const Tensor& out) { scale(out, std::numeric_limits<float>::quiet_NaN()); }},
  };
  for (const auto& [what, spoil] : faults) {
    for (const char* op : {"linear", "linear_group", "attention"}) {
      FaultyBackend device(sound, op, spoil);
      const double error = error_of(config_of("tests/golden/llama_gqa_rope3"), fp8(), device);
      EXPECT_FALSE(SelfTest{error}.ok()) << op << ": " << what << ", " << error;
    }
    for (const char* op : {"mla_attention", "moe_experts"}) {
      FaultyBackend device(sound, op, spoil);
      const double error = error_of(config_of("models/octet-demo"), fp8(), device);
      EXPECT_FALSE(SelfTest{error}.ok()) << op << ": " << what << ", " << error;
    }
  }
}

// A fault in steps of one row alone, where other kernels run than for prompts.
TEST(SelfTest, AFaultInDecodeAloneFails) {
  cpu::CpuBackend sound({.threads = 1});
  FaultyBackend device(sound, "attention", [](const Tensor& out) {
    if (out.shape[0] == 1) scale(out, 0.0f);
  });
  const double error = error_of(config_of("tests/golden/llama_gqa_rope3"), fp8(), device);
  EXPECT_FALSE(SelfTest{error}.ok()) << error;
}

TEST(SelfTest, SaysWhatIsWrongAndWhatToDo) {
  require_passed({.error = 0.01}, {});
  EXPECT_THAT(test::error_of([] { require_passed({.error = 0.37}, {.name = "a device"}); }),
              AllOf(HasSubstr("a device"), HasSubstr("37 %"), HasSubstr("--kernels exact")));
}

}  // namespace
}  // namespace octet::engine
