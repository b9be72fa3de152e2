// The microscope against what is slow and obvious, and against `octet eval compare`.
#include "engine/microscope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "backends/cpu/cpu_backend.h"
#include "eval/evaluate.h"
#include "model/binder.h"
#include "model/checkpoint.h"
#include "numerics/scheme.h"
#include "unit/base/error_of.h"

namespace octet::engine {
namespace {

using test::error_of;
using ::testing::Each;
using ::testing::HasSubstr;

// A tiny model, in FP8 by the given rows alone, and in BF16.
class Pair {
 public:
  explicit Pair(const std::string& name = "llama_mha", const std::string& fp8 = "*",
                const std::string& baseline = "") {
    const LinearFormat format = scheme_named("fp8_channel").format;
    model::LoadOptions options;
    options.fp8_attention = false;
    options.policy = {{.name = fp8, .format = format, .reason = "the test", .origin = "test"}};
    served_ = load(name, options);
    options.compute = model::Compute::bf16;
    options.policy.clear();
    baseline_ = load(baseline.empty() ? name : baseline, options);
  }

  // 16-bit caches, so that only the linears differ.
  Microscope microscope() {
    return {*served_,
            *baseline_,
            backend_,
            {.max_tokens = 60,
             .kv_type = model::KvType::bf16,
             .baseline_kv_type = model::KvType::bf16}};
  }
  Microscope itself() { return {*baseline_, *baseline_, backend_, {.max_tokens = 60}}; }
  const model::Model& served() const { return *served_; }
  const model::Model& baseline() const { return *baseline_; }
  ops::Backend& backend() { return backend_; }

  // Logits [n, vocab] of all tokens, and the stream that leaves the last layer.
  std::vector<float> logits_of(const model::Model& model, const std::vector<int32_t>& tokens,
                               std::vector<float>* last = nullptr) {
    Session session(model, backend_, {.max_tokens = 60, .kv_type = model::KvType::bf16});
    session.observe([&](int64_t, const Tensor& residual, const Tensor&) {
      if (last) *last = model::to_float(residual);
    });
    std::vector<float> all;
    session.extend(0, tokens, Wanted::all, [&](int64_t, const Tensor& logits) {
      all.insert(all.end(), logits.as<float>(), logits.as<float>() + logits.count());
    });
    return all;
  }

 private:
  std::unique_ptr<model::Model> load(const std::string& name, const model::LoadOptions& options) {
    const std::string folder = std::string(OCTET_SOURCE_DIR) + "/tests/golden/" + name;
    return model::load_model(model::read_config(folder),
                             std::make_shared<model::Checkpoint>(folder), backend_, options);
  }

  cpu::CpuBackend backend_{{.threads = 1, .kernels = "exact"}};
  std::unique_ptr<model::Model> served_, baseline_;
};

std::vector<int32_t> some_tokens(int count) {
  std::mt19937 random(7);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 100);
  return tokens;
}

std::vector<double> probabilities(std::span<const float> logits) {
  const double highest = *std::ranges::max_element(logits);
  std::vector<double> p;
  double sum = 0;
  for (const float x : logits) {
    p.push_back(std::exp(x - highest));
    sum += p.back();
  }
  for (double& x : p) x /= sum;
  return p;
}

TEST(Microscope, AgreesWithEvalCompare) {
  Pair pair;
  const std::vector<int32_t> tokens = some_tokens(50);
  auto microscope = pair.microscope();
  const auto views = microscope.compare(tokens, 3, {});
  ASSERT_TRUE(views);
  const std::vector<eval::Piece> pieces = {{tokens}};
  const eval::Subject served{pair.served(), pair.backend(), model::KvType::bf16},
      baseline{pair.baseline(), pair.backend(), model::KvType::bf16};
  const eval::Comparison expected = eval::compare(served, baseline, pieces);

  std::vector<double> kl;
  double nll = 0, baseline_nll = 0;
  int64_t same = 0;
  for (const TokenView& view : *views) {
    kl.push_back(view.kl);
    nll -= view.served;
    baseline_nll -= view.baseline;
    same += view.same_top1;
  }
  std::ranges::sort(kl);
  EXPECT_EQ(kl, expected.kl);
  EXPECT_GT(expected.kl_mean, 0);
  EXPECT_EQ(same, expected.same_top1);
  EXPECT_NEAR(nll, expected.candidate.nll, 1e-9);
  EXPECT_NEAR(baseline_nll, expected.baseline.nll, 1e-9);
}

TEST(Microscope, TokensAreThoseOfTheDefinition) {
  Pair pair("deepseek_v3_groups");
  const std::vector<int32_t> tokens = some_tokens(40);
  auto microscope = pair.microscope();
  const auto views = microscope.compare(tokens, 2, {});
  ASSERT_TRUE(views);
  ASSERT_EQ(views->size(), tokens.size() - 1);
  const auto served = pair.logits_of(pair.served(), tokens);
  const auto baseline = pair.logits_of(pair.baseline(), tokens);
  const auto vocab = static_cast<size_t>(pair.served().config().vocab);
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    SCOPED_TRACE(i);
    const auto q = probabilities(std::span(served).subspan(i * vocab, vocab));
    const auto p = probabilities(std::span(baseline).subspan(i * vocab, vocab));
    double kl = 0;
    for (size_t k = 0; k < vocab; ++k) kl += p[k] * std::log(p[k] / q[k]);
    const TokenView& view = (*views)[i];
    const auto token = static_cast<size_t>(tokens[i + 1]);
    EXPECT_EQ(view.token, tokens[i + 1]);
    EXPECT_NEAR(view.kl, kl, 1e-9);
    EXPECT_NEAR(view.served, std::log(q[token]), 1e-9);
    EXPECT_NEAR(view.baseline, std::log(p[token]), 1e-9);
    // Two of each, at most four, and the best of each among them.
    EXPECT_GE(view.alternatives.size(), 2u);
    EXPECT_LE(view.alternatives.size(), 4u);
    for (const auto& side : {q, p}) {
      const auto best = std::ranges::max_element(side) - side.begin();
      EXPECT_TRUE(std::ranges::count(view.alternatives, best, &Alternative::token) == 1);
    }
    for (const Alternative& one : view.alternatives) {
      EXPECT_NEAR(one.served, std::log(q[static_cast<size_t>(one.token)]), 1e-9);
      EXPECT_NEAR(one.baseline, std::log(p[static_cast<size_t>(one.token)]), 1e-9);
    }
  }
}

TEST(Microscope, AModelBesideItselfShowsNothing) {
  Pair pair;
  auto microscope = pair.itself();
  const auto tokens = some_tokens(30);
  const auto views = microscope.compare(tokens, 1, {}).value();
  ASSERT_EQ(views.size(), tokens.size() - 1);
  for (const TokenView& view : views) {
    EXPECT_EQ(view.kl, 0);
    EXPECT_TRUE(view.same_top1);
    EXPECT_EQ(view.served, view.baseline);
    EXPECT_EQ(view.alternatives.size(), 1u);
  }
  const auto parts = microscope.parts(tokens, 20, {}).value();
  EXPECT_FALSE(parts.empty());
  for (const PartView& part : parts) {
    EXPECT_EQ(part.difference, 0);
    EXPECT_EQ(part.added, 0);
    EXPECT_EQ(part.share, 0);
  }
}

// Shares are an account of the whole difference: nothing is missing and nothing counts twice.
TEST(Microscope, PartsAddUpToTheDifferenceThatTheHeadSees) {
  for (const char* name : {"llama_mha", "deepseek_v3_groups"}) {
    SCOPED_TRACE(name);
    Pair pair(name);
    auto microscope = pair.microscope();
    const auto tokens = some_tokens(40);
    const int64_t position = 33;
    const auto parts = microscope.parts(tokens, position, {}).value();
    const int64_t layers = pair.served().config().layers, hidden = pair.served().config().hidden;
    ASSERT_EQ(static_cast<int64_t>(parts.size()), 2 * layers + 1);
    double shares = 0;
    for (const PartView& part : parts) shares += part.share;
    EXPECT_NEAR(shares, 1, 1e-6);
    EXPECT_EQ(parts[0].part, StreamPart::embedding);
    EXPECT_EQ(parts[0].added, 0);  // 16 bits in both
    EXPECT_EQ(parts[1].part, StreamPart::attention);
    EXPECT_EQ(parts.back().part, StreamPart::mlp);
    EXPECT_EQ(parts.back().layer, layers - 1);

    std::vector<float> served, baseline;
    pair.logits_of(pair.served(), tokens, &served);
    pair.logits_of(pair.baseline(), tokens, &baseline);
    double difference = 0, norm = 0;
    for (int64_t i = (position - 1) * hidden; i < position * hidden; ++i) {
      const double y = baseline[static_cast<size_t>(i)], x = served[static_cast<size_t>(i)];
      difference += (x - y) * (x - y);
      norm += y * y;
    }
    EXPECT_GT(difference, 0);
    EXPECT_NEAR(parts.back().difference, std::sqrt(difference / norm), 1e-9);
  }
}

// Where one linear alone is quantized, the first part that differs is its own.
TEST(Microscope, NamesThePartThatIsQuantized) {
  struct Case {
    const char* module;
    int64_t layer;
    StreamPart part;
  };
  for (const Case& one : {Case{"model.layers.0.self_attn.o_proj", 0, StreamPart::attention},
                          Case{"model.layers.0.mlp.down_proj", 0, StreamPart::mlp},
                          Case{"model.layers.1.self_attn.q_proj", 1, StreamPart::attention},
                          Case{"model.layers.1.mlp.gate_proj", 1, StreamPart::mlp}}) {
    SCOPED_TRACE(one.module);
    // The row above all others keeps the rest in 16 bits.
    Pair pair("llama_mha", one.module);
    auto microscope = pair.microscope();
    const auto parts = microscope.parts(some_tokens(40), 30, {}).value();
    bool seen = false;
    for (const PartView& part : parts) {
      const bool here = part.layer == one.layer && part.part == one.part;
      if (here) EXPECT_GT(part.added, 0);
      if (!here && !seen) EXPECT_EQ(part.added, 0) << part.layer << " " << name_of(part.part);
      seen = seen || here;
    }
    EXPECT_TRUE(seen);
  }
}

TEST(Microscope, TheBaselineGoesOnGreedily) {
  Pair pair;
  auto microscope = pair.microscope();
  std::vector<int32_t> tokens = some_tokens(10);
  std::vector<int32_t> found;
  EXPECT_TRUE(microscope.continue_baseline(tokens, {}, [&](int32_t token) {
    found.push_back(token);
    return found.size() < 12;
  }));
  ASSERT_EQ(found.size(), 12u);
  const auto vocab = static_cast<ptrdiff_t>(pair.baseline().config().vocab);
  for (const int32_t token : found) {
    const auto logits = pair.logits_of(pair.baseline(), tokens);
    const auto row = logits.end() - vocab;
    EXPECT_EQ(token, std::max_element(row, logits.end()) - row);
    tokens.push_back(token);
  }
  // It ends by itself where the microscope is full: 60 tokens, the last of which nobody reads.
  size_t count = 0;
  EXPECT_TRUE(microscope.continue_baseline(tokens, {}, [&](int32_t) { return ++count > 0; }));
  EXPECT_EQ(count, 60 - tokens.size() + 1);
}

TEST(Microscope, StopsWhenAsked) {
  Pair pair;
  auto microscope = pair.microscope();
  std::stop_source source;
  source.request_stop();
  const auto tokens = some_tokens(20);
  EXPECT_FALSE(microscope.compare(tokens, 1, source.get_token()));
  EXPECT_FALSE(microscope.parts(tokens, 5, source.get_token()));
  EXPECT_FALSE(microscope.continue_baseline(tokens, source.get_token(), [](int32_t) {
    ADD_FAILURE();
    return true;
  }));
  // In the middle of a continuation, too, and the next request finds all as it was.
  std::stop_source later;
  EXPECT_FALSE(microscope.continue_baseline(tokens, later.get_token(), [&](int32_t) {
    later.request_stop();
    return true;
  }));
  EXPECT_TRUE(microscope.compare(tokens, 1, {}));
}

TEST(Microscope, ModelsThatCannotBeCompared) {
  EXPECT_THAT(error_of([] {
                Pair pair("llama_mha", "*", "deepseek_v3_groups");
                pair.microscope();
              }),
              HasSubstr("do not share a vocabulary"));
}

TEST(Microscope, OneTokenHasNoPrediction) {
  Pair pair;
  auto microscope = pair.microscope();
  EXPECT_TRUE(microscope.compare(some_tokens(1), 1, {}).value().empty());
}

}  // namespace
}  // namespace octet::engine
