#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "text/byte_alphabet.h"
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

// Calls `put(id, length)` for each symbol before any merge. As the reference does it, an unknown
// token stays pending while bytes are spelled: it comes behind them.
template <typename Put>
void Bpe::spell(std::string_view piece, Put put) const {
  uint32_t pending = 0;  // length of an unknown token
  const auto put_pending = [&] {
    if (pending > 0) put(unknown_, pending);
    pending = 0;
  };
  const auto symbols_of = [&](char byte) -> const ByteSymbols& {
    return bytes_[static_cast<uint8_t>(byte)];
  };
  while (!piece.empty()) {
    const std::string_view part =
        piece.substr(0, characters_ ? static_cast<size_t>(utf8_step(piece).bytes) : 1);
    piece.remove_prefix(part.size());
    const uint32_t length =
        characters_ ? static_cast<uint32_t>(part.size()) : letter_length(part[0]);
    const ByteSymbols& first = symbols_of(part[0]);
    int32_t id = -1;
    if (characters_) {
      id = vocabulary_.find(part);
    } else if (first.count > 0 && !first.spelled) {
      id = first.ids[0];
    }
    if (id >= 0) {
      put_pending();
      put(id, length);
    } else if (std::ranges::all_of(part, [&](char c) { return symbols_of(c).count > 0; })) {
      for (const char c : part) {
        const ByteSymbols& symbols = symbols_of(c);
        for (uint8_t i = 0; i < symbols.count; ++i) put(symbols.ids[i], 1);
      }
    } else if (unknown_ >= 0) {
      if (!fuse_unknown_) put_pending();
      pending += length;
    }
  }
  put_pending();
}

// The id of a piece that is itself a token, where such a piece is not merged.
std::optional<int32_t> Bpe::whole_piece(std::string_view piece) const {
  const int32_t id = ignore_merges_ ? vocabulary_.find(piece) : -1;
  return id >= 0 ? std::optional(id) : std::nullopt;
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (piece.size() == 1 && !characters_ && bytes_[static_cast<uint8_t>(piece[0])].count == 1) {
    ids.push_back(bytes_[static_cast<uint8_t>(piece[0])].ids[0]);
    return;
  }
  const uint64_t hash = hash_bytes(piece);
  if (cache_.find(piece, hash, ids)) return;
  if (const auto whole = whole_piece(piece)) {
    ids.push_back(*whole);
    cache_.put(piece, hash, &*whole, 1);
    return;
  }

  scratch.ids.clear();
  spell(piece, [&](int32_t id, uint32_t) { scratch.ids.push_back(id); });
  if (scratch.ids.size() <= kShortPiece) {
    merge_short(scratch);
  } else {
    scratch.lengths.assign(scratch.ids.size(), 0);
    merge_long(scratch);
  }
  ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
  cache_.put(piece, hash, scratch.ids.data(), scratch.ids.size());
}

void Bpe::encode_with_lengths(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
                              std::vector<uint32_t>& lengths) const {
  scratch.ids.clear();
  scratch.lengths.clear();
  const auto put = [&](int32_t id, uint32_t length) {
    scratch.ids.push_back(id);
    scratch.lengths.push_back(length);
  };
  if (const auto whole = whole_piece(piece)) {
    uint32_t length = static_cast<uint32_t>(piece.size());
    if (!characters_) {
      length = 0;
      for (const char byte : piece) length += letter_length(byte);
    }
    put(*whole, length);
  } else {
    spell(piece, put);
    merge_long(scratch);
  }
  ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
  lengths.insert(lengths.end(), scratch.lengths.begin(), scratch.lengths.end());
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
    symbols.push_back({scratch.ids[i], i - 1, i + 1 < n ? i + 1 : -1, scratch.lengths[i]});
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
    left.length += right.length;
    left.next = right.next;
    if (right.next >= 0) symbols[right.next].previous = top.at;
    right.id = -1;
    if (left.previous >= 0 && candidate(left.previous)) {
      std::push_heap(heap.begin(), heap.end(), goes_later);
    }
    if (left.next >= 0 && candidate(top.at)) std::push_heap(heap.begin(), heap.end(), goes_later);
  }
  scratch.ids.clear();
  scratch.lengths.clear();
  for (int32_t i = n > 0 ? 0 : -1; i >= 0; i = symbols[i].next) {
    scratch.ids.push_back(symbols[i].id);
    scratch.lengths.push_back(symbols[i].length);
  }
}

}  // namespace octet::text
