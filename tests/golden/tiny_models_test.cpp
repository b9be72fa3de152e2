// The tiny random models against what Hugging Face transformers computes from them (README.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "backends/cpu/cpu_backend.h"
#include "backends/probe/forwarding_backend.h"
#include "base/mapped_file.h"
#include "engine/session.h"
#include "model/binder.h"

namespace octet::golden {
namespace {

const std::string kFolder = std::string(OCTET_SOURCE_DIR) + "/tests/golden/";
constexpr double kTolerance = 1e-4;  // of the largest magnitude: see README.md

constexpr const char* kCases[] = {"llama_mha",
                                  "llama_f16",
                                  "llama_gqa_rope3",
                                  "llama_bias_sharded",
                                  "llama_dynamic",
                                  "llama_longrope",
                                  "mistral_window",
                                  "mistral_full",
                                  "mixtral_window",
                                  "qwen2_window",
                                  "qwen2_yarn",
                                  "qwen3_norms",
                                  "qwen3_layer_types",
                                  "qwen3_moe_sparse",
                                  "qwen3_moe_window",
                                  "deepseek_v3_groups",
                                  "deepseek_v3_yarn_mtp",
                                  "deepseek_v3_rope_parameters",
                                  "deepseek_v2_greedy",
                                  "deepseek_v2_group_limited",
                                  "llama_awq",
                                  "llama_gptq_act_order",
                                  "llama_pack_quantized",
                                  "llama_fp8_blocks",
                                  "llama_modelopt"};

// golden.safetensors: tensors by name.
class Results {
 public:
  explicit Results(const std::string& path) : file_(path) {
    for (model::StoredTensor& stored : model::parse_safetensors(file_.bytes(), path)) {
      tensors_.emplace(std::move(stored.name), stored.tensor);
    }
  }

  bool has(const std::string& name) const { return tensors_.contains(name); }
  std::vector<float> floats(const std::string& name) const {
    return model::to_float(tensors_.at(name));
  }
  template <class T>
  std::vector<T> values(const std::string& name) const {
    const Tensor& tensor = tensors_.at(name);
    std::vector<T> values(static_cast<size_t>(tensor.count()));
    std::memcpy(values.data(), tensor.data, values.size() * sizeof(T));
    return values;
  }
  std::vector<int32_t> ids(int n) const {
    const auto wide = values<int64_t>("input_ids." + std::to_string(n));
    return {wide.begin(), wide.end()};
  }

 private:
  MappedFile file_;
  std::map<std::string, Tensor> tensors_;
};

// Remembers the routing of each MoE layer, and the last norm.
class Recorder final : public probe::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  struct Route {
    std::vector<int32_t> experts;
    std::vector<float> weights;
    int64_t top_k = 0;
  };

  void rms_norm(const Tensor& x, const ops::NormWeight& norm, const ops::Activation& out) override {
    ForwardingBackend::rms_norm(x, norm, out);
    if (out.plain) last_norm = model::to_float(out.plain);
  }
  void moe_route(const Tensor& logits, const Tensor& bias, const ops::RouterSpec& spec,
                 const ops::Routing& out) override {
    ForwardingBackend::moe_route(logits, bias, spec, out);
    const auto* experts = out.experts.as<int32_t>();
    routes.push_back({{experts, experts + out.experts.count()},
                      model::to_float(out.weights),
                      out.experts.cols()});
  }

  std::vector<Route> routes;
  std::vector<float> last_norm;
};

// The golden file has the experts of a token in ascending order.
Recorder::Route ascending(const Recorder::Route& route) {
  Recorder::Route sorted = route;
  const auto k = static_cast<size_t>(route.top_k);
  for (size_t first = 0; first < route.experts.size(); first += k) {
    std::vector<size_t> order(k);
    std::iota(order.begin(), order.end(), first);
    std::ranges::sort(order, {}, [&](size_t i) { return route.experts[i]; });
    for (size_t i = 0; i < k; ++i) {
      sorted.experts[first + i] = route.experts[order[i]];
      sorted.weights[first + i] = route.weights[order[i]];
    }
  }
  return sorted;
}

void expect_near(const std::vector<float>& found, const std::vector<float>& expected,
                 const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double largest = 0, worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(std::isfinite(found[i])) << what << ", element " << i;
    largest = std::max(largest, std::fabs(static_cast<double>(expected[i])));
    worst = std::max(worst, std::fabs(static_cast<double>(found[i]) - expected[i]));
  }
  EXPECT_LE(worst, kTolerance * largest) << what;
}

class TinyModel : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  TinyModel()
      : folder_(kFolder + std::get<0>(GetParam())),
        cpu_({.threads = 2, .kernels = std::get<1>(GetParam())}),
        recorder_(cpu_),
        results_(folder_ + "/golden.safetensors") {}

  // For sequences of `length`: HF chooses the frequencies of some RoPE scalings by it.
  std::unique_ptr<model::Model> load(size_t length) {
    model::ModelConfig config = model::read_config(folder_);
    config.rope.length = static_cast<int64_t>(length);
    return model::load_model(config, std::make_shared<model::Checkpoint>(folder_), recorder_,
                             {.compute = model::Compute::fp32});
  }

  std::vector<float> logits_of(engine::Session& session, const std::vector<int32_t>& ids) {
    std::vector<float> all;
    session.reset();
    session.extend(0, ids, engine::Wanted::all, [&](int64_t, const Tensor& logits) {
      all.insert(all.end(), logits.as<float>(), logits.as<float>() + logits.count());
    });
    return all;
  }

  std::string folder_;
  cpu::CpuBackend cpu_;
  Recorder recorder_;
  Results results_;
};

TEST_P(TinyModel, LogitsAgree) {
  for (int n = 0; n < 3; ++n) {
    SCOPED_TRACE(n);
    const std::vector<int32_t> ids = results_.ids(n);
    const auto model = load(ids.size());
    engine::Session session(*model, recorder_, {.max_tokens = 256});
    expect_near(logits_of(session, ids), results_.floats("logits." + std::to_string(n)), "logits");
  }
}

TEST_P(TinyModel, LayersAndRoutesAgree) {
  const auto model = load(results_.ids(1).size());
  engine::Session session(*model, recorder_, {.max_tokens = 256});
  std::map<int64_t, std::vector<float>> hidden;
  session.observe(
      [&](int64_t layer, const Tensor& x, const Tensor&) { hidden[layer] = model::to_float(x); });
  recorder_.routes.clear();
  logits_of(session, results_.ids(1));

  const int64_t layers = model->config().layers;
  ASSERT_EQ(static_cast<int64_t>(hidden.size()), layers + 1);
  for (const auto& [layer, x] : hidden) {
    const std::string name = "hidden.1." + std::to_string(layer);
    expect_near(x, results_.floats(name), name);
  }
  expect_near(recorder_.last_norm, results_.floats("final_norm.1"), "final_norm");

  auto route = recorder_.routes.begin();
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string name = "router.1." + std::to_string(layer);
    if (!results_.has(name + ".experts")) continue;
    ASSERT_NE(route, recorder_.routes.end()) << name;
    const Recorder::Route found = ascending(*route++);
    EXPECT_EQ(found.experts, results_.values<int32_t>(name + ".experts")) << name;
    expect_near(found.weights, results_.floats(name + ".weights"), name);
  }
  EXPECT_EQ(route, recorder_.routes.end());
}

std::string name_of_test(const ::testing::TestParamInfo<TinyModel::ParamType>& info) {
  return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
}

INSTANTIATE_TEST_SUITE_P(Golden, TinyModel,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values("exact", "auto", "portable")),
                         name_of_test);

// No folder with data is left out of the list.
TEST(Golden, EveryCaseRuns) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (std::filesystem::exists(entry.path() / "golden.safetensors")) {
      found.push_back(entry.path().filename());
    }
  }
  EXPECT_THAT(found, ::testing::UnorderedElementsAreArray(kCases));
}

}  // namespace
}  // namespace octet::golden
