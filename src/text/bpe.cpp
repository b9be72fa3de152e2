#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "text/utf8.h"

namespace octet::text {
namespace {

// Up to here looking at all pairs for the lowest rank is faster than keeping a heap.
constexpr size_t kShortPiece = 48;

constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();

uint64_t pair_key(int32_t left, int32_t right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
}

size_t pair_hash(uint64_t pair) {
  const uint64_t product = pair * 0x9E3779B97F4A7C15u;
  return product ^ (product >> 32);
}

// std heaps have the largest first.
bool goes_later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

}  // namespace

PieceCache::PieceCache() : entries_(std::make_unique<Entry[]>(kEntries)) {}

bool PieceCache::find(std::string_view piece, uint64_t hash, std::vector<int32_t>& ids) {
  if (piece.size() > kKeyBytes) return false;
  Entry& entry = entries_[hash % kEntries];
  if (entry.busy.exchange(1, std::memory_order_acquire) != 0) return false;
  const bool hit =
      entry.length == piece.size() && std::memcmp(entry.key, piece.data(), piece.size()) == 0;
  if (hit) ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
  entry.busy.store(0, std::memory_order_release);
  return hit;
}

void PieceCache::put(std::string_view piece, uint64_t hash, const int32_t* ids, size_t count) {
  if (piece.empty() || piece.size() > kKeyBytes || count > kIds) return;
  Entry& entry = entries_[hash % kEntries];
  if (entry.busy.exchange(1, std::memory_order_acquire) != 0) return;
  entry.length = static_cast<uint8_t>(piece.size());
  entry.count = static_cast<uint8_t>(count);
  std::memcpy(entry.key, piece.data(), piece.size());
  std::copy_n(ids, count, entry.ids);
  entry.busy.store(0, std::memory_order_release);
}

Bpe::Bpe(BpeModel model, const StringIdMap& vocabulary)
    : bytes_(model.bytes),
      characters_(model.characters),
      unknown_(model.unknown),
      fuse_unknown_(model.fuse_unknown),
      ignore_merges_(model.ignore_merges),
      merges_(std::bit_ceil(2 * model.merges.size() + 2)),
      vocabulary_(vocabulary) {
  for (const Merge& merge : model.merges) {
    const uint64_t key = pair_key(merge.left, merge.right);
    size_t i = pair_hash(key);
    const size_t mask = merges_.size() - 1;
    while (merges_[i & mask].rank >= 0 && merges_[i & mask].pair != key) ++i;
    merges_[i & mask] = {key, merge.rank, merge.result};
  }
}

const Bpe::Slot* Bpe::find_merge(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t i = pair_hash(key);; ++i) {
    const Slot& slot = merges_[i & mask];
    if (slot.pair == key) return &slot;
    if (slot.rank < 0) return nullptr;
  }
}

void Bpe::spell_bytes(std::string_view piece, std::vector<int32_t>& ids) const {
  bool after_unknown = false;
  for (const char c : piece) {
    const ByteSymbols& symbols = bytes_[static_cast<uint8_t>(c)];
    if (symbols.unknown && after_unknown && fuse_unknown_) continue;
    after_unknown = symbols.unknown;
    ids.insert(ids.end(), symbols.ids, symbols.ids + symbols.count);
  }
}

// As the reference does it, an unknown token stays pending while bytes are spelled: it comes behind
// them.
void Bpe::spell_characters(std::string_view piece, std::vector<int32_t>& ids) const {
  bool pending = false;
  const auto put_pending = [&] {
    if (pending) ids.push_back(unknown_);
    pending = false;
  };
  while (!piece.empty()) {
    const std::string_view character = piece.substr(0, utf8_step(piece).bytes);
    piece.remove_prefix(character.size());
    if (const int32_t id = vocabulary_.find(character); id >= 0) {
      put_pending();
      ids.push_back(id);
    } else if (std::ranges::all_of(
                   character, [&](char c) { return bytes_[static_cast<uint8_t>(c)].count > 0; })) {
      for (const char c : character) ids.push_back(bytes_[static_cast<uint8_t>(c)].ids[0]);
    } else if (unknown_ >= 0) {
      if (!fuse_unknown_) put_pending();
      pending = true;
    }
  }
  put_pending();
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (piece.size() == 1 && !characters_ && bytes_[static_cast<uint8_t>(piece[0])].count == 1) {
    ids.push_back(bytes_[static_cast<uint8_t>(piece[0])].ids[0]);
    return;
  }
  const uint64_t hash = hash_bytes(piece);
  if (cache_.find(piece, hash, ids)) return;
  if (ignore_merges_) {
    const int32_t id = vocabulary_.find(piece);
    if (id >= 0) {
      ids.push_back(id);
      cache_.put(piece, hash, &id, 1);
      return;
    }
  }

  scratch.ids.clear();
  if (characters_) {
    spell_characters(piece, scratch.ids);
  } else {
    spell_bytes(piece, scratch.ids);
  }
  if (scratch.ids.size() <= kShortPiece) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
  ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
  cache_.put(piece, hash, scratch.ids.data(), scratch.ids.size());
}

void Bpe::merge_short(Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids;
  if (ids.size() < 2) return;
  std::vector<int32_t>& ranks = scratch.ranks;      // of the pair (i, i+1)
  std::vector<int32_t>& results = scratch.results;  // what it becomes
  ranks.resize(ids.size() - 1);
  results.resize(ids.size() - 1);
  const auto look_up = [&](size_t i) {
    const Slot* merge = find_merge(ids[i], ids[i + 1]);
    ranks[i] = merge ? merge->rank : kNoRank;
    results[i] = merge ? merge->result : -1;
  };
  for (size_t i = 0; i < ranks.size(); ++i) look_up(i);
  while (!ranks.empty()) {
    // min_element gives the first of equals: the leftmost.
    const auto lowest = std::min_element(ranks.begin(), ranks.end());
    if (*lowest == kNoRank) return;
    const ptrdiff_t at = lowest - ranks.begin();
    ids[at] = results[at];
    ids.erase(ids.begin() + at + 1);
    ranks.erase(ranks.begin() + at);
    results.erase(results.begin() + at);
    if (at > 0) look_up(at - 1);
    if (at < std::ssize(ranks)) look_up(at);
  }
}

void Bpe::merge_long(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  const int32_t n = static_cast<int32_t>(scratch.ids.size());
  for (int32_t i = 0; i < n; ++i) {
    symbols.push_back({scratch.ids[i], i - 1, i + 1 < n ? i + 1 : -1});
  }
  const auto candidate = [&](int32_t at) {
    const int32_t left = symbols[at].id, right = symbols[symbols[at].next].id;
    const Slot* merge = find_merge(left, right);
    if (merge) heap.push_back({merge->rank, at, left, right, merge->result});
    return merge != nullptr;
  };
  for (int32_t i = 0; i + 1 < n; ++i) candidate(i);
  std::make_heap(heap.begin(), heap.end(), goes_later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), goes_later);
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[top.at];
    // A candidate is out of date once either side has merged into something else.
    if (left.id != top.left || left.next < 0 || symbols[left.next].id != top.right) continue;
    Scratch::Symbol& right = symbols[left.next];
    left.id = top.result;
    left.next = right.next;
    if (right.next >= 0) symbols[right.next].previous = top.at;
    right.id = -1;
    if (left.previous >= 0 && candidate(left.previous)) {
      std::push_heap(heap.begin(), heap.end(), goes_later);
    }
    if (left.next >= 0 && candidate(top.at)) std::push_heap(heap.begin(), heap.end(), goes_later);
  }
  scratch.ids.clear();
  for (int32_t i = 0; i >= 0; i = symbols[i].next) scratch.ids.push_back(symbols[i].id);
}

}  // namespace octet::text
