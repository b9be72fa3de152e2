// What a step brings to the device: packing, padding, and steps that share one device buffer.
#include "engine/batch_memory.h"

#include <gmock/gmock.h>

#include "engine/step_bucket.h"
#include "unit/engine/rig.h"

namespace octet::engine {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> ids(const Tensor& tensor) {
  return {tensor.as<int32_t>(), tensor.as<int32_t>() + tensor.count()};
}

constexpr StepLimits kLimits{
    .rows = 16, .sequences = 8, .blocks_per_sequence = 4, .logits_rows = 8, .block_tokens = 16};

TEST(BatchMemory, LaysPartsOutOneAfterAnother) {
  cpu::CpuBackend backend({.threads = 1});
  BatchMemory memory(backend, kLimits);
  const std::vector<int32_t> chunk{7, 8, 9}, one{5};
  const std::vector<int32_t> blocks_a{3, 4, 5}, blocks_b{6, 1};
  const std::vector<SequenceTokens> parts{
      {.tokens = one, .first_position = 20, .blocks = blocks_b, .token_row = 2},
      {.tokens = chunk, .first_position = 0, .blocks = blocks_a, .logits = Wanted::nothing},
      {.tokens = one, .first_position = 1, .blocks = blocks_a}};
  const std::vector<ops::SampleRow> samples{{.temperature = 0.5f}, {.temperature = 0.7f}};
  const StepInputs& inputs = memory.build(parts, samples);
  EXPECT_EQ(inputs.batch.rows, 5);
  EXPECT_EQ(inputs.batch.max_context, 21);
  EXPECT_THAT(ids(inputs.batch.tokens), ElementsAre(0, 7, 8, 9, 5));
  EXPECT_THAT(ids(inputs.batch.positions), ElementsAre(20, 0, 1, 2, 1));
  EXPECT_THAT(ids(inputs.batch.row_sequence), ElementsAre(0, 1, 1, 1, 2));
  EXPECT_THAT(ids(inputs.batch.spans), ElementsAre(0, 1, 20, 1, 3, 0, 4, 1, 1));
  EXPECT_THAT(ids(inputs.batch.logits_rows), ElementsAre(0, 4));
  EXPECT_THAT(ids(inputs.token_rows), ElementsAre(2, -1, -1, -1, -1));
  // As many columns as the longest needs; blocks beyond are left out.
  EXPECT_EQ(inputs.batch.block_table.shape, (Shape{3, 2}));
  EXPECT_THAT(ids(inputs.batch.block_table), ElementsAre(6, 1, 3, 4, 3, 4));
  EXPECT_EQ(inputs.sample_rows.shape, (Shape{2, int64_t{sizeof(ops::SampleRow)}}));
  EXPECT_EQ(inputs.sample_rows.as<ops::SampleRow>()[1].temperature, 0.7f);
}

TEST(BatchMemory, PadsToABucket) {
  cpu::CpuBackend backend({.threads = 1});
  BatchMemory memory(backend, kLimits);
  const std::vector<int32_t> token{5}, blocks{3};
  const std::vector<SequenceTokens> parts(3,
                                          {.tokens = token, .first_position = 9, .blocks = blocks});
  const std::vector<ops::SampleRow> samples(3, {.temperature = 0.5f});
  const StepInputs& inputs = memory.build(parts, samples, {.rows = 5, .max_context = 40});
  EXPECT_EQ(inputs.batch.rows, 5);
  EXPECT_EQ(inputs.batch.sequences.size(), 5U);
  EXPECT_EQ(inputs.batch.max_context, 40);
  EXPECT_THAT(ids(inputs.batch.tokens), ElementsAre(5, 5, 5, 0, 0));
  EXPECT_THAT(ids(inputs.batch.positions), ElementsAre(9, 9, 9, 0, 0));
  EXPECT_THAT(ids(inputs.batch.row_sequence), ElementsAre(0, 1, 2, -1, -1));
  EXPECT_THAT(ids(inputs.batch.spans), ElementsAre(0, 1, 9, 1, 1, 9, 2, 1, 9, 3, 0, 0, 4, 0, 0));
  EXPECT_THAT(ids(inputs.batch.logits_rows), ElementsAre(0, 1, 2, 0, 0));
  EXPECT_THAT(ids(inputs.token_rows), ElementsAre(-1, -1, -1, -1, -1));
  EXPECT_EQ(inputs.batch.block_table.shape, (Shape{5, 3}));
  EXPECT_EQ(inputs.sample_rows.rows(), 5);
  EXPECT_EQ(inputs.sample_rows.as<ops::SampleRow>()[2].temperature, 0.5f);
  EXPECT_EQ(inputs.sample_rows.as<ops::SampleRow>()[4].temperature, 0.0f);
}

TEST(BatchMemory, RefusesWhatItWasNotMadeFor) {
  cpu::CpuBackend backend({.threads = 1});
  BatchMemory memory(backend, kLimits);
  const std::vector<int32_t> tokens(17, 1), blocks{0, 1, 2, 3};
  const auto build = [&](size_t count, int64_t first, const StepPadding& padding = {}) {
    const SequenceTokens part{
        .tokens = std::span(tokens).first(count), .first_position = first, .blocks = blocks};
    memory.build({&part, 1}, {}, padding);
  };
  EXPECT_NO_THROW(build(16, 48));
  EXPECT_THROW(build(17, 0), Fault);
  EXPECT_THROW(build(1, 64), Fault);
  EXPECT_THROW(build(2, 0, {.rows = 4}), Fault);  // only pure decode steps are padded
  EXPECT_THROW(build(1, 0, {.rows = 9}), Fault);
}

// The largest step fits, whatever the order of its tensors.
TEST(BatchMemory, HoldsTheLimits) {
  cpu::CpuBackend backend({.threads = 1});
  const StepLimits limits{
      .rows = 7, .sequences = 7, .blocks_per_sequence = 3, .logits_rows = 7, .block_tokens = 8};
  BatchMemory memory(backend, limits, 2);
  const std::vector<int32_t> token{5}, blocks{1, 2, 3};
  const std::vector<SequenceTokens> parts(
      7, {.tokens = token, .first_position = 23, .blocks = blocks, .token_row = 0});
  const std::vector<ops::SampleRow> samples(7);
  const void* const address = memory.build(parts, samples).batch.block_table.data;
  EXPECT_EQ(memory.build(parts, samples).batch.block_table.data, address);
  EXPECT_EQ(memory.build({&parts[0], 1}, {&samples[0], 1}, {7, 24}).batch.block_table.data,
            address);
}

TEST(StepBucket, RowsAndContextsAreRoundedUp) {
  constexpr StepLimits limits{
      .rows = 512, .sequences = 100, .blocks_per_sequence = 300, .logits_rows = 100};
  std::vector<int64_t> rows;
  for (int64_t n = 1; n <= 100; ++n) {
    const int64_t bucket = bucket_of(n, 1, 0, limits, 20).rows;
    EXPECT_GE(bucket, n);
    if (rows.empty() || rows.back() != bucket) rows.push_back(bucket);
  }
  EXPECT_THAT(rows, ElementsAre(1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 100));
  EXPECT_EQ(bucket_of(1, 1, 0, limits, 20).max_context, 1024);
  EXPECT_EQ(bucket_of(1, 1025, 0, limits, 20).max_context, 2048);
  EXPECT_EQ(bucket_of(1, 4097, 0, limits, 20).max_context, 4800);  // what sequences can hold
  EXPECT_EQ(bucket_of(1, 1, 3, limits, 20).top, 20);
  EXPECT_EQ(bucket_of(1, 1, 17, limits, 20).top, 20);
}

TEST(StepBucket, KeysDiffer) {
  std::set<uint64_t> keys;
  size_t count = 0;
  for (const int64_t rows : {1, 2, 4096})
    for (const int64_t context : {1024, 2048, 1 << 30})
      for (const int32_t top : {0, 1, 1000}) {
        keys.insert(StepBucket{rows, context, top}.key());
        ++count;
      }
  EXPECT_EQ(keys.size(), count);
  EXPECT_FALSE(keys.contains(0));
}

}  // namespace
}  // namespace octet::engine
