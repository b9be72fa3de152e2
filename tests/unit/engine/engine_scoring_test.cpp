// Log-probabilities of prompt tokens, in bounded chunks: the bits of a session, each token once.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "engine/session.h"
#include "unit/engine/rig.h"

namespace octet::engine {
namespace {

using Tokens = std::vector<int32_t>;

Tokens prompt_of(int length, int seed = 0) {
  Tokens ids(static_cast<size_t>(length));
  for (int i = 0; i < length; ++i) ids[static_cast<size_t>(i)] = (7 * i + 3 + 11 * seed) % 100 + 3;
  return ids;
}

// What is known of a prompt's tokens, from the logits of a session: by the sampling operation, one
// row at a time, and checked against the definition in double precision.
std::vector<SampledToken> by_hand(Rig& rig, const Tokens& prompt, int64_t top) {
  Session session(*rig.model, rig.cpu, {.max_tokens = 64});
  std::vector<SampledToken> out;
  session.extend(0, prompt, Wanted::all, [&](int64_t first, const Tensor& logits) {
    for (int64_t row = 0; row < logits.shape[0]; ++row) {
      const auto next = static_cast<size_t>(first + row + 1);
      if (next == prompt.size()) break;
      const Tensor one = logits.slice(row, 1);
      ops::SampleRow how{.forced = prompt[next]};
      SampledToken token;
      Tokens ids(static_cast<size_t>(top));
      std::vector<float> logprobs(static_cast<size_t>(top));
      ops::SampleResult result;
      result.tokens = Tensor(&token.token, DType::i32, {1});
      result.logprobs = Tensor(&token.logprob, DType::f32, {1});
      result.ranks = Tensor(&token.rank, DType::i32, {1});
      result.top_tokens = Tensor(ids.data(), DType::i32, {1, top});
      result.top_logprobs = Tensor(logprobs.data(), DType::f32, {1, top});
      rig.cpu.sample(one, Tensor(&how, DType::u8, {1, sizeof(how)}), {}, result);
      for (size_t k = 0; k < ids.size(); ++k) token.top.push_back({ids[k], logprobs[k]});
      double sum = 0.0;
      for (int64_t i = 0; i < one.cols(); ++i) sum += std::exp(double{one.as<float>()[i]});
      EXPECT_NEAR(token.logprob, double{one.as<float>()[prompt[next]]} - std::log(sum), 1e-5);
      out.push_back(token);
    }
  });
  return out;
}

void expect_same_bits(const std::vector<SampledToken>& got, const std::vector<SampledToken>& want,
                      size_t top) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(got[i].token, want[i].token);
    EXPECT_EQ(std::bit_cast<uint32_t>(got[i].logprob), std::bit_cast<uint32_t>(want[i].logprob));
    EXPECT_EQ(got[i].rank, want[i].rank);
    ASSERT_EQ(got[i].top.size(), top);
    for (size_t k = 0; k < top; ++k) {
      EXPECT_EQ(got[i].top[k].token, want[i].top[k].token);
      EXPECT_EQ(std::bit_cast<uint32_t>(got[i].top[k].logprob),
                std::bit_cast<uint32_t>(want[i].top[k].logprob));
    }
  }
}

struct Scored {
  std::vector<SampledToken> prompt;
  Ended end;
};

// All events; the prompt's come before the first output token.
Scored drain_scored(Collector& collector) {
  Scored all;
  while (std::optional<TokenEvent> event = collector.next(std::chrono::seconds(60))) {
    EXPECT_TRUE(event->prompt.empty() || all.end.tokens.empty());
    for (SampledToken& token : event->prompt) all.prompt.push_back(std::move(token));
    for (const SampledToken& token : event->tokens) all.end.tokens.push_back(token.token);
    if (!event->finish && event->fault.empty()) continue;
    all.end.last = std::move(*event);
    break;
  }
  return all;
}

// Among requests that are not scored, cut in every way, and preempted.
TEST(EngineScoring, GivesTheBitsOfASession) {
  for (const char* name : {"llama_mha", "deepseek_v3_groups"}) {
    SCOPED_TRACE(name);
    Rig rig(name);
    std::vector<std::vector<SampledToken>> want;
    for (int i = 0; i < 6; ++i) want.push_back(by_hand(rig, prompt_of(1 + 8 * i, i), 3));
    struct Way {
      int32_t batched, chunk, scored;
      int64_t kv_bytes;
    };
    const int64_t block = kv_layout_of(*rig.model, model::KvType::automatic, 4).bytes_per_block();
    for (const Way& way : {Way{64, 0, 128, 0}, Way{9, 0, 3, 0}, Way{16, 5, 4, 0},
                           Way{24, 0, 7, 15 * block}, Way{512, 0, 1, 0}}) {
      SCOPED_TRACE(way.scored);
      Engine engine(*rig.model, rig.backend,
                    {.max_num_seqs = 4,
                     .max_num_batched_tokens = way.batched,
                     .max_chunk = way.chunk,
                     .block_tokens = 4,
                     .kv_cache_bytes = way.kv_bytes,
                     .max_scored_tokens = way.scored,
                     .check_every_step = true});
      std::vector<Collector> scored(6), plain(6);
      rig.backend.hold();
      for (int i = 0; i < 6; ++i) {
        GenRequest request = greedy(prompt_of(1 + 8 * i, i), 14);
        ASSERT_TRUE(engine.submit(request, plain[static_cast<size_t>(i)].sink()).accepted());
        request.prompt_logprobs = i % 4;
        ASSERT_TRUE(engine.submit(request, scored[static_cast<size_t>(i)].sink()).accepted());
      }
      rig.backend.let_go();
      for (size_t i = 0; i < 6; ++i) {
        SCOPED_TRACE(i);
        const Scored got = drain_scored(scored[i]);
        expect_same_bits(got.prompt, want[i], i % 4);
        const Scored other = drain_scored(plain[i]);
        EXPECT_TRUE(other.prompt.empty());
        EXPECT_EQ(got.end.tokens, other.end.tokens);
        EXPECT_EQ(got.end.tokens.size(), 14u);
        EXPECT_EQ(got.end.last.cached_tokens, 0);  // a hit would bring no logits
      }
      engine.stop();
      if (way.kv_bytes > 0) {
        EXPECT_GT(engine.stats().scheduler.preemptions, 0);
      }
    }
  }
}

// A scored prompt leaves its blocks to others, and the memory of its logits does not grow with it.
TEST(EngineScoring, LeavesItsPrefixAndTakesBoundedMemory) {
  Rig rig;
  Engine engine(*rig.model, rig.backend, {.max_num_batched_tokens = 512});
  Collector first, second;
  GenRequest request = greedy(prompt_of(60), 1);
  request.prompt_logprobs = 0;
  ASSERT_TRUE(engine.submit(request, first.sink()).accepted());
  EXPECT_EQ(drain_scored(first).prompt.size(), 59u);
  request.prompt_logprobs = -1;
  ASSERT_TRUE(engine.submit(request, second.sink()).accepted());
  EXPECT_EQ(drain_scored(second).end.last.cached_tokens, 48);
  // What 96 rows more of results take, is counted.
  Engine fewer(*rig.model, rig.backend, {.max_num_batched_tokens = 512, .max_scored_tokens = 32});
  EXPECT_GE(engine.ledger().steps - fewer.ledger().steps, 96 * (3 + 2 * 20) * 4);
  EXPECT_LT(engine.ledger().steps - fewer.ledger().steps, 2 * 96 * (3 + 2 * 20) * 4);
}

}  // namespace
}  // namespace octet::engine
