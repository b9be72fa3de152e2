// Sampling: filters, log-probabilities, ranks, and the distribution that comes out.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "conformance/rig.h"

namespace octet::conformance {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Result {
  std::vector<int32_t> tokens, ranks, top_tokens;
  Floats logprobs, top_logprobs;
};

// `rows` copies of one row of logits, or as many as there are SampleRows.
Result sample(ops::Backend& backend, const Floats& logits, int64_t vocab,
              const std::vector<ops::SampleRow>& rows, int64_t top = 0) {
  Rig rig(backend);
  const auto n = static_cast<int64_t>(rows.size());
  Floats all = logits;
  while (static_cast<int64_t>(all.size()) < n * vocab)
    all.insert(all.end(), logits.begin(), logits.begin() + vocab);
  ops::SampleResult out{
      rig.make(DType::i32, {n}), rig.make(DType::f32, {n}), rig.make(DType::i32, {n}), {}, {}};
  if (top) {
    out.top_tokens = rig.make(DType::i32, {n, top});
    out.top_logprobs = rig.make(DType::f32, {n, top});
  }
  std::vector<uint8_t> bytes(rows.size() * sizeof(ops::SampleRow));
  std::memcpy(bytes.data(), rows.data(), bytes.size());
  backend.sample(rig.put(DType::f32, {n, vocab}, all),
                 rig.put_bytes(DType::u8, {n, sizeof(ops::SampleRow)}, bytes), {}, out);
  Result result{rig.get_ints(out.tokens), rig.get_ints(out.ranks), {}, rig.get(out.logprobs), {}};
  if (top) {
    result.top_tokens = rig.get_ints(out.top_tokens);
    result.top_logprobs = rig.get(out.top_logprobs);
  }
  return result;
}

void greedy_logprobs_and_ranks(int64_t vocab) {
  for_each_backend([&](ops::Backend& backend, const std::string& name) {
    Floats logits = random_values(80, vocab, 3.0f);
    logits[17] = logits[400] = 15.0f;  // a tie: the lower id wins, both have rank 2
    logits[19] = -kInf;
    const Result r = sample(backend, logits, vocab, {{}}, 5);
    EXPECT_EQ(r.tokens[0], 17);
    EXPECT_EQ(r.ranks[0], 2);
    double sum = 0.0;
    for (const float l : logits) sum += std::exp(double{l});
    Doubles want = {15.0 - std::log(sum)};
    report("sample", name, "logprob", worst(r.logprobs, want, [](size_t) {
             return Budget{1e-6, 1e-6};
           }));
    EXPECT_EQ(r.top_tokens[0], 17);
    EXPECT_EQ(r.top_tokens[1], 400);
    std::vector<int32_t> order(static_cast<size_t>(vocab));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    want.clear();
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(r.top_tokens[i], order[i]);
      want.push_back(double{logits[static_cast<size_t>(order[i])]} - std::log(sum));
    }
    report("sample", name, "top logprobs", worst(r.top_logprobs, want, [](size_t) {
             return Budget{1e-6, 1e-6};
           }));
  });
}

TEST(Sample, GreedyLogprobsAndRanks) {
  greedy_logprobs_and_ranks(1003);
  greedy_logprobs_and_ranks(20011);  // more than one block of a GPU reads
}

void has_no_token(ops::Backend& backend, const Floats& logits) {
  for (const float temperature : {0.0f, 1.0f}) {
    const Result r = sample(backend, logits, static_cast<int64_t>(logits.size()),
                            {{.temperature = temperature, .top_k = 2}}, 2);
    EXPECT_EQ(r.tokens[0], -1);
    EXPECT_EQ(r.ranks[0], 0);
    EXPECT_TRUE(std::isnan(r.logprobs[0]));
    EXPECT_EQ(r.top_tokens, (std::vector<int32_t>{-1, -1}));
  }
}

TEST(Sample, ARowWithoutNumbersHasNoToken) {
  for_each_backend([&](ops::Backend& backend, const std::string&) {
    for (const float value : {kNan, -kInf}) has_no_token(backend, Floats(9, value));
  });
}

// One NaN is enough, wherever it is: also where another token is far better.
TEST(Sample, ARowWithANanHasNoToken) {
  for_each_backend([&](ops::Backend& backend, const std::string&) {
    for (const size_t vocab : {5, 1003, 20011}) {
      Floats logits = random_values(82, static_cast<int64_t>(vocab), 3.0f);
      logits[3] = 30.0f;
      for (const size_t at : {size_t{0}, size_t{4}, vocab / 2, vocab - 1}) {
        if (at == 3) continue;
        Floats broken = logits;
        broken[at] = at % 2 ? kNan : -kNan;
        has_no_token(backend, broken);
      }
    }
  });
}

// The set of tokens that a filter leaves, seen over many draws.
std::set<int32_t> support(ops::Backend& backend, const Floats& logits, ops::SampleRow how) {
  std::vector<ops::SampleRow> rows;
  for (int i = 0; i < 3000; ++i) {
    how.position = i;
    rows.push_back(how);
  }
  const Result r = sample(backend, logits, static_cast<int64_t>(logits.size()), rows);
  return {r.tokens.begin(), r.tokens.end()};
}

TEST(Sample, Filters) {
  const auto logits_of = [](std::initializer_list<float> probabilities) {
    Floats logits;
    for (const float p : probabilities) logits.push_back(std::log(p));
    return logits;
  };
  const Floats logits = logits_of({0.05f, 0.3f, 0.5f, 0.15f});
  for_each_backend([&](ops::Backend& backend, const std::string&) {
    using Ids = std::set<int32_t>;
    const auto kept = [&](ops::SampleRow how) {
      how.temperature = how.temperature == 0.0f ? 1.0f : how.temperature;
      how.seed = 5;
      return support(backend, logits, how);
    };
    EXPECT_EQ(kept({}), (Ids{0, 1, 2, 3}));
    EXPECT_EQ(kept({.top_k = 1}), (Ids{2}));
    EXPECT_EQ(kept({.top_k = 2}), (Ids{1, 2}));
    EXPECT_EQ(kept({.top_k = 9}), (Ids{0, 1, 2, 3}));
    EXPECT_EQ(kept({.top_p = 0.75f}), (Ids{1, 2}));
    EXPECT_EQ(kept({.top_p = 0.81f}), (Ids{1, 2, 3}));
    EXPECT_EQ(kept({.top_p = 0.01f}), (Ids{2}));
    EXPECT_EQ(kept({.min_p = 0.2f}), (Ids{1, 2, 3}));
    EXPECT_EQ(kept({.min_p = 0.7f}), (Ids{2}));
    // top_p sees what top_k left: of {0.5, 0.3}, 0.5 is 62 %.
    EXPECT_EQ(kept({.top_k = 2, .top_p = 0.6f}), (Ids{2}));
    EXPECT_EQ(kept({.top_k = 2, .top_p = 0.65f}), (Ids{1, 2}));
    // Filters follow the temperature: at 0.25 the second has 13 % of the largest.
    EXPECT_EQ(kept({.temperature = 0.25f, .min_p = 0.2f}), (Ids{2}));
    // Ties with the k-th stay.
    const Floats tied = {1.0f, 2.0f, 1.0f, 0.0f};
    EXPECT_EQ(support(backend, tied, {.temperature = 1.0f, .top_k = 2, .seed = 1}), (Ids{0, 1, 2}));
    // -Inf is never drawn.
    EXPECT_EQ(support(backend, {-kInf, 0.0f, -kInf, 0.0f}, {.temperature = 1.0f, .seed = 1}),
              (Ids{1, 3}));
  });
}

TEST(Sample, DrawsFromTheDistribution) {
  const int draws = 40000;
  const Floats p = {0.4f, 0.3f, 0.2f, 0.08f, 0.015f, 0.005f};
  Floats logits;
  for (const float value : p) logits.push_back(std::log(value) + 3.0f);
  for_each_backend([&](ops::Backend& backend, const std::string& name) {
    std::vector<ops::SampleRow> rows;
    for (int i = 0; i < draws; ++i)
      rows.push_back({.temperature = 1.0f, .seed = 12345, .position = i});
    const Result r = sample(backend, logits, 6, rows);
    double chi = 0.0;
    for (size_t i = 0; i < p.size(); ++i) {
      const auto count = std::count(r.tokens.begin(), r.tokens.end(), static_cast<int32_t>(i));
      const double want = double{p[i]} * draws;
      chi += (static_cast<double>(count) - want) * (static_cast<double>(count) - want) / want;
    }
    report("sample", name, "chi squared, 5 degrees, 0.1 %", chi / 20.5);
  });
}

// A draw depends on the seed and the position, and on nothing else in the call.
void draws_alone_and_in_a_batch(int64_t vocab) {
  for_each_backend([&](ops::Backend& backend, const std::string&) {
    const Floats logits = random_values(81, vocab, 2.0f);
    std::vector<ops::SampleRow> rows;
    for (int i = 0; i < 20; ++i) {
      rows.push_back({.temperature = 0.8f,
                      .top_k = 50,
                      .top_p = 0.9f,
                      .seed = static_cast<uint64_t>(i % 3),
                      .position = i / 3});
    }
    const Result all = sample(backend, logits, vocab, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(sample(backend, logits, vocab, {rows[i]}).tokens[0], all.tokens[i]);
    }
    EXPECT_GT(std::set<int32_t>(all.tokens.begin(), all.tokens.end()).size(), 5u);
  });
}

TEST(Sample, DoesNotDependOnTheBatch) {
  draws_alone_and_in_a_batch(301);
  draws_alone_and_in_a_batch(9001);
}

}  // namespace
}  // namespace octet::conformance
