// The well-known shapes of models/configs, each bound without a weight in memory: what a family
// asks for is what the published model has, to the last parameter.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "model/model.h"
#include "ops/null_backend.h"
#include "unit/model/support.h"

namespace octet::model {
namespace {

namespace fs = std::filesystem;

// Every tensor that is asked for, in BF16. Vectors are zeros that can be read; nobody reads the
// matrices.
class Shapes final : public WeightSource {
 public:
  explicit Shapes(bool tied) : tied_(tied), zeros_(size_t{1} << 18) {}

  const Tensor* find(std::string_view name, const Shape& expected) const override {
    if (name.ends_with("_scale") || (tied_ && name == "lm_head.weight")) return nullptr;
    Tensor tensor = ops::nowhere(DType::bf16, expected);
    if (expected.rank == 1) tensor.data = zeros_.data();
    return &tensors_.emplace(name, tensor).first->second;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  std::string locate(std::string_view) const override { return "shapes"; }

 private:
  bool tied_;
  mutable std::vector<uint16_t> zeros_;
  mutable std::map<std::string, Tensor, std::less<>> tensors_;
};

// As their publishers count them. moe-95b is a shape of our own.
const std::map<std::string, int64_t> kParameters = {
    {"deepseek-v2", 235'741'434'880},  {"deepseek-v2-lite", 15'706'484'224},
    {"deepseek-v3", 671'026'419'200},  {"llama-3.1-8b", 8'030'261'248},
    {"llama-3.2-1b", 1'235'814'400},   {"llama-3.3-70b", 70'553'706'496},
    {"mistral-7b", 7'241'732'096},     {"mixtral-8x7b", 46'702'792'704},
    {"moe-95b", 95'721'838'208},       {"qwen2.5-0.5b", 494'032'768},
    {"qwen2.5-7b", 7'615'616'512},     {"qwen3-0.6b", 596'049'920},
    {"qwen3-30b-a3b", 30'532'122'624}, {"qwen3-8b", 8'190'735'360},
    {"smollm2-135m", 134'515'008}};

TEST(Shapes, HaveThePublishedNumberOfParameters) {
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(test::source("models/configs"))) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename();
    SCOPED_TRACE(name);
    ASSERT_TRUE(kParameters.contains(name));
    found.insert(name);
    const ModelConfig config = read_config(entry.path());
    ops::NullBackend nowhere;
    const auto model = load_model(config, std::make_shared<Shapes>(config.tied_embeddings), nowhere,
                                  {.compute = Compute::bf16, .max_positions = 1});
    EXPECT_EQ(model->parameters(), kParameters.at(name));
  }
  EXPECT_EQ(found.size(), kParameters.size());
}

TEST(Shapes, WindowsAndHeads) {
  const auto read = [](const char* name) {
    return read_config(test::source(std::string("models/configs/") + name));
  };
  EXPECT_EQ(read("mistral-7b").window(31), 4096);
  EXPECT_TRUE(read("mixtral-8x7b").windows.empty());
  EXPECT_TRUE(read("qwen2.5-7b").windows.empty());  // it has one, and does not use it
  EXPECT_EQ(std::get<Gqa>(read("qwen3-0.6b").attention).head_dim, 128);  // not 1024 / 16
  EXPECT_EQ(std::get<Gqa>(read("smollm2-135m").attention).head_dim, 64);
  EXPECT_EQ(read("smollm2-135m").rope.theta, 1e5);
}

}  // namespace
}  // namespace octet::model
