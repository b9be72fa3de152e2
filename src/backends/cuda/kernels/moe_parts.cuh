// What the kernels of moe_experts share. A pair is a token and one of its experts, number
// token * top_k + i; a tile is some of the pairs of one expert, which are computed together so that
// the expert's weights are read once for all of them.
//
//   routing        token 0: 5 2   token 1: 2 7            pairs 0 1 2 3
//   plan           order: 1 2 | 0 | 3                     pairs sorted by expert
//                  tiles: {2, 0, 2} {5, 2, 1} {7, 3, 1}   expert, first in order, count
//   gate and up    hidden[pair] = silu(x · Wg) ⊙ (x · Wu)   f32 [pairs, inner]
//   quantize       codes and scales of hidden
//   down           result[pair] = hidden · Wd             f32 [pairs, out]
//   combine        out[token] = Σ weight · result[pair], in ascending order of the expert
#pragma once

#include "backends/cuda/kernels/device_math.cuh"
#include "backends/cuda/kernels/expert_table.h"
#include "backends/cuda/kernels/launch.cuh"

namespace octet::cuda::moe {

struct alignas(16) Tile {
  int expert, first, count;  // count 0: nothing to do, nor in the tiles behind
  int unused;
};

// The work of a chunk of tokens, on the device; how many tiles are in use is known there alone.
struct Plan {
  const int32_t* order;  // [pairs]
  const Tile* tiles;     // [most_tiles]
  int pairs, most_tiles, tile_tokens;
};

// The input of a linear. Row of pair p: p / pairs_per_row.
struct Input {
  const void* data;  // f32 or bf16, or codes
  DType type;
  int64_t stride;  // elements
  // Of codes: the scale of (row, column) is scales[row * scale_row + column / step * scale_col].
  const float* scales;  // null: 1
  int64_t scale_row, scale_col;
  int step;  // columns
  int pairs_per_row;
};

// silu(x), with IEEE division: within a few units in the last place of numerics/exact_math.h.
__device__ __forceinline__ float silu(float x) {
  return x * (1.0f / (1.0f + expf(-x)));
}
// Element i of a bias of f32, bf16 or f16; 0 if there is none.
__device__ __forceinline__ float bias_at(const void* bias, DType type, int64_t i) {
  if (bias == nullptr) return 0.0f;
  if (type == DType::f32) return static_cast<const float*>(bias)[i];
  if (type == DType::bf16) return to_float(static_cast<const __nv_bfloat16*>(bias)[i]);
  return to_float(static_cast<const __half*>(bias)[i]);
}

// hidden f32 [pairs, inner] and result f32 [pairs, out]. The fast kernels take E4M3 codes on both
// sides, rows of 16 bytes, and scales for whole rows or steps of 128; the generic ones take all.
bool fast_accepts(const ExpertForm& w, const Input& x);
void fast_gate_up(const KernelContext&, const ExpertTable&, const Plan&, const Input& x,
                  float* hidden);
void fast_down(const KernelContext&, const ExpertTable&, const Plan&, const Input& hidden,
               float* result);
void generic_gate_up(const KernelContext&, const ExpertTable&, const Plan&, const Input& x,
                     float* hidden);
void generic_down(const KernelContext&, const ExpertTable&, const Plan&, const Input& hidden,
                  float* result);

// Tokens of a tile that the generic kernels take; the fast ones take 8 or 32.
inline constexpr int kGenericTile = 8;

}  // namespace octet::cuda::moe
