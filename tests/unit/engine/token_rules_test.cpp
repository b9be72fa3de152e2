// What is counted token by token is what a count of everything gives.
#include "engine/token_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/philox.h"
#include "engine/edit_memory.h"
#include "unit/engine/rig.h"

namespace octet::engine {
namespace {

using Tokens = std::vector<int32_t>;
constexpr int32_t kVocab = 70;
constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Rules {
  Sampling sampling;
  Tokens prompt;
  int32_t min_tokens = 0;
  Tokens end_ids;
};

TokenRules rules_of(const Rules& r, std::shared_ptr<TokenConstraint> constraint = nullptr) {
  return {r.sampling, r.prompt, r.min_tokens, r.end_ids, kVocab, std::move(constraint)};
}

// One row of logits edited as models-numerics F.1 and F.2 say, with everything counted anew.
std::vector<float> by_definition(const Rules& r, const Tokens& output, std::vector<float> logits) {
  const Sampling& s = r.sampling;
  for (size_t t = 0; t < logits.size(); ++t) {
    const auto token = static_cast<int32_t>(t);
    const auto is = [&](int32_t other) { return other == token; };
    float& x = logits[t];
    bool never = !s.allowed.empty() && std::ranges::none_of(s.allowed, is);
    for (const Tokens& word : s.bad_words) {
      if (word.back() != token || word.size() - 1 > output.size()) continue;
      never |=
          std::equal(word.begin(), word.end() - 1, output.end() - (word.end() - 1 - word.begin()));
    }
    never |=
        static_cast<int32_t>(output.size()) < r.min_tokens && std::ranges::any_of(r.end_ids, is);
    if (never) {
      x = kNever;
      continue;
    }
    float sum = 0.0f;
    for (const auto& [id, bias] : s.logit_bias) sum += is(id) ? bias : 0.0f;
    x += sum;
    const auto count = static_cast<float>(std::ranges::count_if(output, is));
    if (count > 0 || std::ranges::any_of(r.prompt, is)) {
      x = x > 0 ? x / s.repetition_penalty : x * s.repetition_penalty;
    }
    if (count > 0) x -= s.frequency_penalty * count + s.presence_penalty;
  }
  return logits;
}

// The same by the edits and the mask of a TokenRules; a token edited twice fails the test.
std::vector<float> by_rules(TokenRules& rules, int32_t index, std::vector<float> logits) {
  std::vector<int32_t> mask((kVocab + 31) / 32);
  if (rules.mask(mask)) {
    for (size_t t = 0; t < logits.size(); ++t) {
      if (!(static_cast<uint32_t>(mask[t / 32]) >> t % 32 & 1)) logits[t] = kNever;
    }
  }
  std::vector<ops::LogitEdit> edits{{.row = 3}};
  rules.edit(5, index, edits);
  EXPECT_EQ(edits[0].row, 3);
  std::set<int32_t> seen;
  for (size_t i = 1; i < edits.size(); ++i) {
    EXPECT_EQ(edits[i].row, 5);
    EXPECT_TRUE(seen.insert(edits[i].token).second) << "edited twice";
    float& x = logits[static_cast<size_t>(edits[i].token)];
    x += edits[i].bias;
    x = x > 0 ? x / edits[i].repetition : x * edits[i].repetition;
    x -= edits[i].subtract;
  }
  return logits;
}

TEST(TokenRules, AreTheDefinitionWhateverIsCombined) {
  Philox random(7);
  const auto below = [&](int32_t n) {
    return static_cast<int32_t>(random.bits() % static_cast<uint32_t>(n));
  };
  const auto draw = [&](int32_t most) {
    Tokens ids(static_cast<size_t>(below(most + 1)));
    for (int32_t& id : ids) id = below(kVocab);
    return ids;
  };
  int looked_back = 0;
  for (int round = 0; round < 300; ++round) {
    Rules r{.prompt = draw(30), .min_tokens = below(4) * 3, .end_ids = draw(3)};
    Sampling& s = r.sampling;
    if (below(2)) s.repetition_penalty = 0.5f + 0.25f * static_cast<float>(below(5));
    if (below(2)) s.presence_penalty = 0.5f;
    if (below(2)) s.frequency_penalty = -0.25f * static_cast<float>(below(4));
    for (const int32_t id : draw(5))
      s.logit_bias.emplace_back(id, static_cast<float>(below(9)) - 4);
    if (below(3) == 0) s.allowed = draw(40);
    for (int32_t i = below(6); i > 0; --i) {
      Tokens word(static_cast<size_t>(1 + below(3)));
      for (int32_t& id : word) id = below(3);  // few, so that they come up
      s.bad_words.push_back(word);
    }
    TokenRules rules = rules_of(r);
    Tokens output;
    for (int32_t index = 0; index < 20; ++index) {
      std::vector<float> logits(kVocab);
      for (float& x : logits) x = static_cast<float>(below(1001)) / 100 - 5;
      const std::vector<float> want = by_definition(r, output, logits);
      ASSERT_EQ(by_rules(rules, index, logits), want) << "round " << round << ", token " << index;
      for (const Tokens& word : s.bad_words) {
        looked_back += word.size() > 1 && want[static_cast<size_t>(word.back())] == kNever;
      }
      output.push_back(below(2) ? below(3) : below(kVocab));
      EXPECT_TRUE(rules.accept(output.back()));
    }
  }
  EXPECT_GT(looked_back, 500);
}

TEST(TokenRules, WaitForTheTokenBeforeOnlyIfItMatters) {
  const auto waits = [](const Sampling& sampling, int32_t min_tokens = 0) {
    EXPECT_TRUE(TokenRules::needed(sampling, min_tokens, nullptr));
    return rules_of({.sampling = sampling, .min_tokens = min_tokens}).lockstep();
  };
  EXPECT_FALSE(TokenRules::needed({.temperature = 0.5f, .top_k = 3}, 0, nullptr));
  EXPECT_FALSE(waits({}, 4));
  EXPECT_FALSE(waits({.logit_bias = {{3, 1.0f}}}));
  EXPECT_FALSE(waits({.allowed = {3}}));
  EXPECT_FALSE(waits({.bad_words = {{3}}}));
  EXPECT_TRUE(waits({.bad_words = {{3, 4}}}));
  EXPECT_TRUE(waits({.repetition_penalty = 1.1f}));
  EXPECT_TRUE(waits({.presence_penalty = 0.1f}));
  EXPECT_TRUE(waits({.frequency_penalty = -0.1f}));
}

// Rows that ask for more than the memory holds come in parts, and each part is the rows' own.
TEST(EditMemory, CutsWhatDoesNotFit) {
  Rig rig;
  const StepLimits limits{
      .rows = 900, .sequences = 300, .blocks_per_sequence = 1, .logits_rows = 900};
  EditMemory memory(rig.cpu, limits, kVocab, 1);
  Rules everything;
  everything.sampling.repetition_penalty = 1.5f;
  for (int32_t id = 0; id < kVocab; ++id) everything.prompt.push_back(id);
  TokenRules many = rules_of(everything);
  TokenRules masked = rules_of({.sampling = {.allowed = {3, 64}}});
  std::vector<RowRules> rows;
  for (int i = 0; i < 900; ++i) {
    rows.push_back(i % 3 == 0   ? RowRules{}
                   : i % 3 == 1 ? RowRules{&many, 0}
                                : RowRules{&masked, 0});
  }
  for (const bool crowded : {false, true}) {
    if (crowded) {
      for (RowRules& row : rows) row = {&masked, 0};
    }
    int parts = 0;
    for (size_t first = 0; first < rows.size(); ++parts) {
      const EditMemory::Part part = memory.build(std::span(rows).subspan(first));
      ASSERT_GT(part.rows, 0);
      std::map<int32_t, int> edits;
      for (int64_t i = 0; part.edits.edits && i < part.edits.edits.rows(); ++i) {
        ++edits[part.edits.edits.as<ops::LogitEdit>()[i].row];
      }
      for (int32_t i = 0; i < part.rows; ++i) {
        const RowRules& row = rows[first + static_cast<size_t>(i)];
        EXPECT_EQ(edits[i], row.rules == &many ? kVocab : 0);
        ASSERT_TRUE(part.edits.mask_rows || row.rules != &masked);
        if (!part.edits.mask_rows) continue;
        const int32_t mask = part.edits.mask_rows.as<int32_t>()[i];
        ASSERT_EQ(mask >= 0, row.rules == &masked);
        if (mask < 0) continue;
        const Tensor words = part.edits.masks.slice(mask, 1);
        EXPECT_EQ(Tokens(words.as<int32_t>(), words.as<int32_t>() + 3), (Tokens{8, 0, 1}));
      }
      first += static_cast<size_t>(part.rows);
    }
    EXPECT_GT(parts, 1);
    EXPECT_LT(parts, 6);
  }
}

}  // namespace
}  // namespace octet::engine
