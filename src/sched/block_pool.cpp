#include "sched/block_pool.h"

#include <fmt/format.h>

#include "base/error.h"

namespace octet::sched {

BlockPool::BlockPool(int32_t num_blocks) {
  if (num_blocks < 1) throw Fault(fmt::format("block pool of {} blocks", num_blocks));
  entries_.resize(static_cast<size_t>(num_blocks));
  free_.reserve(entries_.size());
  for (BlockId block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

BlockPool::Entry& BlockPool::at(BlockId block, const char* op) {
  if (block < 0 || block >= total()) {
    throw Fault(fmt::format("{}: block {} of a pool of {}", op, block, total()));
  }
  return entries_[static_cast<size_t>(block)];
}

const BlockPool::Entry& BlockPool::at(BlockId block, const char* op) const {
  return const_cast<BlockPool*>(this)->at(block, op);
}

std::optional<BlockId> BlockPool::acquire() {
  if (free_.empty()) return std::nullopt;
  const BlockId block = free_.back();
  free_.pop_back();
  at(block, "acquire").refs = 1;
  ++held_;
  return block;
}

void BlockPool::share(BlockId block) {
  Entry& entry = at(block, "share");
  if (entry.refs == 0) {
    if (!entry.in_tree) throw Fault(fmt::format("share: block {} is free", block));
    --cached_;
    ++held_;
  }
  ++entry.refs;
}

void BlockPool::release(BlockId block) {
  Entry& entry = at(block, "release");
  if (entry.refs == 0) throw Fault(fmt::format("release: block {} is not held", block));
  if (--entry.refs > 0) return;
  --held_;
  if (entry.in_tree) {
    ++cached_;
  } else {
    free_.push_back(block);
  }
}

void BlockPool::set_in_tree(BlockId block) {
  Entry& entry = at(block, "set_in_tree");
  if (entry.refs == 0 || entry.in_tree) {
    throw Fault(fmt::format("set_in_tree: block {} has {} references, in tree: {}", block,
                            entry.refs, entry.in_tree));
  }
  entry.in_tree = true;
}

void BlockPool::evict(BlockId block) {
  Entry& entry = at(block, "evict");
  if (entry.refs != 0 || !entry.in_tree) {
    throw Fault(fmt::format("evict: block {} has {} references, in tree: {}", block, entry.refs,
                            entry.in_tree));
  }
  entry.in_tree = false;
  --cached_;
  free_.push_back(block);
}

int32_t BlockPool::refs(BlockId block) const {
  return at(block, "refs").refs;
}

bool BlockPool::in_tree(BlockId block) const {
  return at(block, "in_tree").in_tree;
}

void BlockPool::check() const {
  int32_t cached = 0;
  int32_t held = 0;
  for (const Entry& entry : entries_) {
    if (entry.refs > 0) {
      ++held;
    } else if (entry.in_tree) {
      ++cached;
    }
  }
  std::vector<bool> seen(entries_.size());
  for (BlockId block : free_) {
    const Entry& entry = at(block, "check");
    if (entry.refs != 0 || entry.in_tree || seen[static_cast<size_t>(block)]) {
      throw Fault(fmt::format("block {} is on the free list, but used or listed twice", block));
    }
    seen[static_cast<size_t>(block)] = true;
  }
  if (cached != cached_ || held != held_ || free() + cached + held != total()) {
    throw Fault(
        fmt::format("blocks: free {} + cached {} (counted {}) + held {} (counted {}) != total {}",
                    free(), cached_, cached, held_, held, total()));
  }
}

}  // namespace octet::sched
