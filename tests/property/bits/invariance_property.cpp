// One request, many ways to compute it: the same tokens and log-probabilities to the last bit,
// whatever else is in the batch, however the prompt is cut, whatever the cache held before and
// however many threads compute.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "backends/cpu/cpu_backend.h"
#include "base/philox.h"
#include "engine/capacity.h"
#include "engine/engine.h"
#include "engine/session.h"
#include "numerics/scheme.h"

namespace octet {
namespace {

const std::string kRoot = OCTET_SOURCE_DIR;

struct Subject {
  const char* name;
  const char* folder;
  const char* scheme;
  const char* kernels;
  int prompt_len;           // of the request under test
  int group_tokens = 1024;  // that share a scale of the cache
  model::KvType cache = model::KvType::automatic;
};

// The tiny Qwens and Mixtral have windows in some layers or in all, far shorter than the prompt,
// and heads of sizes that no vector divides. The demo model is MLA and a mixture of experts; the
// tiny Llama is GQA, with no size that is a multiple of a block of scales and a reduction of more
// than 128.
constexpr Subject kSubjects[] = {
    {"demo_channel", "/models/octet-demo", "fp8_channel", "auto", 90},
    {"demo_block", "/models/octet-demo", "fp8_block", "auto", 90},
    {"demo_block_portable", "/models/octet-demo", "fp8_block", "portable", 40},
    {"demo_channel_exact", "/models/octet-demo", "fp8_channel", "exact", 40},
    {"llama_block", "/tests/golden/llama_gqa_rope3", "fp8_block", "auto", 90},
    {"llama_channel", "/tests/golden/llama_gqa_rope3", "fp8_channel", "auto", 90},
    {"mixtral_block", "/tests/golden/mixtral_window", "fp8_block", "auto", 40},
    {"qwen2_channel", "/tests/golden/qwen2_window", "fp8_channel", "auto", 40},
    {"qwen3_channel", "/tests/golden/qwen3_layer_types", "fp8_channel", "auto", 40},
    {"qwen3_moe_exact", "/tests/golden/qwen3_moe_window", "fp8_channel", "exact", 40},
    {"deepseek_yarn", "/tests/golden/deepseek_v2_greedy", "fp8_block", "auto", 40},
    {"llama_channel_exact", "/tests/golden/llama_gqa_rope3", "fp8_channel", "exact", 90},
    // The prompt goes over the borders of groups, whose scales are not those before.
    {"llama_groups", "/tests/golden/llama_gqa_rope3", "fp8_channel", "auto", 90, 32},
    {"llama_groups_portable", "/tests/golden/llama_gqa_rope3", "fp8_block", "portable", 90, 16},
    {"mixtral_groups_exact", "/tests/golden/mixtral_window", "fp8_channel", "exact", 40, 16},
    // Each token and head by a scale of its own.
    {"llama_token_heads", "/tests/golden/llama_gqa_rope3", "fp8_channel", "auto", 90, 1024,
     model::KvType::fp8_token_heads},
    {"qwen2_token_heads_int8", "/tests/golden/qwen2_window", "fp8_channel", "auto", 40, 1024,
     model::KvType::int8_token_heads},
    {"deepseek_v3_int8", "/tests/golden/deepseek_v3_groups", "fp8_channel", "auto", 40, 1024,
     model::KvType::int8_token_groups},
};

// What must not change: ids, and the bits of every reported log-probability.
struct Outcome {
  std::vector<int32_t> ids;
  std::vector<uint32_t> bits;
  int32_t cached = 0;
  bool same_as(const Outcome& other) const { return ids == other.ids && bits == other.bits; }
};

class Bits : public ::testing::TestWithParam<Subject> {
 protected:
  static constexpr int kOutput = 12, kTop = 5, kMaxTokens = 160;

  Bits() : backend_(make_backend(2)), model_(load(*backend_)) {}

  static std::unique_ptr<cpu::CpuBackend> make_backend(int threads) {
    return std::make_unique<cpu::CpuBackend>(
        cpu::CpuOptions{.threads = threads, .kernels = GetParam().kernels});
  }
  static std::unique_ptr<model::Model> load(ops::Backend& backend) {
    return load(backend, GetParam().group_tokens);
  }
  static std::unique_ptr<model::Model> load(ops::Backend& backend, int64_t group_tokens) {
    const std::string folder = kRoot + GetParam().folder;
    model::LoadOptions options{.compute = model::Compute::fp8,
                               .online = scheme_named(GetParam().scheme).format,
                               .fp8_attention = GetParam().cache == model::KvType::automatic ||
                                                model::is_fp8(GetParam().cache),
                               .kv_group_tokens = group_tokens};
    model::ModelConfig config = model::read_config(folder);
    config.max_positions = std::max<int64_t>(config.max_positions, kMaxTokens);
    return model::load_model(config, std::make_shared<model::Checkpoint>(folder), backend, options);
  }

  std::vector<int32_t> prompt(uint64_t seed, int length) const {
    Philox random(seed);
    std::vector<int32_t> ids;
    for (int i = 0; i < length; ++i) {
      ids.push_back(
          static_cast<int32_t>(random.bits() % static_cast<uint32_t>(model_->config().vocab)));
    }
    return ids;
  }
  std::vector<int32_t> request() const { return prompt(1, GetParam().prompt_len); }

  static engine::EngineOptions options() {
    engine::EngineOptions options;
    options.max_model_len = kMaxTokens;
    options.max_num_seqs = 8;
    options.max_num_batched_tokens = 128;
    options.max_logprobs = kTop;
    options.kv_type = GetParam().cache;
    return options;
  }

  // Submits all at once. Request i draws with seed i, at a temperature where the order of nearly
  // equal tokens matters.
  std::vector<Outcome> run(engine::Engine& engine,
                           const std::vector<std::vector<int32_t>>& prompts) const {
    std::vector<engine::Collector> collectors(prompts.size());
    std::vector<Outcome> outcomes(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      engine::GenRequest request;
      request.prompt = prompts[i];
      request.max_tokens = kOutput;
      request.ignore_eos = true;
      request.sampling = {.temperature = 0.8f, .seed = i, .logprobs = kTop};
      EXPECT_TRUE(engine.submit(std::move(request), collectors[i].sink()).accepted());
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      for (bool done = false; !done;) {
        const auto event = collectors[i].next(std::chrono::minutes(5));
        if (!event || !event->fault.empty()) {
          ADD_FAILURE() << (event ? event->fault : "the engine does not answer");
          return outcomes;
        }
        for (const engine::SampledToken& token : event->tokens) {
          outcomes[i].ids.push_back(token.token);
          outcomes[i].bits.push_back(std::bit_cast<uint32_t>(token.logprob));
          for (const engine::TopToken& top : token.top) {
            outcomes[i].bits.push_back(static_cast<uint32_t>(top.token));
            outcomes[i].bits.push_back(std::bit_cast<uint32_t>(top.logprob));
          }
        }
        outcomes[i].cached = event->cached_tokens;
        done = event->finish.has_value();
      }
    }
    return outcomes;
  }
  Outcome run_alone(const engine::EngineOptions& options) {
    engine::Engine engine(*model_, *backend_, options);
    return run(engine, {request()})[0];
  }

  // All logits of the request's prompt and of a few decoded tokens.
  std::vector<uint8_t> logits_of(ops::Backend& backend, const model::Model& model, int64_t chunk,
                                 std::optional<uint8_t> poison) const {
    engine::Session session(model, backend, {.max_tokens = kMaxTokens, .chunk = chunk});
    if (poison) session.kv().poison(backend, *poison);
    std::vector<uint8_t> bytes;
    const auto keep = [&](const Tensor& logits) {
      const auto* data = logits.as<uint8_t>();
      bytes.insert(bytes.end(), data, data + logits.bytes());
    };
    session.extend(0, request(), engine::Wanted::all,
                   [&](int64_t, const Tensor& logits) { keep(logits); });
    for (const int32_t token : prompt(2, 3)) keep(session.decode({&token, 1}));
    return bytes;
  }

  std::unique_ptr<cpu::CpuBackend> backend_;
  std::unique_ptr<model::Model> model_;
};

TEST_P(Bits, AloneAndInABatchOfSeven) {
  const Outcome alone = run_alone(options());
  ASSERT_EQ(alone.ids.size(), size_t{kOutput});
  engine::Engine engine(*model_, *backend_, options());
  std::vector<std::vector<int32_t>> prompts{request()};
  for (uint64_t i = 1; i < 7; ++i) prompts.push_back(prompt(10 + i, static_cast<int>(5 + 17 * i)));
  EXPECT_TRUE(run(engine, prompts)[0].same_as(alone));
}

TEST_P(Bits, HoweverThePromptIsChunked) {
  const Outcome whole = run_alone(options());
  for (const int chunk : {1, 7, 64}) {
    SCOPED_TRACE(chunk);
    engine::EngineOptions chunked = options();
    chunked.max_chunk = chunk;
    EXPECT_TRUE(run_alone(chunked).same_as(whole));
  }
}

TEST_P(Bits, AfterAPrefixOfAnotherRequest) {
  engine::EngineOptions uncached = options();
  uncached.enable_prefix_caching = false;
  const Outcome fresh = run_alone(uncached);
  EXPECT_EQ(fresh.cached, 0);
  engine::Engine engine(*model_, *backend_, options());
  // Another request begins alike, goes on differently, and leaves its blocks in the prefix tree.
  std::vector<int32_t> other = request();
  other.resize(other.size() / 2);
  const std::vector<int32_t> tail = prompt(3, 20);
  other.insert(other.end(), tail.begin(), tail.end());
  run(engine, {other});
  const Outcome hit = run(engine, {request()})[0];
  EXPECT_GT(hit.cached, 0);
  EXPECT_TRUE(hit.same_as(fresh));
  // And once more, when all of its own prompt is there.
  EXPECT_TRUE(run(engine, {request()})[0].same_as(fresh));
}

// Else the subjects with small groups would prove nothing.
TEST_P(Bits, GroupsOfAnotherSizeGiveOtherBits) {
  constexpr int usual = 1024;
  if (GetParam().group_tokens == usual) GTEST_SKIP();
  const auto with_usual = load(*backend_, usual);
  EXPECT_TRUE(logits_of(*backend_, *with_usual, 64, std::nullopt) !=
              logits_of(*backend_, *model_, 64, std::nullopt));
}

TEST_P(Bits, PoisonedPagesChangeNothing) {
  const std::vector<uint8_t> clean = logits_of(*backend_, *model_, 64, std::nullopt);
  // 0xFF is NaN in every format of the cache, 0x7F is NaN in E4M3 and huge in the others.
  for (const uint8_t byte : {0xFF, 0x7F}) {
    SCOPED_TRACE(int{byte});
    EXPECT_TRUE(logits_of(*backend_, *model_, 64, byte) == clean);
    EXPECT_TRUE(logits_of(*backend_, *model_, 7, byte) == clean);
  }
}

// In the engine: blocks that nobody uses are full of NaN, in a pool so small that they are used
// again and again, by prompts that share a beginning.
TEST_P(Bits, UnusedBlocksFullOfNanChangeNothing) {
  std::vector<std::vector<int32_t>> prompts{request(), prompt(5, 30), request(), prompt(6, 50)};
  prompts[2].resize(prompts[2].size() / 2);
  const std::vector<int32_t> tail = prompt(3, 20);
  prompts[2].insert(prompts[2].end(), tail.begin(), tail.end());
  engine::EngineOptions small = options();
  small.max_num_seqs = 3;
  small.kv_cache_bytes =
      12 * engine::kv_layout_of(*model_, small.kv_type, small.block_tokens).bytes_per_block();
  const auto outcomes = [&](std::optional<uint8_t> byte) {
    small.poison_free_blocks = byte;
    engine::Engine engine(*model_, *backend_, small);
    std::vector<Outcome> all = run(engine, prompts);
    for (Outcome& outcome : run(engine, prompts)) all.push_back(outcome);
    return all;
  };
  const std::vector<Outcome> clean = outcomes(std::nullopt);
  for (const uint8_t byte : {0xFF, 0x7F}) {
    SCOPED_TRACE(int{byte});
    const std::vector<Outcome> poisoned = outcomes(byte);
    for (size_t i = 0; i < clean.size(); ++i) EXPECT_TRUE(poisoned[i].same_as(clean[i])) << i;
  }
}

TEST_P(Bits, OnAnyNumberOfThreads) {
  const std::vector<uint8_t> two = logits_of(*backend_, *model_, 64, std::nullopt);
  for (const int threads : {1, 3}) {
    SCOPED_TRACE(threads);
    const auto backend = make_backend(threads);
    const auto model = load(*backend);
    EXPECT_TRUE(logits_of(*backend, *model, 64, std::nullopt) == two);
  }
}

// Experts that get no token in one batch and some in another: the token's own result is the same.
TEST_P(Bits, ExpertsWithoutATokenChangeNothing) {
  if (!std::holds_alternative<model::MoeFfn>(model_->config().ffn)) GTEST_SKIP();
  const std::vector<int32_t> ids = request();
  engine::Session alone(*model_, *backend_, {.max_tokens = 16, .chunk = 1});
  engine::Session crowd(*model_, *backend_, {.sequences = 16, .max_tokens = 16, .chunk = 1});
  for (size_t step = 0; step < 2; ++step) {
    std::vector<int32_t> tokens(ids.begin(), ids.begin() + 16);
    tokens[5] = ids[20 + step];
    const Tensor one = alone.decode({&ids[20 + step], 1});
    const std::vector<float> kept(one.as<float>(), one.as<float>() + one.count());
    const Tensor all = crowd.decode(tokens);
    EXPECT_EQ(0, std::memcmp(all.slice(5, 1).data, kept.data(), kept.size() * sizeof(float)));
  }
}

INSTANTIATE_TEST_SUITE_P(Property, Bits, ::testing::ValuesIn(kSubjects),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace octet
