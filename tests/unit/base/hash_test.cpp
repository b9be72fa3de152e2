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

}  // namespace
}  // namespace octet
