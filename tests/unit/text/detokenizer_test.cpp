#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/utf8.h"
#include "unit/text/small_tokenizer.h"

namespace octet::text {
namespace {

std::vector<std::string> stream(Detokenizer& detokenizer, const std::vector<int32_t>& ids) {
  std::vector<std::string> deltas;
  for (const int32_t id : ids) deltas.push_back(detokenizer.push(id));
  deltas.push_back(detokenizer.flush());
  return deltas;
}

using Deltas = std::vector<std::string>;

TEST(Detokenizer, HoldsAnIncompleteCharacter) {
  const Tokenizer tokenizer = small_tokenizer();
  Detokenizer d(tokenizer);
  EXPECT_EQ(stream(d, {'a', 0xE4, 0xB8, 0xAD, 259}), (Deltas{"a", "", "", "\u4E2D", "hello", ""}));
  EXPECT_EQ(stream(d, {0xF0, 0x9F, 0x98}), (Deltas{"", "", "", "\uFFFD"}));
  EXPECT_EQ(d.pending_bytes(), 0u);
}

TEST(Detokenizer, ReplacesEachMaximalInvalidSubpartOnce) {
  const Tokenizer tokenizer = small_tokenizer();
  Detokenizer d(tokenizer);
  EXPECT_EQ(stream(d, {0xF0, 0x9F, 'x'}), (Deltas{"", "", "\uFFFDx", ""}));
  EXPECT_EQ(stream(d, {0x80, 0x80, 'x'}), (Deltas{"\uFFFD", "\uFFFD", "x", ""}));
  EXPECT_EQ(stream(d, {0xE4, 0xE4, 0xB8, 0xAD}), (Deltas{"", "\uFFFD", "", "\u4E2D", ""}));
}

TEST(Detokenizer, SkipsSpecialTokensInTheMiddleOfACharacterToo) {
  const Tokenizer tokenizer = small_tokenizer();
  Detokenizer skipping(tokenizer), keeping(tokenizer, false);
  EXPECT_EQ(stream(skipping, {0xC3, 262, 0xA9}), (Deltas{"", "", "\u00E9", ""}));
  EXPECT_EQ(stream(keeping, {0xC3, 262, 0xA9}), (Deltas{"", "\uFFFD<eos>", "\uFFFD", ""}));
}

TEST(Detokenizer, UnknownIdsGiveNothing) {
  const Tokenizer tokenizer = small_tokenizer();
  Detokenizer d(tokenizer);
  EXPECT_EQ(stream(d, {-1, 1 << 30, tokenizer.size()}), (Deltas{"", "", "", ""}));
}

TEST(Detokenizer, JoinedStreamIsDecode) {
  const Tokenizer small = small_tokenizer();
  const Tokenizer demo = Tokenizer::load(OCTET_SOURCE_DIR "/models/octet-demo");
  std::mt19937 rng(4);
  for (const Tokenizer* tokenizer : {&small, &demo}) {
    for (int round = 0; round < 4000; ++round) {
      // Half of the ids are single bytes, so that most of the text is broken.
      std::vector<int32_t> ids(rng() % 40);
      for (int32_t& id : ids)
        id = static_cast<int32_t>(rng() % (rng() % 2 ? 260 : tokenizer->size() + 3));
      const bool skip = rng() % 2;
      Detokenizer d(*tokenizer, skip);
      std::string joined;
      for (const int32_t id : ids) {
        const std::string delta = d.push(id);
        ASSERT_TRUE(is_valid_utf8(delta));
        ASSERT_LE(d.pending_bytes(), 3u);
        joined += delta;
      }
      joined += d.flush();
      ASSERT_EQ(joined, tokenizer->decode(ids, skip));
    }
  }
}

}  // namespace
}  // namespace octet::text
