// What scales of the KV cache are worth far out, by one attention: docs/CLAIMS.md. Keys and values
// are synthetic, as no model at hand lets them grow.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/cpu_backend.h"

namespace octet::cpu {
namespace {

using ops::KvScaling;

constexpr int64_t kTokens = 16384, kDim = 64, kBlock = 64, kQueries = 16;
constexpr int64_t kFirst = 1024;  // tokens that a calibration has seen
using Spread = std::function<double(int64_t position)>;

// A sequence whose K and V are normal, with a standard deviation by position. Queries are of its
// last tokens, and their scores with the last keys are normal as well.
struct Sequence {
  std::vector<float> k, v, q;

  explicit Sequence(const Spread& spread) : k(kTokens * kDim), v(k.size()), q(kQueries * kDim) {
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < k.size(); ++i) {
      const double s = spread(static_cast<int64_t>(i) / kDim);
      k[i] = static_cast<float>(s * normal(random));
      v[i] = static_cast<float>(s * normal(random));
    }
    for (float& x : q) x = static_cast<float>(normal(random) / spread(kTokens - 1));
  }
  float largest(const std::vector<float>& x, int64_t tokens) const {
    float most = 0;
    for (int64_t i = 0; i < tokens * kDim; ++i)
      most = std::max(most, std::abs(x[static_cast<size_t>(i)]));
    return most;
  }
};

// What attention makes of the last tokens with that cache; `seen`: tokens that fixed scales are of.
std::vector<float> attend(const Sequence& sequence, DType type, KvScaling scaling, int64_t seen) {
  CpuBackend backend({.threads = 2, .kernels = "exact"});
  constexpr int64_t blocks = kTokens / kBlock;
  std::vector<Buffer> buffers;
  const auto take = [&](DType t, Shape shape) {
    buffers.push_back(backend.alloc(static_cast<size_t>(shape.count()) * size_of(t), "test"));
    return buffers.back().tensor(t, shape);
  };
  ops::GqaCache cache;
  cache.k = take(type, {blocks, kBlock, 1, kDim});
  cache.v = take(type, {blocks, kBlock, 1, kDim});
  float fixed_k = sequence.largest(sequence.k, seen) / 448,
        fixed_v = sequence.largest(sequence.v, seen) / 448;
  if (is_code(type)) {
    const Shape cells =
        scaling == KvScaling::token_heads ? Shape{blocks, kBlock, 1} : Shape{blocks, 1};
    cache.k_scale = take(DType::f32, cells);
    cache.v_scale = take(DType::f32, cells);
    if (scaling == KvScaling::groups) {
      cache.k_absmax = take(DType::f32, cells);
      cache.v_absmax = take(DType::f32, cells);
    } else if (scaling == KvScaling::fixed) {
      cache.fixed_k_scale = Tensor(&fixed_k, DType::f32, {1});
      cache.fixed_v_scale = Tensor(&fixed_v, DType::f32, {1});
    }
  }
  std::vector<int32_t> table(blocks);
  std::iota(table.begin(), table.end(), 0);
  ops::Batch batch;
  batch.rows = kTokens;
  batch.sequences = {{0, kTokens, 0}};
  batch.max_context = kTokens;
  batch.block_table = Tensor(table.data(), DType::i32, {1, blocks});
  const auto tensor = [](const std::vector<float>& x) {
    return Tensor(const_cast<float*>(x.data()), DType::f32,
                  {static_cast<int64_t>(x.size()) / kDim, 1, kDim});
  };
  backend.kv_write(tensor(sequence.k), tensor(sequence.v), cache, batch);
  batch.rows = kQueries;
  batch.sequences = {{0, kQueries, kTokens - kQueries}};
  std::vector<float> out(kQueries * kDim);
  backend.attention(tensor(sequence.q), cache, batch, {.scale = 1.0f / 8}, tensor(out), {});
  return out;
}

// The root mean square of what that cache changes in the output, relative to the output's.
double error_of(const Sequence& sequence, DType type, KvScaling scaling, int64_t seen = kFirst) {
  const std::vector<float> exact = attend(sequence, DType::f32, KvScaling::fixed, seen);
  const std::vector<float> found = attend(sequence, type, scaling, seen);
  double error = 0, energy = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(double{found[i]} - double{exact[i]}, 2);
    energy += std::pow(double{exact[i]}, 2);
  }
  return std::sqrt(error / energy);
}

struct Errors {
  double first, all, groups, tokens, int8;  // fixed by the first 1,024 tokens, and by all of them
  explicit Errors(const Spread& spread) {
    const Sequence sequence(spread);
    first = error_of(sequence, DType::e4m3, KvScaling::fixed);
    all = error_of(sequence, DType::e4m3, KvScaling::fixed, kTokens);
    groups = error_of(sequence, DType::e4m3, KvScaling::groups);
    tokens = error_of(sequence, DType::e4m3, KvScaling::token_heads);
    int8 = error_of(sequence, DType::i8, KvScaling::token_heads);
    for (const auto& [name, value] : {std::pair{"fixed_first", first},
                                      {"fixed_all", all},
                                      {"groups", groups},
                                      {"token_heads", tokens},
                                      {"int8_token_heads", int8}}) {
      ::testing::Test::RecordProperty(name, std::to_string(value));
    }
  }
};

TEST(CacheScales, OfASteadySequenceAreWorthNothing) {
  const Errors errors([](int64_t) { return 1.0; });
  EXPECT_NEAR(errors.groups / errors.first, 1, 0.1);
  EXPECT_NEAR(errors.tokens / errors.first, 1, 0.1);
}

TEST(CacheScales, GroupsFollowASequenceThatGrows) {
  const Errors errors([](int64_t t) { return std::exp2(4.0 * static_cast<double>(t) / kTokens); });
  EXPECT_GT(errors.first, 5 * errors.groups);
  EXPECT_NEAR(errors.groups / errors.all, 1, 0.15);
  EXPECT_NEAR(errors.tokens / errors.all, 1, 0.15);
}

TEST(CacheScales, GroupsAreLateForAJumpWithinOne) {
  const Errors errors([](int64_t t) { return t < kTokens - 512 ? 1.0 : 8.0; });
  EXPECT_GT(errors.groups, 5 * errors.tokens);
}

}  // namespace
}  // namespace octet::cpu
