#include "sched/prefix_tree.h"

#include <fmt/format.h>

#include "base/error.h"

namespace octet::sched {

PrefixTree::PrefixTree(BlockPool& pool, int32_t block_tokens)
    : pool_(pool), block_tokens_(block_tokens), nodes_(static_cast<size_t>(pool.total())) {
  if (block_tokens < 1) throw Fault(fmt::format("prefix tree of {}-token blocks", block_tokens));
}

PrefixTree::Node& PrefixTree::at(BlockId block) {
  if (block < 0 || block >= pool_.total() || !nodes_[static_cast<size_t>(block)].used) {
    throw Fault(fmt::format("block {} is not in the prefix tree", block));
  }
  return nodes_[static_cast<size_t>(block)];
}

PrefixTree::Children& PrefixTree::children_of(Roots::iterator root, BlockId parent) {
  return parent == kNoBlock ? root->second : at(parent).children;
}

std::vector<BlockId> PrefixTree::match(std::string_view salt, std::span<const TokenId> tokens,
                                       int32_t max_blocks) const {
  std::vector<BlockId> path;
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return path;
  const auto width = static_cast<size_t>(block_tokens_);
  const Children* children = &root->second;
  while (static_cast<int32_t>(path.size()) < max_blocks && tokens.size() >= width) {
    const auto edge = children->find(tokens.first(width));
    if (edge == children->end()) break;
    path.push_back(edge->second);
    children = &nodes_[static_cast<size_t>(edge->second)].children;
    tokens = tokens.subspan(width);
  }
  return path;
}

BlockId PrefixTree::insert(std::string_view salt, BlockId parent, std::span<const TokenId> tokens,
                           BlockId block) {
  if (tokens.size() != static_cast<size_t>(block_tokens_)) {
    throw Fault(fmt::format("prefix tree edge of {} tokens, not {}", tokens.size(), block_tokens_));
  }
  auto root = roots_.find(salt);
  if (root == roots_.end()) root = roots_.emplace(std::string(salt), Children()).first;
  if (parent != kNoBlock && at(parent).root != root) {
    throw Fault(fmt::format("block {} is under another salt", parent));
  }
  Children& children = children_of(root, parent);
  if (const auto found = children.find(tokens); found != children.end()) return found->second;

  pool_.set_in_tree(block);  // a Fault unless the block is held and not in the tree
  if (parent != kNoBlock && children.empty()) leaves_.erase({at(parent).last_use, parent});
  const auto edge =
      children.emplace(std::vector<TokenId>(tokens.begin(), tokens.end()), block).first;
  Node& node = nodes_[static_cast<size_t>(block)];
  node.used = true;
  node.parent = parent;
  node.last_use = ++clock_;
  node.root = root;
  node.edge = edge;
  leaves_.emplace(node.last_use, block);
  ++size_;
  return block;
}

void PrefixTree::touch(BlockId block) {
  Node& node = at(block);
  ++clock_;
  if (node.children.empty()) {
    leaves_.erase({node.last_use, block});
    leaves_.emplace(clock_, block);
  }
  node.last_use = clock_;
}

// Held leaves are skipped: there is at most one for each sequence that holds blocks.
bool PrefixTree::evict() {
  for (auto leaf = leaves_.begin(); leaf != leaves_.end(); ++leaf) {
    const BlockId block = leaf->second;
    if (pool_.refs(block) > 0) continue;
    leaves_.erase(leaf);
    Node& node = at(block);
    const BlockId parent = node.parent;
    const Roots::iterator root = node.root;
    Children& siblings = children_of(root, parent);
    siblings.erase(node.edge);
    if (parent != kNoBlock) {  // a use of the leaf was a use of its parent
      at(parent).last_use = std::max(at(parent).last_use, node.last_use);
    }
    if (siblings.empty()) {
      if (parent == kNoBlock) {
        roots_.erase(root);
      } else {
        leaves_.emplace(at(parent).last_use, parent);
      }
    }
    node = Node();
    pool_.evict(block);
    --size_;
    return true;
  }
  return false;
}

void PrefixTree::check() const {
  int32_t used = 0;
  size_t leaves = 0;
  for (BlockId block = 0; block < pool_.total(); ++block) {
    const Node& node = nodes_[static_cast<size_t>(block)];
    if (node.used != pool_.in_tree(block)) {
      throw Fault(
          fmt::format("block {}: in tree {}, marked {}", block, node.used, pool_.in_tree(block)));
    }
    if (!node.used) continue;
    ++used;
    if (node.edge->second != block) throw Fault(fmt::format("block {}: edge leads away", block));
    if (node.children.empty()) {
      ++leaves;
      if (!leaves_.contains({node.last_use, block})) {
        throw Fault(fmt::format("block {}: leaf not listed", block));
      }
    }
    for (const auto& [tokens, child] : node.children) {
      const Node& below = nodes_[static_cast<size_t>(child)];
      if (!below.used || below.parent != block || below.root != node.root) {
        throw Fault(fmt::format("block {}: child {} does not know it", block, child));
      }
      if (pool_.refs(block) == 0 && pool_.refs(child) > 0) {
        throw Fault(fmt::format("block {} is cached above the held block {}", block, child));
      }
    }
  }
  if (used != size_ || leaves != leaves_.size()) {
    throw Fault(fmt::format("prefix tree: {} nodes (counted {}), {} leaves (counted {})", size_,
                            used, leaves_.size(), leaves));
  }
}

}  // namespace octet::sched
