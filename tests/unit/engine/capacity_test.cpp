// Memory by arithmetic: what is measured without a device is what a step takes.
#include "engine/capacity.h"

#include <gtest/gtest.h>

#include <numeric>

#include "unit/engine/rig.h"

namespace octet::engine {
namespace {

class Capacity : public ::testing::TestWithParam<const char*> {};

// The arena of arena_bytes() is just large enough for the largest step, in one sequence or many.
TEST_P(Capacity, ArenaIsExact) {
  Rig rig(GetParam());
  constexpr int64_t block = 16, table = 3;
  const StepLimits limits{
      .rows = 24, .sequences = 6, .blocks_per_sequence = table, .logits_rows = 6};
  const ops::KvLayout layout = kv_layout_of(*rig.model, model::KvType::automatic, block);
  const model::KvStore kv(rig.backend, layout, 6 * table, rig.model->kv_scales());
  const size_t bytes = arena_bytes(*rig.model, layout, limits);

  std::vector<int32_t> blocks(6 * table), tokens(24, 5);
  std::iota(blocks.begin(), blocks.end(), 0);
  for (const size_t sequences : {1, 2, 6}) {
    SCOPED_TRACE(sequences);
    const size_t rows = tokens.size() / sequences;
    std::vector<SequenceTokens> parts;
    for (size_t i = 0; i < sequences; ++i) {
      parts.push_back({.tokens = std::span(tokens).subspan(i * rows, rows),
                       .blocks = std::span(blocks).subspan(i * table, table),
                       .logits = Wanted::last});
    }
    BatchMemory memory(rig.backend, limits);
    Arena arena(rig.backend.alloc(bytes, "activations"));
    const ops::Batch& batch = memory.build(parts).batch;
    const Tensor logits = rig.model->forward({rig.backend, arena, kv, batch});
    EXPECT_EQ(logits.shape, (Shape{static_cast<int64_t>(sequences), rig.model->config().vocab}));
    EXPECT_LE(arena.peak(), bytes);
  }
  // With all logits rows there are, to the byte.
  std::vector<SequenceTokens> parts;
  for (size_t i = 0; i < 6; ++i) {
    parts.push_back({.tokens = std::span(tokens).subspan(i * 4, 4),
                     .blocks = std::span(blocks).subspan(i * table, table),
                     .logits = Wanted::last});
  }
  BatchMemory memory(rig.backend, limits);
  Arena arena(rig.backend.alloc(bytes, "activations"));
  rig.model->forward({rig.backend, arena, kv, memory.build(parts).batch});
  EXPECT_EQ(arena.peak(), bytes);
}

INSTANTIATE_TEST_SUITE_P(Models, Capacity,
                         ::testing::Values("llama_mha", "llama_gqa_rope3", "deepseek_v3_groups",
                                           "deepseek_v2_greedy"));

TEST(KvBlocks, AreAsManyAsAllSequencesCanUse) {
  const Rig rig;
  const ops::KvLayout layout = kv_layout_of(*rig.model, model::KvType::automatic, 16);
  const int64_t bytes = layout.bytes_per_block();
  const auto blocks = [&](int64_t length, int64_t seqs, int64_t asked, int64_t most) {
    return kv_blocks({layout, length, seqs, asked, most});
  };
  EXPECT_EQ(blocks(64, 8, 0, 0), 32);             // what is free is not known
  EXPECT_EQ(blocks(65, 8, 0, 0), 40);             // part of a block is a block
  EXPECT_EQ(blocks(64, 8, 0, bytes * 1000), 32);  // more than enough
  EXPECT_EQ(blocks(64, 8, 0, bytes * 10), 10);    // the most that it may take
  EXPECT_EQ(blocks(64, 8, 0, bytes), 4);          // but one whole sequence
  EXPECT_EQ(blocks(64, 8, 0, 1), 4);
  EXPECT_EQ(blocks(64, 8, bytes * 7 + bytes / 2, 1), 7);  // what was asked for
  EXPECT_EQ(blocks(int64_t{1} << 40, 4096, 0, 0), std::numeric_limits<int32_t>::max());
  EXPECT_THROW(blocks(64, 8, bytes - 1, 0), Error);
}

TEST(KvBudget, IsAQuarterOfTheHostAndTheRestOfAGpu) {
  constexpr int64_t gib = int64_t{1} << 30;
  const Ledger rest{.owned_weights = 20 * gib, .arena = 2 * gib, .workspace = gib, .reserve = gib};
  EXPECT_EQ(kv_budget({}, 0.9, rest), 0);
  EXPECT_EQ(kv_budget({.memory_bytes = 8 * gib}, 0.9, rest), 2 * gib);
  // 100 GiB of which 4 were in use and 1 is the workspace: half of it is for this process.
  const ops::BackendInfo gpu{
      .memory_bytes = 95 * gib, .total_bytes = 100 * gib, .workspace_bytes = gib};
  EXPECT_EQ(kv_budget(gpu, 0.5, rest), 22 * gib);
  EXPECT_EQ(kv_budget(gpu, 1.0, rest), 72 * gib);
  EXPECT_THROW(kv_budget(gpu, 0.2, rest), Error);
}

TEST(Ledger, AddsUpAndPrints) {
  const Ledger ledger{.mapped_weights = 1 << 20,
                      .owned_weights = 2 << 20,
                      .arena = 3 << 20,
                      .kv = 4 << 20,
                      .kv_tokens = 77};
  EXPECT_EQ(ledger.total(), 10 << 20);
  const std::string text = to_string(ledger);
  EXPECT_NE(text.find("KV cache, 77 tokens"), std::string::npos) << text;
  EXPECT_NE(text.find("10.0 MiB"), std::string::npos) << text;
}

TEST(Ledger, IsOfTheEngine) {
  Rig rig;
  const Engine engine(*rig.model, rig.backend, {.max_num_seqs = 2, .kv_cache_bytes = 1 << 20});
  EXPECT_LE(engine.ledger().kv, 1 << 20);
  EXPECT_GT(engine.ledger().kv, 0);
  EXPECT_GT(engine.ledger().arena, 0);
  EXPECT_EQ(engine.ledger().kv_tokens % 16, 0);
}

TEST(Capacity, HostMemoryIsCountedBeforeItIsUsed) {
  ops::BackendInfo info;
  info.memory_bytes = 1 << 20;
  require_host_memory(info, (1 << 20) - 512, 512);
  EXPECT_THROW(require_host_memory(info, 1 << 20, 512), Error);
  info.total_bytes = 2 << 20;  // a device refuses by itself
  require_host_memory(info, 1 << 30, 512);
}

}  // namespace
}  // namespace octet::engine
