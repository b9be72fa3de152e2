// A tile of the cache, 64 tokens of one sequence and one KV head, converted once to BF16, which
// holds FP8 and BF16 values exactly, in the order in which the inner loops read it. All rows
// (token, head) that share the tile then use it.
//
// Two BF16 values make one 32-bit element, and the inner loops take it apart into two FP32 values
// by a shift and a mask: half the memory of FP32, so that a tile stays in L1. In K these are dims
// 2i and 2i + 1; where K is codes they are 4i and 4i + 2, then 4i + 1 and 4i + 3, as codes come
// apart in place of being moved (order_query puts q into that order). They multiply in
// FP32: processors whose BF16 dot product runs at half the rate of the FP32 multiply-add or less
// (Sapphire and Emerald Rapids, as measured) are faster that way. A cache in FP32 ("wide") stays
// FP32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "numerics/attention_rule.h"
#include "ops/kv_layout.h"

namespace octet::cpu::attention {

inline constexpr int kTile = static_cast<int>(attention_rule::kTileTokens);
inline constexpr int kChunk = 64;  // value dims that one pass of the inner loop covers

// The dimensions of a problem. A "group" is a run of dims that share a scale.
//
//   K dims  0 ...... k_dims - 1 | 0 ... rope_dims - 1       (rope_dims = 0 for GQA)
//           |group 0|group 1|..|  |   no scale     |
struct TileShape {
  int k_dims = 0, rope_dims = 0, v_dims = 0;
  int group_dims = 0;  // of K and V; a multiple of kChunk unless there is one group only
  int groups = 1;
  bool mla = false;  // V is the first part of K, and its scales are folded into P
  bool wide = false, wide_rope = false;  // the cache is FP32
  bool codes = false;                    // K is FP8
  bool amx = false;                      // BF16 holds all of it: for fast_attention_amx.h

  int padded_k() const { return (k_dims + 31) / 32 * 32; }
  // One behind the last dim that is multiplied: zeros fill up what comes apart together.
  int end_k() const { return codes ? (k_dims + 3) / 4 * 4 : k_dims; }
  int padded_rope() const { return (rope_dims + 31) / 32 * 32; }
  // Of V and of what is summed of it. Every 32 dims are in the order 0, 2, ... 30, 1, 3, ... 31, in
  // which elements of two BF16 values come apart (in a wide tile, too).
  int v_stride() const { return (v_dims + 31) / 32 * 32; }
};

// Where one sequence's K and V lie. Strides are in bytes for codes, in elements for scales; absent
// scales are null and mean 1.
struct TileSource {
  const std::byte *k = nullptr, *v = nullptr, *rope = nullptr;  // v unused for MLA
  int64_t k_block = 0, k_token = 0, v_block = 0, v_token = 0, rope_block = 0, rope_token = 0;
  int64_t k_head = 0, v_head = 0, scale_head = 0;  // from one KV head to the next
  DType type = DType::bf16, rope_type = DType::bf16;
  const float *k_scale = nullptr, *v_scale = nullptr;
  int64_t k_scale_block = 0, v_scale_block = 0, scale_token = 0;  // 0: of a block
  const int32_t* blocks = nullptr;  // this sequence's row of the block table
  int64_t block_tokens = 0;
};

struct Tile {
  std::byte* k = nullptr;     // [padded_k / 2][64 tokens] two dims; wide: [padded_k][64 tokens];
                              // amx: [64 tokens][padded_k], dims in their own order
  std::byte* rope = nullptr;  // the same of the rope dims
  std::byte* v = nullptr;     // [64 tokens][v_stride / 2] two dims; wide: [64 tokens][v_stride];
                              // amx: [32][v_stride] two tokens, zero where products go beyond
  float* k_scale = nullptr;   // [groups][64]
  float* v_scale = nullptr;   // [groups][64]; MLA: the same as k_scale
  float* weight = nullptr;    // [groups][64]: v_scale / S of a row that sees the whole tile
  float* factor = nullptr;    // [groups]: its S
  bool equal_scales = false;  // of the loaded slots: then all weights are 1
  bool finite_v = true;       // no NaN or Inf among the loaded V

  // Bytes of memory for a tile of that shape; place() cuts it up. Both 64-byte aligned.
  static size_t bytes(const TileShape& shape);
  static Tile place(const TileShape& shape, std::byte* memory);
};

// Step 5's S of a row that sees the slots of `mask`, and v_scale / S of every slot (anything
// outside the mask). Needs AVX-512, as does load_tile.
float value_weights(bool mla, const float* scales, uint64_t mask, float* weight);

// Where the tokens of a tile lie, for all KV heads alike: the rows of head 0. Slots outside
// [begin, end) have the address of one inside.
struct TilePlaces {
  int begin = 0, end = 0;
  std::array<const std::byte*, kTile> k{}, v{}, rope{};
  // Tokens of one block, which may share a scale.
  struct Run {
    int begin, end;
    int64_t block, slot;
  };
  std::array<Run, kTile> runs{};
  int count = 0;  // of runs
};

// Slots [begin, end), at least one, of the tile that starts at position `first`.
void find_places(const TileSource& source, int64_t first, int begin, int end, TilePlaces& places);

// Fetches what load_tile reads of a KV head: for a task's first tile, as the others are fetched by
// the one before.
void prefetch_tile(const TileSource& source, const TileShape& shape, const TilePlaces& places,
                   int64_t head);

// Loads the slots of `places` of a KV head; no row may look at others. The head's rows at `next`,
// if there is a next tile, are fetched ahead: into L2 if `far`, where other heads come before it,
// else into L1.
void load_tile(const TileSource& source, const TileShape& shape, const TilePlaces& places,
               const TilePlaces* next, bool far, int64_t head, Tile& tile);

// Eight rows of `dims` codes or BF16 values as V for AMX: [4][padded] pairs, of every 32 dims the
// even ones first; zero behind `dims`. `padded` is a multiple of 32. Returns whether all are
// finite.
bool pair_rows(DType type, const std::byte* const* rows, int dims, int padded, uint16_t* out);

// Sixteen such rows as K: sixteen of 64 columns of [padded / 2][64], of codes in the order above.
void column_rows(DType type, const std::byte* const* rows, int dims, int padded, uint32_t* out);

}  // namespace octet::cpu::attention
