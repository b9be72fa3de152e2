// What calibration sees of the tiny models, and that seeing changes nothing.
#include "backends/probe/observe.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

#include "backends/cpu/cpu_backend.h"
#include "engine/session.h"
#include "model/binder.h"
#include "model/model.h"

namespace octet::golden {
namespace {

struct Seen {
  int64_t rows = 0, width = 0, calls = 0;
};

class Observe : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<float> logits(ops::Backend& backend, const model::Model& model) {
    engine::Session session(model, backend, {.max_tokens = 64, .chunk = 7});
    std::vector<float> all;
    session.extend(0, tokens(), engine::Wanted::all, [&](int64_t, const Tensor& logits) {
      const std::vector<float> rows = model::to_float(logits);
      all.insert(all.end(), rows.begin(), rows.end());
    });
    return all;
  }
  static std::vector<int32_t> tokens() {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 24; ++i) ids.push_back((i * 7 + 3) % 50);
    return ids;
  }

  const std::string folder_ =
      std::string(OCTET_SOURCE_DIR) + "/tests/golden/" + std::string(GetParam());
  const model::ModelConfig config_ = model::read_config(folder_);
  const std::shared_ptr<const model::WeightSource> source_ = model::open_weights(folder_);
  const model::LoadOptions load_ = {.compute = model::Compute::bf16};
  cpu::CpuBackend cpu_{{.threads = 2}};
};

TEST_P(Observe, SeesEveryLinearAndChangesNothing) {
  std::map<std::string, Seen> seen;
  probe::ObservingBackend observing(cpu_,
                                    [&](std::span<const ops::Linear* const> ws, const Tensor& x) {
                                      for (const ops::Linear* w : ws) {
                                        Seen& one = seen[w->name];
                                        EXPECT_EQ(x.cols(), w->in) << w->name;
                                        one.rows += x.rows();
                                        one.width = x.cols();
                                        ++one.calls;
                                      }
                                    });
  const auto observed = model::load_model(config_, source_, observing, load_);
  const auto plain = model::load_model(config_, source_, cpu_, load_);
  const std::vector<float> with = logits(observing, *observed), without = logits(cpu_, *plain);
  ASSERT_EQ(with.size(), without.size());
  EXPECT_EQ(std::memcmp(with.data(), without.data(), with.size() * sizeof(float)), 0);

  const auto count = static_cast<int64_t>(tokens().size());
  std::map<std::string, int64_t> of_layer;  // rows of all experts of a layer, by projection
  for (const model::LinearUse& use : observed->linears()) {
    const std::string& name = use.linear->name;
    if (use.linear->role == Role::lm_head || use.linear->role == Role::router) continue;
    if (use.per_token == 1) {
      ASSERT_TRUE(seen.contains(name)) << name;
      EXPECT_EQ(seen[name].rows, count) << name;
      EXPECT_EQ(seen[name].calls, 4) << name;  // chunks of 7
      continue;
    }
    const size_t expert = name.find(".experts.");
    of_layer[name.substr(0, expert) + name.substr(name.rfind('.'))] +=
        seen.contains(name) ? seen[name].rows : 0;
  }
  for (const auto& [name, rows] : of_layer) {
    EXPECT_EQ(rows % count, 0) << name;  // top_k rows a token
    EXPECT_GT(rows, 0) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Observe,
                         ::testing::Values("llama_gqa_rope3", "qwen3_norms", "mixtral_window",
                                           "qwen3_moe_sparse", "deepseek_v2_greedy",
                                           "deepseek_v3_groups"));

}  // namespace
}  // namespace octet::golden
