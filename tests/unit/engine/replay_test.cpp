// An engine over a backend that replays steps as CUDA graphs are replayed: two steps in flight, and
// a key that came before runs on the tensors of its first time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "unit/engine/rig.h"

namespace octet::engine {
namespace {

// Notes what the operations of a step are given, and that the steps of a key are given the same.
class ReplayingBackend final : public probe::ForwardingBackend {
 public:
  explicit ReplayingBackend(ops::Backend& inner) : ForwardingBackend(inner), info_(inner.info()) {
    info_.launch_depth = 2;
    info_.graphs = true;
  }
  const ops::BackendInfo& info() const override { return info_; }
  void run_step(uint64_t key, FunctionRef<void()> body) override {
    seen_.clear();
    ForwardingBackend::run_step(key, body);
    ++(key == 0 ? eager_ : replayed_);
    if (key == 0) return;
    const auto [found, is_new] = steps_.emplace(key, seen_);
    if (!is_new) {
      EXPECT_EQ(found->second, seen_) << "a replay would use other tensors";
    }
  }

  void embed(const Tensor& table, const Tensor& tokens, const Tensor& out) override {
    note({tokens, out});
    ForwardingBackend::embed(table, tokens, out);
  }
  void take_tokens(const Tensor& sampled, const Tensor& source, const Tensor& tokens) override {
    note({sampled, source, tokens});
    ForwardingBackend::take_tokens(sampled, source, tokens);
  }
  void attention(const Tensor& q, const ops::GqaCache& cache, const ops::Batch& batch,
                 const ops::AttentionSpec& spec, const Tensor& out, const Tensor& lse) override {
    note({q, out, batch.positions, batch.spans, batch.row_sequence, batch.block_table,
          batch.logits_rows});
    seen_.push_back(std::to_string(batch.max_context) + " " +
                    std::to_string(batch.sequences.size()));
    ForwardingBackend::attention(q, cache, batch, spec, out, lse);
  }
  void sample(const Tensor& logits, const Tensor& rows, const ops::LogitEdits& edits,
              const ops::SampleResult& out) override {
    note({logits, rows, out.tokens, out.logprobs, out.ranks});
    ForwardingBackend::sample(logits, rows, edits, out);
  }

  int replayed() const { return replayed_; }
  int eager() const { return eager_; }
  size_t keys() const { return steps_.size(); }

 private:
  void note(std::initializer_list<Tensor> tensors) {
    for (const Tensor& tensor : tensors) {
      seen_.push_back(std::to_string(reinterpret_cast<uintptr_t>(tensor.data)) + " " +
                      to_string(tensor.shape));
    }
  }
  ops::BackendInfo info_;
  std::vector<std::string> seen_;
  std::map<uint64_t, std::vector<std::string>> steps_;
  int replayed_ = 0, eager_ = 0;
};

std::vector<Ended> run_all(const model::Model& model, ops::Backend& backend) {
  Engine engine(model, backend,
                {.max_model_len = 64, .max_num_seqs = 8, .max_num_batched_tokens = 8});
  std::vector<Collector> collectors(7);
  for (int32_t i = 0; i < 7; ++i) {
    GenRequest request = greedy({1 + i, 7, 3, 2 + i}, 5 + 3 * i);
    if (i % 2) request.sampling = {.temperature = 1.0f, .seed = 5, .logprobs = i};
    EXPECT_TRUE(
        engine.submit(std::move(request), collectors[static_cast<size_t>(i)].sink()).accepted());
  }
  std::vector<Ended> all;
  for (Collector& collector : collectors) all.push_back(drain(collector));
  return all;
}

TEST(Replay, GivesTheTokensOfPlainSteps) {
  Rig rig;
  const std::vector<Ended> expected = run_all(*rig.model, rig.cpu);
  ReplayingBackend backend(rig.cpu);
  const std::vector<Ended> found = run_all(*rig.model, backend);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(found[i].tokens.size(), 5U + 3 * i);
    EXPECT_EQ(found[i].tokens, expected[i].tokens) << "request " << i;
    EXPECT_EQ(found[i].last.fault, "");
  }
  EXPECT_GT(backend.eager(), 0);
  EXPECT_GT(backend.replayed(), 10);
  EXPECT_LT(backend.keys(), 20U);
}

TEST(UsualBuckets, AreThoseThatStepsAskFor) {
  const StepLimits limits{.rows = 20,
                          .sequences = 11,
                          .blocks_per_sequence = 200,
                          .logits_rows = 11,
                          .block_tokens = 16};
  const std::vector<StepBucket> usual = usual_buckets(limits, 5);
  for (int64_t rows = 1; rows <= 11; ++rows) {
    for (const int64_t context : {1, 1024, 1025, 3200}) {
      for (const int32_t top : {0, 1, 5}) {
        EXPECT_THAT(usual, testing::Contains(bucket_of(rows, context, top, limits, 5)));
      }
    }
  }
  EXPECT_EQ(usual.size(), 5U * 3 * 2);  // 1, 2, 4, 8, 11 rows; 1024, 2048, 3200 tokens
  EXPECT_EQ(usual_buckets(limits, 0).size(), 5U * 3);
  const StepLimits large{.rows = 4096,
                         .sequences = 4096,
                         .blocks_per_sequence = 8192,
                         .logits_rows = 4096,
                         .block_tokens = 16};
  EXPECT_EQ(usual_buckets(large, 20).size(), kMostUsualBuckets);
}

TEST(Replay, PreparesItsStepsBeforeTheFirstRequest) {
  Rig rig;
  ReplayingBackend backend(rig.cpu);
  size_t prepared = 0;
  {
    Engine engine(*rig.model, backend,
                  {.max_model_len = 64, .max_num_seqs = 8, .max_num_batched_tokens = 8});
    prepared = backend.keys();
    EXPECT_EQ(prepared, 8U);  // 1, 2, 4, 8 rows, without and with log-probabilities
    EXPECT_EQ(backend.replayed(), 16);
    Collector collector;
    EXPECT_TRUE(engine.submit(greedy({3, 4, 5}, 9), collector.sink()).accepted());
    EXPECT_EQ(drain(collector).tokens.size(), 9U);
  }
  EXPECT_EQ(backend.keys(), prepared) << "a step was captured while a request waited";
}

}  // namespace
}  // namespace octet::engine
