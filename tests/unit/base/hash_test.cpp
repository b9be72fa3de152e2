#include "base/hash.h"

#include <gtest/gtest.h>

#include <vector>

namespace octet {
namespace {

TEST(Hash64, KnownAnswersOfFnv1a) {
  Hash64 hash;
  EXPECT_EQ(hash.value(), 0xcbf29ce484222325u);
  hash.add("foobar");
  EXPECT_EQ(hash.value(), 0x85944171f73967e8u);
  EXPECT_EQ(hash.hex(), "85944171f73967e8");
}

TEST(Hash64, SeesEveryBitOfAFloat) {
  const std::vector<float> zero{0.0f}, minus{-0.0f};
  EXPECT_NE(hash_of(std::span(zero)), hash_of(std::span(minus)));
  EXPECT_EQ(hash_of(std::span(zero)), hash_of(std::span<const float>(zero.data(), 1)));
}

// Every changed byte is seen, wherever it lies, and a byte more or less.
TEST(HashOfMany, SeesEveryByteAndTheLength) {
  for (const size_t size : {0, 1, 8, 63, 64, 65, 127, 128, 200, 1000}) {
    std::vector<std::byte> data(size);
    for (size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(i * 37);
    const uint64_t hash = hash_of_many(data);
    EXPECT_EQ(hash_of_many(std::vector(data)), hash);
    for (size_t i = 0; i < size; ++i) {
      std::vector<std::byte> other = data;
      other[i] ^= std::byte{1};
      ASSERT_NE(hash_of_many(other), hash) << "byte " << i << " of " << size;
    }
    std::vector<std::byte> longer = data;
    longer.push_back({});
    EXPECT_NE(hash_of_many(longer), hash);
  }
}

TEST(HashOfMany, SeesTheOrderOfBlocks) {
  std::vector<std::byte> data(192);
  data[3] = data[70] = std::byte{1};
  std::vector<std::byte> other(192);
  other[6] = other[67] = std::byte{1};  // the same bytes, in each other's block
  EXPECT_NE(hash_of_many(data), hash_of_many(other));
}

}  // namespace
}  // namespace octet
