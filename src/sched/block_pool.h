// Who uses which KV block. Ids only; the storage lies elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sched/sequence.h"

namespace octet::sched {

// Every block is in exactly one of three states:
//
//            acquire                       release (last, in tree) / share
//   free  ------------>  held (refs > 0)  <------------------------------->  cached (refs == 0,
//     ^                    |                                                  named by the tree)
//     |   release (last,   |                                                     |
//     |   not in tree)     |                        evict                        |
//     +--------------------+-----------------------------------------------------+
//
//   free + cached + held == total, always.
// A misuse (release of a block nobody holds, evict of a held one, ...) throws octet::Fault.
class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  // A free block with one reference, or nothing. Never evicts.
  std::optional<BlockId> acquire();
  // One more reference to a held or cached block.
  void share(BlockId block);
  // One reference less; at none left the block is cached if the tree names it, free otherwise.
  void release(BlockId block);
  // The tree names this held block from now on.
  void set_in_tree(BlockId block);
  // The tree no longer names this cached block: it is free.
  void evict(BlockId block);

  int32_t refs(BlockId block) const;
  bool in_tree(BlockId block) const;
  int32_t total() const { return static_cast<int32_t>(entries_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  std::span<const BlockId> free_list() const { return free_; }
  int32_t cached() const { return cached_; }
  int32_t held() const { return held_; }

  // Recounts everything; throws octet::Fault unless free + cached + held == total and each block
  // is where its counts say. O(total).
  void check() const;

 private:
  struct Entry {
    int32_t refs = 0;
    bool in_tree = false;
  };
  Entry& at(BlockId block, const char* op);
  const Entry& at(BlockId block, const char* op) const;

  std::vector<Entry> entries_;
  std::vector<BlockId> free_;  // a stack; block 0 is taken first
  int32_t cached_ = 0;
  int32_t held_ = 0;
};

}  // namespace octet::sched
