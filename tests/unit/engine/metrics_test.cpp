// The numbers of requests, and of what is written to the KV cache.
#include "engine/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "backends/cpu/cpu_backend.h"
#include "numerics/fp8.h"
#include "numerics/half.h"

namespace octet::engine {
namespace {

using testing::Each;
using testing::ElementsAre;

TEST(Histogram, CountsWhatIsAtMostEachBound) {
  static constexpr double bounds[] = {1, 2, 5};
  Histogram histogram(bounds);
  for (const double value : {0.5, 1.0, 1.5, 2.0, 5.0, 6.0, 1e9}) histogram.add(value);
  const Histogram::View view = histogram.view();
  EXPECT_THAT(view.at_most, ElementsAre(2, 4, 5, 7));
  EXPECT_EQ(view.sum, 16 + 1e9);
}

// The slow, obvious count: every earlier place is compared.
int64_t repeated(const std::vector<int32_t>& tokens) {
  int64_t count = 0;
  for (size_t end = 4; end <= tokens.size(); ++end) {
    for (size_t other = 4; other < end; ++other) {
      if (std::equal(tokens.begin() + static_cast<ptrdiff_t>(end) - 4,
                     tokens.begin() + static_cast<ptrdiff_t>(end),
                     tokens.begin() + static_cast<ptrdiff_t>(other) - 4)) {
        ++count;
        break;
      }
    }
  }
  return count;
}

TEST(RepetitionCount, IsTheShareThatWasSaidBefore) {
  const auto counted = [](const std::vector<int32_t>& tokens) {
    RepetitionCount count;
    return std::ranges::count_if(tokens, [&](int32_t token) { return count.add(token); });
  };
  EXPECT_EQ(counted({1, 2, 3, 4, 5, 6, 7, 8}), 0);
  EXPECT_EQ(counted({1, 2, 3, 4, 1, 2, 3, 4}), 1);
  EXPECT_EQ(counted(std::vector<int32_t>(20, 7)), 16);
  uint32_t state = 1;  // words of a small vocabulary, so that some sequences come again
  std::vector<int32_t> tokens;
  for (int i = 0; i < 600; ++i) {
    state = state * 1664525 + 1013904223;
    tokens.push_back(static_cast<int32_t>(state >> 24) % 5);
  }
  EXPECT_GT(repeated(tokens), 100);
  // Hashes that collide push one another out, or are taken for equal; hardly ever.
  EXPECT_NEAR(static_cast<double>(counted(tokens)), static_cast<double>(repeated(tokens)), 12);
}

TokenEvent tokens_event(std::vector<int32_t> tokens) {
  TokenEvent event;
  event.prompt_tokens = 10;
  for (const int32_t token : tokens) event.tokens.push_back({.token = token});
  return event;
}

TEST(RequestMetrics, EveryRequestEndsInExactlyOneWay) {
  RequestMetrics metrics;
  int events = 0;
  const auto run = [&](int steps, std::optional<sched::Finish> finish, const std::string& fault) {
    const EventSink sink =
        metrics.observe([&](TokenEvent) { ++events; }, RequestMetrics::Clock::now());
    for (int i = 0; i < steps; ++i) sink(tokens_event({5}));
    TokenEvent last;
    last.prompt_tokens = 10;
    last.output_tokens = steps;
    last.finish = finish;
    last.fault = fault;
    last.timing = {.queue_s = 1, .prefill_s = 2, .decode_s = 4, .total_s = 7};
    sink(last);
  };
  run(3, sched::Finish::stop, "");
  run(20, sched::Finish::length, "");
  run(0, sched::Finish::cancelled, "");  // while it waited
  run(2, sched::Finish::timeout, "");
  run(1, sched::Finish::error, "");
  run(1, std::nullopt, "the device is gone");
  std::vector<uint64_t> ended;
  for (const auto& count : metrics.ended) ended.push_back(count);
  EXPECT_THAT(ended, ElementsAre(1, 1, 1, 1, 2));
  EXPECT_EQ(events, 3 + 20 + 0 + 2 + 1 + 1 + 6) << "the sink gets all";
  const auto count_of = [](const Histogram& histogram) { return histogram.view().at_most.back(); };
  EXPECT_EQ(count_of(metrics.whole_request), 6U);
  EXPECT_EQ(count_of(metrics.time_to_first_token), 5U);
  EXPECT_EQ(count_of(metrics.inter_token), 2U + 19 + 1);
  EXPECT_EQ(count_of(metrics.queue), 5U);
  EXPECT_EQ(metrics.queue.view().sum, 5);
  EXPECT_EQ(metrics.inference.view().sum, 5 * 6);
  EXPECT_EQ(count_of(metrics.repetition), 1U) << "of the only one that is long enough";
  EXPECT_EQ(metrics.generated_tokens_total, 27U);
  EXPECT_EQ(metrics.prompt_tokens_total, 50U);
  EXPECT_EQ(metrics.repeated_tokens_total, 16U);
}

class KvProbeTest : public testing::TestWithParam<DType> {
 protected:
  static constexpr int64_t kBlocks = 3, kTokens = 4, kHeads = 2, kDim = 8;

  static ops::KvLayout layout(int layers) {
    ops::KvLayerFormat layer;
    layer.kv_heads = kHeads;
    layer.head_dim = kDim;
    layer.type = GetParam();
    layer.scaling = ops::KvScaling::groups;
    ops::KvLayout layout{.block_tokens = kTokens, .layers = {}};
    layout.layers.assign(static_cast<size_t>(layers), layer);
    return layout;
  }

  static void put(const Tensor& tensor, int64_t at, float value) {
    if (tensor.type == DType::e4m3) tensor.as<uint8_t>()[at] = fp8_encode<Code::e4m3>(value);
    if (tensor.type == DType::e5m2) tensor.as<uint8_t>()[at] = fp8_encode<Code::e5m2>(value);
    if (tensor.type == DType::bf16) tensor.as<bf16>()[at] = to_bf16(value);
  }

  // A step after which position 5 is the last one that is known: block 0 of the sequence is full.
  static sched::StepPlan plan() {
    sched::StepPlan plan;
    plan.slices.push_back({.seq = 1, .first = 5, .count = 1, .blocks = {2, 0}});
    return plan;
  }
};

TEST_P(KvProbeTest, CountsABlockOfEachLayerInTurn) {
  constexpr int layers = 20;  // more than there are groups
  cpu::CpuBackend backend;
  const model::KvStore kv(backend, layout(layers), kBlocks);
  kv.poison(backend, 0xFF);  // NaN, everywhere but where something was written
  const int64_t per_block = kTokens * kHeads * kDim;
  for (int layer = 0; layer < layers; ++layer) {
    const ops::GqaCache& cache = kv.gqa(layer);
    for (int64_t i = 0; i < per_block; ++i) put(cache.k, 2 * per_block + i, 1.0f);
    for (int64_t i = 0; i < per_block; ++i) put(cache.v, 2 * per_block + i, 0.5f);
    put(cache.k, 2 * per_block + 3, 1e9f);
    put(cache.k, 2 * per_block + 4, -1e9f);
    put(cache.v, 2 * per_block + 5, 0.0f);
    put(cache.v, 2 * per_block + 6, -0.0f);
    if (layer == 7) put(cache.v, 2 * per_block + 7, NAN);
    if (!cache.k_scale) continue;
    cache.k_scale.as<float>()[2 * kHeads] = 0.25f;
    cache.k_scale.as<float>()[2 * kHeads + 1] = static_cast<float>(layer);
    cache.v_scale.as<float>()[2 * kHeads] = cache.v_scale.as<float>()[2 * kHeads + 1] = 8;
  }
  KvProbe probe(backend, kv);
  EXPECT_EQ(probe.numbers().front().values, 0U);
  for (int i = 0; i < KvProbe::kSteps * (layers + 1); ++i) probe.after(plan());

  const std::vector<KvNumbers> groups = probe.numbers();
  ASSERT_EQ(groups.size(), 2U * layers / 2);
  const bool fp8 = is_fp8(GetParam());
  uint64_t not_finite = 0;
  for (const KvNumbers& group : groups) {
    const bool is_k = group.part == "k";
    EXPECT_EQ(group.last_layer, group.first_layer + 1);
    EXPECT_EQ(group.values, 2U * static_cast<uint64_t>(per_block));
    EXPECT_EQ(group.saturated, fp8 && is_k ? 4U : 0U);
    EXPECT_EQ(group.zeros, is_k ? 0U : 4U);
    not_finite += group.not_finite;
    if (!fp8) continue;
    EXPECT_EQ(group.scale, is_k ? group.last_layer : 8) << "of the block, not of the poison";
    EXPECT_EQ(group.range_used, is_k ? 1 : 0.5 / (GetParam() == DType::e4m3 ? 448.0 : 57344.0));
  }
  EXPECT_EQ(not_finite, 1U);
}

TEST_P(KvProbeTest, LeavesBlocksAloneThatAreNotFull) {
  cpu::CpuBackend backend;
  const model::KvStore kv(backend, layout(2), kBlocks);
  KvProbe probe(backend, kv);
  sched::StepPlan plan;
  plan.slices.push_back({.seq = 1, .first = 0, .count = 3, .blocks = {1}});
  for (int i = 0; i < KvProbe::kSteps * 4; ++i) probe.after(plan);
  for (const KvNumbers& group : probe.numbers()) EXPECT_EQ(group.values, 0U);
}

INSTANTIATE_TEST_SUITE_P(Types, KvProbeTest, testing::Values(DType::e4m3, DType::e5m2, DType::bf16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

}  // namespace
}  // namespace octet::engine
