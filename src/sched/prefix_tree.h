// Which token prefixes have their KV in a block: a radix tree whose every edge is one whole block
// of tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sched/block_pool.h"

namespace octet::sched {

// A node is named by its block: a block is in at most one node, and a node has exactly one block.
// Tokens are compared, never only hashed, so no collision can hand out another request's KV.
// Prefixes live under a salt; equal tokens under different salts are different.
//
// The tree holds no references. Whoever uses a node holds the blocks of its whole path from the
// root, so a cached block never has a held one below it, and every cached block can be evicted.
class PrefixTree {
 public:
  // pool must outlive the tree. block_tokens >= 1.
  PrefixTree(BlockPool& pool, int32_t block_tokens);

  // The longest path of whole blocks that equals the start of tokens, at most max_blocks of it.
  // Takes no references and does not count as a use.
  std::vector<BlockId> match(std::string_view salt, std::span<const TokenId> tokens,
                             int32_t max_blocks) const;

  // Adds the edge `tokens` (block_tokens of them) below `parent` (kNoBlock = the root of salt) with
  // a held block. If the edge exists its block is returned and `block` stays out of the tree; else
  // `block` is in the tree and is returned.
  BlockId insert(std::string_view salt, BlockId parent, std::span<const TokenId> tokens,
                 BlockId block);

  // Marks the path from the root down to this node as used now. (Only the node is written: the
  // others are no leaves, and learn of it when what is below them is evicted.)
  void touch(BlockId node);

  // Removes the least recently used leaf that nobody holds, and frees its block. False = none.
  bool evict();

  // Blocks in the tree.
  int32_t size() const { return size_; }

  // Throws octet::Fault if the links, the leaves or the pool's marks disagree. O(total).
  void check() const;

 private:
  struct Less {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
  };
  using Children = std::map<std::vector<TokenId>, BlockId, Less>;
  using Roots = std::map<std::string, Children, std::less<>>;
  struct Node {
    bool used = false;
    BlockId parent = kNoBlock;
    uint64_t last_use = 0;
    Roots::iterator root;           // the salt it lives under
    Children::const_iterator edge;  // its entry among its parent's children
    Children children;
  };
  Node& at(BlockId block);
  Children& children_of(Roots::iterator root, BlockId parent);

  BlockPool& pool_;
  int32_t block_tokens_;
  std::vector<Node> nodes_;  // by block id
  Roots roots_;
  std::set<std::pair<uint64_t, BlockId>> leaves_;  // (last use, node): least recently used first
  uint64_t clock_ = 0;                             // counts uses; not time
  int32_t size_ = 0;
};

}  // namespace octet::sched
