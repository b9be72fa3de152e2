// The arithmetic of attention_rule.h for a few rows and one tile, and the state of a row between
// tiles. Needs AVX-512.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels/fast_attention_tile.h"

namespace octet::cpu::attention {

enum class RoundP : uint8_t { none, bf16, e4m3 };

// Rows of queries and what they have accumulated, as arrays. A row's M, l and O:
//   max [rows]; sum [rows][16]: l in 16 parts, added up at the end; value [rows][v_stride]
struct Rows {
  const float* q = nullptr;  // [rows][q_stride]: k_dims, then at padded_k() the rope dims
  int q_stride = 0;
  // TileShape::amx: the same as BF16, two dims an element: [q_stride / 2][q16_rows], zeros up to
  // the paddings.
  const uint32_t* q16 = nullptr;
  int q16_rows = 0;
  int* tiles = nullptr;            // TileShape::amx: rows that the thread's tiles are set up for
  const float* q_scale = nullptr;  // [rows]
  int64_t* position = nullptr;     // [rows]
  float* max = nullptr;
  float* sum = nullptr;
  float* value = nullptr;
};

struct Math {
  float scale = 1.0f;  // spec.scale * log2(e)
  int64_t window = 0;
  RoundP round = RoundP::none;
};

// Adds a tile, whose first slot is position `first`, to rows [begin, end), which ascend in
// position.
void attend_tile(const TileShape& shape, const Math& math, const Tile& tile, int64_t first,
                 const Rows& rows, int begin, int end);

// M, l, O of a row that has seen nothing.
void clear_row(const TileShape& shape, float& max, float* sum, float* value);

// A split's M, l, O join the total's.
void merge_row(const TileShape& shape, float& total_max, float* total_sum, float* total_value,
               float split_max, const float* split_sum, const float* split_value);

// out = O / l as f32 or bf16 (whichever is present), and the log-sum-exp if that is wanted.
void finish_row(const TileShape& shape, float max, const float* sum, const float* value,
                float* out_f32, uint16_t* out_bf16, float* lse);

// A query row as FP32: the values themselves, or their E4M3 codes' values with the scale returned.
// `bf16` tells the type of `in`. `out` is written up to a multiple of 16.
float load_query(const void* in, bool bf16, int dims, bool quantize, float* out);

// The same as BF16, for values that it holds exactly, as pairs that are `step` elements apart;
// zeros from `dims` (rounded up to 16) to `padded`, a multiple of 16.
void pair_query(int dims, int padded, const float* q, int step, uint32_t* out);

// Puts a query, which load_query left at `q`, into the order of a tile of codes: 0, 2, 1, 3, 4, ...
void order_query(int dims, float* q);

}  // namespace octet::cpu::attention
