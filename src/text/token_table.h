// The bytes of every token, and the way back from bytes to an id.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octet::text {

// Not for text: a fast hash of short byte strings for tables in memory. Not stable across builds.
uint64_t hash_bytes(std::string_view bytes);

// A map from byte strings to ids by open addressing. Keys are views: their bytes must outlive it.
class StringIdMap {
 public:
  // Room for `count` keys without growing.
  explicit StringIdMap(size_t count);

  // False, and nothing changes, where the key is there already.
  bool insert(std::string_view key, int32_t id);

  // The id of `key`, or -1.
  int32_t find(std::string_view key) const;

 private:
  struct Slot {
    std::string_view key;
    uint32_t hash = 0;
    int32_t id = -1;
  };
  void grow();

  std::vector<Slot> slots_;  // a power of two, at most half full
  size_t used_ = 0;
};

// The strings of ids 0..size()-1 in one block of memory. Ids may have gaps, whose string is empty.
class TokenBytes {
 public:
  // `strings` by id.
  explicit TokenBytes(const std::vector<std::string>& strings);

  int32_t size() const { return static_cast<int32_t>(ends_.size()) - 1; }

  // Empty where `id` is outside of 0..size()-1.
  std::string_view operator[](int32_t id) const {
    if (id < 0 || id >= size()) return {};
    return {block_.data() + ends_[id], ends_[id + 1] - ends_[id]};
  }

 private:
  std::vector<char> block_;     // a vector: its bytes stay where they are when it moves
  std::vector<uint32_t> ends_;  // size() + 1 offsets into block_
};

}  // namespace octet::text
