// The kernel of linear_wgmma.h.
#pragma once

#include "backends/cuda/kernels/device_math.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/linear_outputs.cuh"
#include "backends/cuda/kernels/linear_wgmma.h"
#include "backends/cuda/kernels/wgmma.cuh"

namespace octet::cuda::wgmma {

// What a block has to do: tiles [begin, end), blocks [first, first + count) of k.
struct Share {
  int rank, begin, end, first, count;
  __device__ explicit Share(const WgmmaArgs& a) {
    rank = static_cast<int>(blockIdx.x) % a.split;
    begin = static_cast<int>(blockIdx.x) / a.split * a.tiles_each;
    end = min(begin + a.tiles_each, a.tiles);
    first = rank * a.slice_blocks;
    count = max(0, min(a.slice_blocks, a.blocks - first));
  }
};

// Waits for the warpgroup that multiplies.
__device__ __forceinline__ void sync_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWgmmaConsumers) : "memory");
}
// All threads of the cluster; `Publish`: and what they wrote to shared memory is seen.
template <bool Publish>
__device__ __forceinline__ void sync_cluster() {
  if constexpr (Publish) {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  } else {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  }
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// A float at `address` of this block's shared memory, in block `rank` of the cluster.
__device__ __forceinline__ float load_of_rank(uint32_t address, int rank) {
  uint32_t remote;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
  return value;
}

// --- the warp that copies --------------------------------------------------------------

// The stages of a share, one after another.
struct Stages {
  int tile, block;  // block: of the slice
  __device__ explicit Stages(const Share& share) : tile(share.begin), block(0) {}
  __device__ __forceinline__ bool more(const Share& share) const { return tile < share.end; }
  __device__ __forceinline__ int count(const WgmmaArgs& a, const Share& share) const {
    return min(a.depth, share.count - block);
  }
  __device__ __forceinline__ void advance(const WgmmaArgs& a, const Share& share) {
    block += a.depth;
    if (block < share.count) return;
    block = 0;
    ++tile;
  }
};

__device__ __forceinline__ void copy_w(const WgmmaArgs& a, const Share& share, const Stages& at,
                                       int slot, uint32_t shared, uint64_t* full, uint64_t policy) {
  const int count = at.count(a, share), i = matrix_of(a, at.tile);
  arrive_and_expect(&full[slot], static_cast<uint32_t>(count * (a.height + a.m) * kWgmmaBlock));
  const int row = (at.tile - a.matrix[i].first_tile) * a.height;
  uint32_t to = shared + static_cast<uint32_t>(slot * a.depth * a.w_block);
  int column = (share.first + at.block) * kWgmmaBlock;
#pragma unroll 1
  for (int b = 0; b < count; ++b) {
    tensor_copy(to, &a.w_map[i], column, row, &full[slot], policy);
    to += static_cast<uint32_t>(a.w_block);
    column += kWgmmaBlock;
  }
}
__device__ __forceinline__ void copy_x(const WgmmaArgs& a, const Share& share, const Stages& at,
                                       int slot, uint32_t shared, uint64_t* full, uint64_t policy) {
  const int count = at.count(a, share);
  uint32_t to = shared + static_cast<uint32_t>(a.x_ring_at + slot * a.depth * a.x_block);
  int column = (share.first + at.block) * kWgmmaBlock;
#pragma unroll 1
  for (int b = 0; b < count; ++b) {
    tensor_copy(to, &a.x_map, column, 0, &full[slot], policy);
    to += static_cast<uint32_t>(a.x_block);
    column += kWgmmaBlock;
  }
}

// One thread: fills the ring with W, waits for x, and keeps the ring full.
__device__ __forceinline__ void produce(const WgmmaArgs& a, const Share& share, uint32_t shared,
                                        uint64_t* full, uint64_t* empty) {
  const uint64_t once = evict_first_policy(), again = evict_normal_policy();
  Stages w(share);
  int filled = 0;
  if (share.count > 0) {
#pragma unroll 1
    for (; filled < a.stages && w.more(share); ++filled, w.advance(a, share)) {
      copy_w(a, share, w, filled, shared, full, once);
    }
  }
  prefetch_tensor_map(&a.x_map);
  wait_for_previous();
  if (share.count == 0) return;
  Stages x(share);
#pragma unroll 1
  for (int slot = 0; slot < filled; ++slot, x.advance(a, share)) {
    copy_x(a, share, x, slot, shared, full, again);
  }
  RingPosition ring{0, 1};
#pragma unroll 1
  for (; w.more(share); w.advance(a, share)) {
    wait_or_trap(&empty[ring.slot], ring.parity ^ 1);
    copy_w(a, share, w, ring.slot, shared, full, once);
    copy_x(a, share, w, ring.slot, shared, full, again);
    ring.advance(a.stages);
  }
}

// --- scales ----------------------------------------------------------------------------

// Constants of all outputs of the share, as float2 [tiles_each, height]; and the scales of the
// blocks of W: a tile has lines of at most two cells, so float [tiles_each, 2, slice_blocks].
template <bool Blocked>
__device__ __forceinline__ void load_w_scales(const WgmmaArgs& a, const Share& share,
                                              float2* constants, float* w_scales) {
  const int tid = static_cast<int>(threadIdx.x);
  for (int i = tid; i < (share.end - share.begin) * a.height; i += kWgmmaConsumers) {
    const int tile = share.begin + i / a.height, matrix = matrix_of(a, tile);
    const int first = (tile - a.matrix[matrix].first_tile) * a.height;
    const OutputConstants c = output_constants(a, matrix, first + i % a.height);
    constants[i] = {c.scale, c.bias};
  }
  if constexpr (Blocked) {
    if (!a.w_blocked || share.count == 0) return;
    for (int i = tid; i < (share.end - share.begin) * 2 * share.count; i += kWgmmaConsumers) {
      const int block = i % share.count, j = i / share.count, tile = share.begin + j / 2;
      const WgmmaMatrix& w = a.matrix[matrix_of(a, tile)];
      const auto first = static_cast<uint32_t>((tile - w.first_tile) * a.height);
      const uint32_t last_cell = static_cast<uint32_t>(w.n - 1) / a.w_cell_rows;
      const uint32_t cell = min(first / a.w_cell_rows + j % 2, last_cell);
      w_scales[j * a.slice_blocks + block] =
          w.scale[cell * a.w_scale_row + (share.first + block) * a.w_scale_unit];
    }
  }
}

// The scales of x: [columns] or, if it has blocks, [slice_blocks, columns]; columns behind the last
// row are 0.
template <int N>
__device__ __forceinline__ void load_x_scales(const WgmmaArgs& a, const Share& share, float* to) {
  const int count = a.x_blocked ? share.count : 1;
  for (int i = static_cast<int>(threadIdx.x); i < N * count; i += kWgmmaConsumers) {
    const int m = i / count, block = i % count;
    float scale = m < a.m ? 1.0f : 0.0f;
    if (m < a.m && a.x_scale) {
      scale =
          a.x_scale[m * a.x_scale_row + (a.x_blocked ? (share.first + block) * a.x_scale_unit : 0)];
    }
    to[block * N + m] = scale;
  }
}

// --- the warpgroup that multiplies -----------------------------------------------------

// d = 64 lines of W by N lines of x, of one block of k.
template <int N>
__device__ __forceinline__ void multiply_block(float (&d)[N / 2], uint32_t w, uint32_t x) {
  const uint64_t a = swizzled_operand(w), b = swizzled_operand(x);
  multiply_async<N, true>(d, a, b);
  // 32 bytes of a line, in units of 16.
#pragma unroll
  for (uint64_t k = 2; k < 8; k += 2) multiply_async<N, false>(d, a + k, b + k);
}

// total += d, times the scales of this block: `w_scale` of lines g and g + 8, and those of x.
template <int N, bool Blocked>
__device__ __forceinline__ void accumulate(float (&total)[N / 2], const float (&d)[N / 2],
                                           float2 w_scale, const float* x_scales) {
  if constexpr (Blocked) {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      const float2 x = *reinterpret_cast<const float2*>(x_scales + 8 * j + 2 * t);
      float* const sum = &total[4 * j];
      sum[0] = __fmaf_rn(d[4 * j], w_scale.x * x.x, sum[0]);
      sum[1] = __fmaf_rn(d[4 * j + 1], w_scale.x * x.y, sum[1]);
      sum[2] = __fmaf_rn(d[4 * j + 2], w_scale.y * x.x, sum[2]);
      sum[3] = __fmaf_rn(d[4 * j + 3], w_scale.y * x.y, sum[3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) total[i] += d[i];
  }
}

// The scales that meet in one block of k. `w`, `x` are where the share's tables begin.
template <int N, int Halves, bool Blocked>
struct BlockScales {
  const float* w[Halves][2];  // of lines g and g + 8; null: 1
  const float* x;             // of block 0
  bool x_blocked;

  __device__ __forceinline__ float2 w_at(int half, int block) const {
    if constexpr (!Blocked) return {};
    return {w[half][0] ? w[half][0][block] : 1.0f, w[half][1] ? w[half][1][block] : 1.0f};
  }
  __device__ __forceinline__ const float* x_at(int block) const {
    return x + (x_blocked ? block * N : 0);
  }
};

// Multiplies `count` blocks of a stage. Two products are always on their way: those of two halves
// of the tile, or of two blocks.
template <int N, int Halves, bool Blocked>
__device__ __forceinline__ void multiply_stage(const WgmmaArgs& a, float (&total)[Halves][N / 2],
                                               uint32_t w, uint32_t x, int block, int count,
                                               const BlockScales<N, Halves, Blocked>& scales) {
  float d0[N / 2], d1[N / 2];
  for (int b = 0; b < count; b += Halves == 1 ? 2 : 1) {
    const uint32_t w0 = w + static_cast<uint32_t>(b * a.w_block),
                   x0 = x + static_cast<uint32_t>(b * a.x_block);
    // Where there is no second block, the first is multiplied again, in vain.
    const bool second = Halves == 2 || b + 1 < count;
    const uint32_t w1 = Halves == 2 ? w0 + 64 * kWgmmaBlock
                                    : w0 + (second ? static_cast<uint32_t>(a.w_block) : 0),
                   x1 = Halves == 2 ? x0 : x0 + (second ? static_cast<uint32_t>(a.x_block) : 0);
    fence_products();
    multiply_block<N>(d0, w0, x0);
    commit_products();
    multiply_block<N>(d1, w1, x1);
    commit_products();
    wait_products<1>(d0);
    accumulate<N, Blocked>(total[0], d0, scales.w_at(0, block + b), scales.x_at(block + b));
    wait_products<0>(d1);
    if constexpr (Halves == 2) {
      accumulate<N, Blocked>(total[1], d1, scales.w_at(1, block + b), scales.x_at(block + b));
    } else if (second) {
      accumulate<N, Blocked>(total[0], d1, scales.w_at(0, block + b + 1),
                             scales.x_at(block + b + 1));
    }
  }
}

// A tile's sums become outputs: those of every `ranks`-th row of x, from `rank` on.
// `sums`: float [m, sums_pitch], in each block of the cluster.
// In a Blocked kernel the scales of x are in the sums already.
template <int Halves, bool Blocked, bool Cluster>
__device__ __forceinline__ void store_tile(const WgmmaArgs& a, const float* sums, int tile,
                                           const float2* constants, const float* x_scales,
                                           int rank) {
  constexpr int rows = 64 * Halves, step = kWgmmaConsumers / rows;
  const int row = static_cast<int>(threadIdx.x) % rows;
  const WgmmaMatrix& w = a.matrix[matrix_of(a, tile)];
  const int n = (tile - w.first_tile) * a.height + row;
  if (row >= a.height || n >= w.n) return;
  const float2 constant = constants[row];
  for (int m = rank * step + static_cast<int>(threadIdx.x) / rows; m < a.m; m += a.split * step) {
    const float* const from = sums + m * a.sums_pitch + row;
    float sum = 0.0f;
    if constexpr (Cluster) {
      for (int r = 0; r < a.split; ++r) sum += load_of_rank(shared_address(from), r);
    } else {
      sum = *from;
    }
    const float y =
        __fadd_rn(__fmul_rn(__fmul_rn(sum, constant.x), Blocked ? 1.0f : x_scales[m]), constant.y);
    const int64_t at = m * w.out_stride + n;
    if (a.out_bf16) {
      static_cast<__nv_bfloat16*>(w.out)[at] = __float2bfloat16_rn(y);
    } else {
      static_cast<float*>(w.out)[at] = y;
    }
  }
}

template <int N, int Halves, bool Blocked>
__device__ __forceinline__ void consume(const WgmmaArgs& a, const Share& share, uint8_t* shared,
                                        uint64_t* full, uint64_t* empty) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % kWarp, warp = tid / kWarp;
  const int g = lane / 4, t = lane % 4;
  auto* const sums = reinterpret_cast<float*>(shared + a.sums_at);
  const auto* const constants = reinterpret_cast<const float2*>(shared + a.constants_at);
  const auto* const w_scales = reinterpret_cast<const float*>(shared + a.w_scales_at);
  const auto* const x_scales = reinterpret_cast<const float*>(shared + a.x_scales_at);
  RingPosition ring;
  for (int tile = share.begin; tile < share.end; ++tile) {
    BlockScales<N, Halves, Blocked> scales{};
    scales.x = x_scales;
    scales.x_blocked = a.x_blocked;
    if constexpr (Blocked) {
      if (a.w_blocked) {
        const int first = (tile - a.matrix[matrix_of(a, tile)].first_tile) * a.height;
#pragma unroll
        for (int i = 0; i < 2 * Halves; ++i) {
          const int row = i / 2 * 64 + warp * 16 + g + i % 2 * 8;
          // The cell of a line behind the tile's last does not matter, but must be there.
          const int cell =
              min(1, static_cast<int>(static_cast<uint32_t>(first + row) / a.w_cell_rows -
                                      static_cast<uint32_t>(first) / a.w_cell_rows));
          scales.w[i / 2][i % 2] = w_scales + ((tile - share.begin) * 2 + cell) * a.slice_blocks;
        }
      }
    }
    float total[Halves][N / 2] = {};
    for (int block = 0; block < share.count; block += a.depth) {
      wait_or_trap(&full[ring.slot], ring.parity);
      __syncwarp();
      const uint32_t w =
          shared_address(shared) + static_cast<uint32_t>(ring.slot * a.depth * a.w_block);
      const uint32_t x = shared_address(shared) +
                         static_cast<uint32_t>(a.x_ring_at + ring.slot * a.depth * a.x_block);
      multiply_stage<N, Halves, Blocked>(a, total, w, x, block, min(a.depth, share.count - block),
                                         scales);
      if (lane == 0) arrive_barrier(&empty[ring.slot]);
      ring.advance(a.stages);
    }
    // The sums of the tile before have been read; or the ring, in whose place those of an only tile
    // are.
    sync_consumers();
#pragma unroll
    for (int half = 0; half < Halves; ++half) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        const int row = half * 64 + warp * 16 + g + i / 2 % 2 * 8, m = i / 4 * 8 + t * 2 + i % 2;
        if (row < a.height && m < a.m) sums[m * a.sums_pitch + row] = total[half][i];
      }
    }
    if (a.split > 1) continue;  // the only tile: the cluster adds it
    sync_consumers();
    store_tile<Halves, Blocked, false>(a, sums, tile, constants + (tile - share.begin) * a.height,
                                       x_scales, 0);
  }
}

// Grid: clusters of a.split blocks; block: a warpgroup that multiplies, then a warp that copies.
template <int N, int Halves, bool Blocked>
__global__ void __launch_bounds__(kWgmmaThreads, 2)
    linear_kernel(const __grid_constant__ WgmmaArgs a) {
  extern __shared__ __align__(1024) uint8_t shared[];
  auto* const full = reinterpret_cast<uint64_t*>(shared + a.barriers_at);
  uint64_t* const empty = full + a.stages;
  allow_next();
  if (threadIdx.x == 0) {
    if (shared_address(shared) % 1024 != 0) __trap();
    for (int i = 0; i < a.stages; ++i) {
      init_barrier(&full[i], 1);
      init_barrier(&empty[i], kWgmmaConsumers / kWarp);
    }
    fence_barriers();
  }
  __syncthreads();

  const Share share(a);
  if (threadIdx.x >= kWgmmaConsumers) {
    if (elect_lane()) produce(a, share, shared_address(shared), full, empty);
    __syncwarp();
  } else {
    auto* const constants = reinterpret_cast<float2*>(shared + a.constants_at);
    load_w_scales<Blocked>(a, share, constants, reinterpret_cast<float*>(shared + a.w_scales_at));
    wait_for_previous();
    load_x_scales<N>(a, share, reinterpret_cast<float*>(shared + a.x_scales_at));
    sync_consumers();
    consume<N, Halves, Blocked>(a, share, shared, full, empty);
  }
  if (a.split > 1) {
    sync_cluster<true>();  // all sums are there
    if (threadIdx.x < kWgmmaConsumers) {
      store_tile<Halves, Blocked, true>(
          a, reinterpret_cast<const float*>(shared + a.sums_at), share.begin,
          reinterpret_cast<const float2*>(shared + a.constants_at),
          reinterpret_cast<const float*>(shared + a.x_scales_at), share.rank);
    }
    sync_cluster<false>();  // and have been read
  }
}

template <int Halves, bool Blocked>
WgmmaKernel kernel_for(int columns) {
  return columns == 8    ? linear_kernel<8, Halves, Blocked>
         : columns == 16 ? linear_kernel<16, Halves, Blocked>
         : columns == 32 ? linear_kernel<32, Halves, Blocked>
                         : linear_kernel<64, Halves, Blocked>;
}

}  // namespace octet::cuda::wgmma
