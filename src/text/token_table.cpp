#include "text/token_table.h"

#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace octet::text {
namespace {

uint64_t load64(const char* p, size_t n) {
  uint64_t word = 0;
  std::memcpy(&word, p, n);
  return word;
}

uint64_t mix(uint64_t a, uint64_t b) {
  // The high half of a product depends on all bits below it, the low half on all bits of a word
  // that were folded into it: together they spread short keys well.
  __extension__ using Wide = unsigned __int128;
  const Wide product = Wide{a} * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kOdd1 = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
  constexpr uint64_t kOdd2 = 0xD6E8FEB86659FD93u;
  uint64_t hash = bytes.size() * kOdd1;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) hash = mix(hash ^ load64(bytes.data() + i, 8), kOdd2);
  if (i < bytes.size()) {
    hash = mix(hash ^ load64(bytes.data() + i, bytes.size() - i), kOdd2);
  }
  return mix(hash ^ kOdd2, kOdd1);
}

StringIdMap::StringIdMap(size_t count) : slots_(std::bit_ceil(2 * count + 16)) {}

bool StringIdMap::insert(std::string_view key, int32_t id) {
  if (2 * (used_ + 1) > slots_.size()) grow();
  const uint64_t hash = hash_bytes(key);
  for (size_t i = hash;; ++i) {
    Slot& slot = slots_[i & (slots_.size() - 1)];
    if (slot.id < 0) {
      slot = {key, static_cast<uint32_t>(hash >> 32), id};
      ++used_;
      return true;
    }
    if (slot.hash == static_cast<uint32_t>(hash >> 32) && slot.key == key) return false;
  }
}

int32_t StringIdMap::find(std::string_view key) const {
  const uint64_t hash = hash_bytes(key);
  for (size_t i = hash;; ++i) {
    const Slot& slot = slots_[i & (slots_.size() - 1)];
    if (slot.id < 0) return -1;
    if (slot.hash == static_cast<uint32_t>(hash >> 32) && slot.key == key) return slot.id;
  }
}

void StringIdMap::grow() {
  StringIdMap larger(slots_.size());
  for (const Slot& slot : slots_) {
    if (slot.id >= 0) larger.insert(slot.key, slot.id);
  }
  *this = std::move(larger);
}

TokenBytes::TokenBytes(const std::vector<std::string>& strings) {
  size_t total = 0;
  for (const std::string& s : strings) total += s.size();
  invariant(total <= UINT32_MAX, "token strings exceed 4 GiB");
  block_.reserve(total);
  ends_.reserve(strings.size() + 1);
  ends_.push_back(0);
  for (const std::string& s : strings) {
    block_.insert(block_.end(), s.begin(), s.end());
    ends_.push_back(static_cast<uint32_t>(block_.size()));
  }
}

}  // namespace octet::text
