#include "base/hash.h"

#include <array>
#include <bit>
#include <cstring>

namespace octet {
namespace {

constexpr size_t kLanes = 8;  // hide the latency of the multiplication
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ULL;

// For a given word one-to-one in the lane, for a given lane one-to-one in the word: a difference
// once there stays.
constexpr uint64_t mixed(uint64_t lane, uint64_t word) {
  return std::rotl((lane ^ word) * kOdd, 29);
}

}  // namespace

uint64_t hash_of_many(std::span<const std::byte> bytes) {
  std::array<uint64_t, kLanes> lanes{};
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = kOdd * (i + 1);
  std::array<uint64_t, kLanes> words;
  size_t at = 0;
  for (; bytes.size() - at >= sizeof words; at += sizeof words) {
    std::memcpy(words.data(), &bytes[at], sizeof words);
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = mixed(lanes[i], words[i]);
  }
  words = {};
  if (at < bytes.size()) std::memcpy(words.data(), &bytes[at], bytes.size() - at);
  uint64_t hash = bytes.size();
  for (size_t i = 0; i < kLanes; ++i) hash = mixed(hash, mixed(lanes[i], words[i]));
  return hash;
}

}  // namespace octet
