// Byte-pair encoding: a piece of text becomes the ids of its bytes (or characters), and then, again
// and again, the neighbours whose merge has the lowest rank become one; the leftmost of equals goes
// first.
// Rule: Sennrich et al. 2016 in the order of Hugging Face tokenizers, models/bpe/{model,word}.rs.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "text/token_table.h"

namespace octet::text {

// `left` and `right` side by side become `result`. The lowest rank, which is not negative, goes
// first.
struct Merge {
  int32_t left, right, result, rank;
};

// What a byte is before any merge; where symbols are characters, what it is as one of those that
// spell a character that is not in the vocabulary.
struct ByteSymbols {
  int32_t ids[2] = {-1, -1};  // two where byte_fallback spells the byte's letter as <0xHH><0xHH>
  uint8_t count = 0;          // 0: the vocabulary has nothing for it
  bool spelled = false;       // by byte_fallback
};

struct BpeModel {
  std::array<ByteSymbols, 256> bytes;
  std::vector<Merge> merges;  // a pair listed twice has the later rank
  // Merging begins with characters, as SentencePiece models do, and not with bytes. A character
  // that is not in the vocabulary is spelled by `bytes` if all of its bytes have symbols there.
  bool characters = false;
  int32_t unknown = -1;        // what else a byte or character becomes; -1: it vanishes
  bool fuse_unknown = false;   // neighbouring unknown bytes or characters become one unknown token
  bool ignore_merges = false;  // a piece that is itself a token is that token (Llama-3)
};

// Short pieces and their ids, so that common words are merged once. Bounded (1 MiB, one place for
// each hash, the newest stays) and shared by all threads. An entry that another thread is using
// counts as a miss: nobody ever waits, and the answer is the same either way.
class PieceCache {
 public:
  PieceCache();
  // Appends the ids of `piece` to `ids` if they are known.
  bool find(std::string_view piece, uint64_t hash, std::vector<int32_t>& ids);
  // Remembers them if they are few and the piece is short.
  void put(std::string_view piece, uint64_t hash, const int32_t* ids, size_t count);

 private:
  static constexpr size_t kEntries = 16384;
  static constexpr size_t kKeyBytes = 33, kIds = 7;
  struct alignas(64) Entry {
    std::atomic<uint8_t> busy{0};
    uint8_t length = 0;  // 0: empty
    uint8_t count = 0;
    char key[kKeyBytes];
    int32_t ids[kIds];
  };
  static_assert(sizeof(Entry) == 64);
  std::unique_ptr<Entry[]> entries_;
};

// Immutable but for its cache: any number of threads may encode at once.
class Bpe {
 public:
  // Memory of one caller, kept between calls.
  struct Scratch {
    struct Symbol {
      int32_t id, previous, next;  // neighbours by index, -1 at the ends; id -1: merged away
      uint32_t length;
    };
    struct Candidate {
      int32_t rank, at, left, right, result;
    };
    std::vector<int32_t> ids, ranks, results;
    std::vector<uint32_t> lengths;
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // `vocabulary` maps the bytes of a token to its id; used for characters and ignore_merges, and
  // must outlive this.
  Bpe(BpeModel model, const StringIdMap& vocabulary);

  // Appends the ids of `piece` to `ids`. O(n log n) in its bytes. The piece has at most 2^31-1
  // bytes.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

  // The same, slowly, and how long each token is as the reference counts: in bytes of the piece as
  // it is written (a byte-level piece in the letters of text/byte_alphabet.h, some of which are two
  // bytes long), by what was merged into it. A token of the text behind something that vanished has
  // its length, but its place is that of the sum before it.
  void encode_with_lengths(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
                           std::vector<uint32_t>& lengths) const;

 private:
  struct Slot {
    uint64_t pair = ~uint64_t{0};
    int32_t rank = -1, result = -1;
  };
  const Slot* find_merge(int32_t left, int32_t right) const;
  template <typename Put>
  void spell(std::string_view piece, Put put) const;
  std::optional<int32_t> whole_piece(std::string_view piece) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  std::array<ByteSymbols, 256> bytes_;
  bool characters_;
  int32_t unknown_;
  bool fuse_unknown_, ignore_merges_;
  std::vector<Slot> merges_;  // open addressing, a power of two, at most half full
  const StringIdMap& vocabulary_;
  mutable PieceCache cache_;
};

}  // namespace octet::text
