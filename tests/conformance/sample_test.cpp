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

// What is edited and masked; nothing by default.
struct Changes {
  std::vector<ops::LogitEdit> edits;
  std::vector<std::set<int32_t>> masks;  // the tokens that each allows
  std::vector<int32_t> mask_rows;
};

template <typename T>
std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

ops::LogitEdits put(Rig& rig, const Changes& changes, int64_t vocab) {
  ops::LogitEdits out;
  if (!changes.edits.empty()) {
    const auto count = static_cast<int64_t>(changes.edits.size());
    out.edits = rig.put_bytes(DType::u8, {count, sizeof(ops::LogitEdit)}, bytes_of(changes.edits));
  }
  if (!changes.masks.empty()) {
    const int64_t words = (vocab + 31) / 32;
    std::vector<int32_t> bits(changes.masks.size() * static_cast<size_t>(words));
    for (size_t m = 0; m < changes.masks.size(); ++m) {
      for (const int32_t token : changes.masks[m]) {
        int32_t& word = bits[m * static_cast<size_t>(words) + static_cast<size_t>(token / 32)];
        word = static_cast<int32_t>(static_cast<uint32_t>(word) | 1u << token % 32);
      }
    }
    out.masks = rig.put({static_cast<int64_t>(changes.masks.size()), words}, bits);
    out.mask_rows = rig.put({static_cast<int64_t>(changes.mask_rows.size())}, changes.mask_rows);
  }
  return out;
}

// `rows` copies of one row of logits, or as many as there are SampleRows.
Result sample(ops::Backend& backend, const Floats& logits, int64_t vocab,
              const std::vector<ops::SampleRow>& rows, int64_t top = 0,
              const Changes& changes = {}) {
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
  backend.sample(rig.put(DType::f32, {n, vocab}, all),
                 rig.put_bytes(DType::u8, {n, sizeof(ops::SampleRow)}, bytes_of(rows)),
                 put(rig, changes, vocab), out);
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

// The rule of LogitEdit and of masks, by hand.
Floats changed(const Floats& logits, const Changes& changes, int32_t row) {
  Floats out = logits;
  const int32_t mask = changes.mask_rows.empty() ? -1 : changes.mask_rows[static_cast<size_t>(row)];
  for (size_t t = 0; mask >= 0 && t < out.size(); ++t) {
    const auto& allowed = changes.masks[static_cast<size_t>(mask)];
    if (!allowed.contains(static_cast<int32_t>(t))) out[t] = -kInf;
  }
  for (const ops::LogitEdit& edit : changes.edits) {
    if (edit.row != row) continue;
    float& x = out[static_cast<size_t>(edit.token)];
    x += edit.bias;
    x = x > 0.0f ? x / edit.repetition : x * edit.repetition;
    x -= edit.subtract;
  }
  return out;
}

// Rows with none, one and both of masks and edits, greedy and drawn. The token is the one of logits
// that were changed by hand; its log-probability and rank are those of the logits as they came.
void edits_and_masks(int64_t vocab) {
  for_each_backend([&](ops::Backend& backend, const std::string& name) {
    const Floats logits = random_values(83, vocab, 3.0f);
    Philox random(84);
    const auto some_token = [&] {
      return static_cast<int32_t>(random.bits() % static_cast<uint32_t>(vocab));
    };
    constexpr int32_t rows = 24;
    std::vector<ops::SampleRow> hows;
    Changes changes;
    for (int m = 0; m < 3; ++m) {
      std::set<int32_t> allowed{0, static_cast<int32_t>(vocab - 1)};
      while (allowed.size() < static_cast<size_t>(vocab / (m + 2))) allowed.insert(some_token());
      changes.masks.push_back(allowed);
    }
    const std::vector<int32_t> best = sample(backend, logits, vocab, {{}}, 12).top_tokens;
    for (int32_t row = 0; row < rows; ++row) {
      hows.push_back({.temperature = row % 2 ? 0.7f : 0.0f,
                      .top_k = row % 3 ? 0 : 40,
                      .top_p = row % 5 ? 1.0f : 0.9f,
                      .seed = 9,
                      .position = row});
      changes.mask_rows.push_back(row % 4 == 3 ? row % 3 : -1);
      if (row % 4 == 0) continue;
      std::set<int32_t> tokens(best.begin(), best.begin() + row % 12);
      while (tokens.size() < 40) tokens.insert(some_token());
      for (const int32_t token : tokens) {
        const float kind = static_cast<float>(token % 7);
        changes.edits.push_back({.row = row,
                                 .token = token,
                                 .bias = kind == 0 ? -kInf : kind - 3.0f,
                                 .repetition = token % 3 ? 1.0f : 1.3f,
                                 .subtract = token % 5 ? 0.0f : 0.5f});
      }
    }
    const Result all = sample(backend, logits, vocab, hows, 3, changes);
    int differ = 0;
    for (int32_t row = 0; row < rows; ++row) {
      SCOPED_TRACE(row);
      const auto i = static_cast<size_t>(row);
      const Result plain = sample(backend, logits, vocab, {hows[i]}, 3);
      const Result by_hand = sample(backend, changed(logits, changes, row), vocab, {hows[i]});
      EXPECT_EQ(all.tokens[i], by_hand.tokens[0]);
      differ += all.tokens[i] != plain.tokens[0];
      ops::SampleRow forced = hows[i];
      forced.forced = all.tokens[i];
      const Result scored = sample(backend, logits, vocab, {forced});
      EXPECT_EQ(all.logprobs[i], scored.logprobs[0]);
      EXPECT_EQ(all.ranks[i], scored.ranks[0]);
      EXPECT_EQ(std::vector(all.top_tokens.begin() + 3 * row, all.top_tokens.begin() + 3 * row + 3),
                plain.top_tokens);
    }
    EXPECT_GT(differ, rows / 4) << name;
  });
}

TEST(Sample, EditsAndMasksChangeTheTokenAlone) {
  edits_and_masks(301);
  edits_and_masks(20011);
}

TEST(Sample, ForcedTokensAreScored) {
  for_each_backend([&](ops::Backend& backend, const std::string& name) {
    for (const int64_t vocab : {103, 20011}) {
      Floats logits = random_values(85, vocab, 3.0f);
      double sum = 0.0;
      for (const float l : logits) sum += std::exp(double{l});
      std::vector<ops::SampleRow> rows;
      Doubles want;
      for (const int64_t token : {int64_t{0}, int64_t{5}, vocab / 2, vocab - 1}) {
        rows.push_back({.temperature = token % 2 ? 1.0f : 0.0f,
                        .top_k = 1,
                        .forced = static_cast<int32_t>(token)});
        want.push_back(double{logits[static_cast<size_t>(token)]} - std::log(sum));
      }
      // A mask that allows something else, and an edit that forbids it, do not matter.
      const Changes changes{.edits = {{.row = 1, .token = 5, .bias = -kInf}},
                            .masks = {{3}},
                            .mask_rows = {-1, 0, 0, -1}};
      const Result r = sample(backend, logits, vocab, rows, 2, changes);
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(r.tokens[i], rows[i].forced);
        const float own = logits[static_cast<size_t>(rows[i].forced)];
        EXPECT_EQ(r.ranks[i],
                  std::count_if(logits.begin(), logits.end(), [&](float l) { return l >= own; }));
      }
      report("sample", name, "forced logprobs", worst(r.logprobs, want, [](size_t) {
               return Budget{2e-6, 1e-6};
             }));
      logits[7] = kNan;
      EXPECT_EQ(sample(backend, logits, vocab, {{.forced = 5}}).tokens[0], -1);
    }
  });
}

TEST(Sample, ARowThatIsMaskedWhollyHasNoToken) {
  for_each_backend([&](ops::Backend& backend, const std::string&) {
    for (const int64_t vocab : {64, 9001}) {
      const Floats logits = random_values(86, vocab, 3.0f);
      // By an empty mask, by a mask and edits together, and not at all.
      const Changes changes{
          .edits = {{.row = 1, .token = 3, .bias = -kInf}, {.row = 1, .token = 40, .bias = -kInf}},
          .masks = {{}, {3, 40}},
          .mask_rows = {0, 1, -1}};
      for (const float temperature : {0.0f, 1.0f}) {
        const std::vector<ops::SampleRow> rows(3, {.temperature = temperature, .top_p = 0.9f});
        const Result r = sample(backend, logits, vocab, rows, 2, changes);
        const Result plain = sample(backend, logits, vocab, {rows[0]}, 2);
        for (size_t i = 0; i < 2; ++i) {
          EXPECT_EQ(r.tokens[i], -1);
          EXPECT_EQ(r.ranks[i], 0);
          EXPECT_EQ(r.logprobs[i], -kInf);
          EXPECT_EQ(r.top_tokens[2 * i], plain.top_tokens[0]);
          EXPECT_EQ(r.top_logprobs[2 * i], plain.top_logprobs[0]);
        }
        EXPECT_EQ(r.tokens[2], plain.tokens[0]);
      }
    }
  });
}

}  // namespace
}  // namespace octet::conformance
