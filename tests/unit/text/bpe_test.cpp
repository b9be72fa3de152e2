#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace octet::text {
namespace {

// Random merges over the bytes 'a'..'d' and what they build.
BpeModel random_model(std::mt19937& rng, int merges) {
  BpeModel model;
  for (int i = 0; i < 4; ++i) model.bytes['a' + i] = {.ids = {i, -1}, .count = 1};
  int32_t next = 4;
  for (int i = 0; i < merges; ++i) {
    std::uniform_int_distribution<int32_t> pick(0, next - 1);
    model.merges.push_back({pick(rng), pick(rng), next, i});
    ++next;
  }
  return model;
}

// The definition, word for word: lowest rank first, the leftmost of equals.
std::vector<int32_t> encode_slowly(const BpeModel& model, const std::string& piece) {
  std::map<std::pair<int32_t, int32_t>, std::pair<int, int32_t>> ranks;
  for (const Merge& m : model.merges) ranks[{m.left, m.right}] = {m.rank, m.result};
  std::vector<int32_t> ids;
  for (const char c : piece) ids.push_back(model.bytes[static_cast<uint8_t>(c)].ids[0]);
  for (;;) {
    int best = -1, best_rank = 1 << 30;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = ranks.find({ids[i], ids[i + 1]});
      if (it != ranks.end() && it->second.first < best_rank) {
        best = static_cast<int>(i);
        best_rank = it->second.first;
      }
    }
    if (best < 0) return ids;
    ids[best] = ranks[{ids[best], ids[best + 1]}].second;
    ids.erase(ids.begin() + best + 1);
  }
}

std::vector<int32_t> encode(const Bpe& bpe, const std::string& piece) {
  Bpe::Scratch scratch;
  std::vector<int32_t> ids;
  bpe.encode(piece, scratch, ids);
  return ids;
}

// Without bytes that vanish, the tokens are as long as the piece.
void expect_lengths(const Bpe& bpe, const std::string& piece) {
  Bpe::Scratch scratch;
  std::vector<int32_t> ids;
  std::vector<uint32_t> lengths;
  bpe.encode_with_lengths(piece, scratch, ids, lengths);
  EXPECT_EQ(ids, encode(bpe, piece));
  ASSERT_EQ(lengths.size(), ids.size());
  EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), size_t{0}), piece.size());
}

TEST(Bpe, EqualsItsDefinitionOnShortAndLongPieces) {
  std::mt19937 rng(1);
  const StringIdMap no_words(0);
  for (int round = 0; round < 20; ++round) {
    const BpeModel model = random_model(rng, 1 + round * 10);
    const Bpe bpe(model, no_words);
    for (int i = 0; i < 30; ++i) {
      std::string piece(std::uniform_int_distribution<int>(1, i < 20 ? 30 : 200)(rng), 'a');
      for (char& c : piece) c = static_cast<char>('a' + rng() % 4);
      ASSERT_EQ(encode(bpe, piece), encode_slowly(model, piece)) << piece;
      ASSERT_EQ(encode(bpe, piece), encode_slowly(model, piece)) << "from the cache: " << piece;
      expect_lengths(bpe, piece);
    }
  }
}

TEST(Bpe, UnknownBytesVanishOrBecomeTheUnknownToken) {
  const StringIdMap no_words(0);
  BpeModel model;
  model.bytes['a'] = {.ids = {5, -1}, .count = 1};
  EXPECT_EQ(encode(Bpe(model, no_words), "xaxxa"), (std::vector<int32_t>{5, 5}));
  EXPECT_EQ(encode(Bpe(model, no_words), "x"), std::vector<int32_t>{});
  model.unknown = 0;
  EXPECT_EQ(encode(Bpe(model, no_words), "xaxxa"), (std::vector<int32_t>{0, 5, 0, 0, 5}));
  model.fuse_unknown = true;
  EXPECT_EQ(encode(Bpe(model, no_words), "xaxxa"), (std::vector<int32_t>{0, 5, 0, 5}));
}

TEST(Bpe, IgnoreMergesTakesWholePiecesThatAreTokens) {
  StringIdMap words(1);
  words.insert("ab", 7);
  BpeModel model;
  model.bytes['a'] = {.ids = {0, -1}, .count = 1};
  model.bytes['b'] = {.ids = {1, -1}, .count = 1};
  EXPECT_EQ(encode(Bpe(model, words), "ab"), (std::vector<int32_t>{0, 1}));
  model.ignore_merges = true;
  const Bpe bpe(model, words);
  EXPECT_EQ(encode(bpe, "ab"), std::vector<int32_t>{7});
  EXPECT_EQ(encode(bpe, "aba"), (std::vector<int32_t>{0, 1, 0}));
}

TEST(PieceCache, ForgetsButNeverConfuses) {
  PieceCache cache;
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 100000; ++i) {
    const std::string piece = "p" + std::to_string(i);
    cache.put(piece, hash_bytes(piece), &i, 1);
  }
  int found = 0;
  for (int32_t i = 0; i < 100000; ++i) {
    const std::string piece = "p" + std::to_string(i);
    ids.clear();
    if (!cache.find(piece, hash_bytes(piece), ids)) continue;
    ++found;
    ASSERT_EQ(ids, std::vector<int32_t>{i});
  }
  EXPECT_GT(found, 8000);
  EXPECT_LE(found, 16384);
  const std::string long_piece(34, 'x');
  const int32_t one = 1;
  cache.put(long_piece, hash_bytes(long_piece), &one, 1);
  EXPECT_FALSE(cache.find(long_piece, hash_bytes(long_piece), ids));
}

TEST(Bpe, ThreadsShareOneCacheAndAgree) {
  std::mt19937 rng(2);
  const StringIdMap no_words(0);
  const BpeModel model = random_model(rng, 60);
  const Bpe bpe(model, no_words);
  std::vector<std::string> pieces;
  for (int i = 0; i < 500; ++i) {
    std::string piece(1 + rng() % 12, 'a');
    for (char& c : piece) c = static_cast<char>('a' + rng() % 4);
    pieces.push_back(piece);
  }
  std::vector<std::vector<int32_t>> expected;
  for (const std::string& piece : pieces) expected.push_back(encode_slowly(model, piece));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        for (size_t i = 0; i < pieces.size(); ++i) wrong += encode(bpe, pieces[i]) != expected[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(StringIdMap, FindsWhatWasInsertedAcrossGrowth) {
  std::vector<std::string> keys;
  for (int i = 0; i < 5000; ++i) keys.push_back(std::string(i % 20, 'k') + std::to_string(i));
  StringIdMap map(0);
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(map.insert(keys[i], i));
  EXPECT_FALSE(map.insert(keys[17], 1));
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(map.find(keys[i]), i);
  EXPECT_EQ(map.find("absent"), -1);
  EXPECT_EQ(map.find(""), -1);
}

}  // namespace
}  // namespace octet::text
