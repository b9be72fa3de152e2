// FP8 linears of few rows (at most 64) by Hopper's FP8 tensor core: what remains is to read W.
//
// W is the tensor core's operand of 64 rows and the rows of x are its columns, 8 to 64 of them
// (wgmma.m64nNk32), so one row of x costs what eight do. Both come by TMA, into a ring of stages:
//
//   stage   block 0                 block 1 ...            block: 128 of k, a swizzled line a row
//   W      | height lines of 128 B | height lines | ...
//   x      | m lines of 128 B      | m lines      | ...
//
// The outputs of all weights of a launch are cut into tiles of `height` outputs, any number up to
// 128: it is chosen so that every SM has as many of them, since the tensor core has time to spare
// for the lines of a tile of 64 that are not there. (They are whatever follows in shared memory;
// each line of W gives a line of sums, so they disturb nobody.) A block takes `tiles_each` tiles,
// or a cluster of `split` blocks shares one, each with a slice of k, and adds in the order of the
// slices in the end.
//
// A warp fills the ring with W before the kernel before has ended (launch.cuh), then brings x.
//
// The order of summation: 128 of k in the tensor core, which keeps some 14 bits (h200.md); these
// sums in FP32, times their scales where those are by 128 of k, in ascending order; then slices. It
// depends on the split alone.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/kernels/context.h"
#include "backends/cuda/kernels/linear_parts.h"

namespace octet::cuda {

inline constexpr int kWgmmaMostRows = 64;     // of x
inline constexpr int kWgmmaMostMatrices = 4;  // weights of one launch
inline constexpr int kWgmmaBlock = 128;       // of k: bytes of a line
inline constexpr int kWgmmaMostHeight = 128;  // outputs of a tile
inline constexpr int kWgmmaConsumers = 128;   // threads that multiply: a warpgroup
inline constexpr int kWgmmaThreads = kWgmmaConsumers + 32;

struct WgmmaMatrix {
  const float* scale;  // or null: 1
  const void* bias;    // or null
  void* out;           // [m, n]
  int64_t out_stride;  // elements
  int n, first_tile;
};

// A kernel's only parameter.
struct WgmmaArgs {
  CUtensorMap w_map[kWgmmaMostMatrices];  // boxes of `height` lines
  CUtensorMap x_map;                      // boxes of m lines
  WgmmaMatrix matrix[kWgmmaMostMatrices];
  int matrices, tiles;  // tiles of all matrices
  int height, tiles_each, split;
  int blocks, slice_blocks;   // of k; of the slice of a block, at most
  int m;                      // rows of x
  bool w_blocked, x_blocked;  // a scale for each 128 of k
  bool bias_bf16, bias_f16, out_bf16;
  uint32_t w_cell_rows;               // outputs that share a scale: 1, multiples of 128, or all
  int64_t w_scale_row, w_scale_unit;  // floats from scale to scale, down and along k
  const float* x_scale;               // or null: 1
  int64_t x_scale_row, x_scale_unit;

  // Shared memory: | ring of W | ring of x | sums, if a block has several tiles (else in place of
  // the rings) | constants | scales of blocks of W | scales of x | barriers |; places and sizes in
  // bytes. A stage has `depth` blocks.
  int stages, depth;
  int w_block, x_block;  // bytes of a block of the rings, multiples of 1024
  int x_ring_at, sums_at, sums_pitch /* floats */, constants_at, w_scales_at, x_scales_at,
      barriers_at, shared;
};

using WgmmaKernel = void (*)(WgmmaArgs);
// For columns 8, 16, 32 or 64 of x and tiles of up to 64 * halves outputs, halves 1 or 2.
WgmmaKernel wgmma_kernel(int columns, int halves);
WgmmaKernel wgmma_kernel_blocked(int columns, int halves);

// What may be tuned; 0 leaves it to the plan.
struct WgmmaTuning {
  int split = 0;
  int tiles_each = 0;  // 1 if split > 1
  int depth = 0;
  int ring_bytes = 0;
};

// outs[i] = x · ws[i]ᵀ (+ bias). All ws have one k, one weight format and one input format; outs
// one type. Fault for what it cannot take.
void linear_wgmma(const KernelContext& context, const ops::Activation& x,
                  std::span<const ops::Linear* const> ws, std::span<const Tensor> outs,
                  const WgmmaTuning& tuning = {});

}  // namespace octet::cuda
