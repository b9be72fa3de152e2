// How the kernel of linear_thin.h multiplies E4M3 codes as they are, by wgmma.
//
// The instruction multiplies 64 lines of A by 8 (or 16, 32) of B, 32 of k: an operand that is not
// swizzled is groups of eight lines of 16 bytes, one behind another, so 128 bytes that follow each
// other. Here these are not eight rows but 128 bytes of one row, whose eighths take the lines'
// places:
//
//   row n of W    | 16 B: line 0 | line 1 | ... | line 7 | line 0 | line 1 | ... | line 7 | ...
//   row m of x    | column 0     | col. 1 | ... | col. 7 | col. 0 | ...
//                 '------------ first 16 of k -----------'------ second 16 of k -----------'
//
// Line r of a row of W meets what belongs to it in column r of a row of x: the eight sums on the
// diagonal of their 8 x 8 are eight parts of one output, and the others are of no use, but the
// tensor core has time for them. So an instruction reads 256 bytes of each of eight rows of W, from
// wherever they lie (rows of W a pitch apart, x as it is), and a warp issues one where it would
// convert and multiply 2,048 codes by itself.
#pragma once

#include "backends/cuda/kernels/linear_thin_x.cuh"
#include "backends/cuda/kernels/wgmma.cuh"

namespace octet::cuda::thin {

// From a pair of units to the next, as a descriptor counts.
inline constexpr uint64_t kPairStep = 2 * kThinUnit >> 4;

// Groups of eight lines that lie as above; neighbours in k are 128 bytes apart, other rows `pitch`.
__device__ __forceinline__ uint64_t rows_as_lines(uint32_t address, uint32_t pitch) {
  return uint64_t{(address & 0x3FFFFu) >> 4} | uint64_t{128 >> 4} << 16 |
         uint64_t{pitch >> 4} << 32;
}

// total += the products of `Count` times 256 bytes of eight rows of W and of the rows of x.
template <int Columns, int Count>
__device__ __forceinline__ void multiply_pairs(float (&total)[4 * Columns], uint64_t w,
                                               uint64_t x) {
  float sum[4 * Columns];
  fence_products();
  multiply_async<8 * Columns, true>(sum, w, x);
#pragma unroll
  for (int i = 1; i < Count; ++i) {
    multiply_async<8 * Columns, false>(sum, w + i * kPairStep, x + i * kPairStep);
  }
  commit_products();
  wait_products<0>(sum);
#pragma unroll
  for (int i = 0; i < 4 * Columns; ++i) total[i] += sum[i];
}

// Multiplies a tile of W [16, slice] with x: `sums` [m, 16]. A rehearsal leaves the ring full. Each
// of the two warpgroups has eight rows of the tile. Columns: rows of x that there is memory for.
template <int Columns, int Warps>
__device__ __forceinline__ void multiply_codes(const ThinArgs& a, const Slice& slice,
                                               uint8_t* shared, uint64_t* full, uint64_t* empty,
                                               RingPosition& ring, float* sums, bool rehearsal) {
  static_assert(Warps == 8 && kThinTile == 16);
  constexpr int pitch = Warps * kThinUnit, pairs_of_stage = Warps / 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  // The same in all lanes, which the compiler is to know.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarp, 0), group = warp / 4;
  const uint32_t w_at = shared_address(shared) + static_cast<uint32_t>(group * 8 * pitch);
  uint64_t x = rows_as_lines(shared_address(shared + a.x_at), static_cast<uint32_t>(a.x_pitch));
  float total[4 * Columns] = {};
  for (int first = 0; first < slice.count; first += Warps) {
    wait_barrier(&full[ring.slot], ring.parity);
    const uint64_t w =
        rows_as_lines(w_at + static_cast<uint32_t>(ring.slot * kThinTile * pitch), pitch);
    const int pairs = min(pairs_of_stage, (slice.count - first) / 2);
    if (pairs == pairs_of_stage) {
      multiply_pairs<Columns, pairs_of_stage>(total, w, x);
    } else {
#pragma unroll 1
      for (int i = 0; i < pairs; ++i) {
        multiply_pairs<Columns, 1>(total, w + i * kPairStep, x + i * kPairStep);
      }
    }
    if (lane == 0 && !rehearsal) arrive_barrier(&empty[ring.slot]);
    ring.advance(a.stages);
    x += pairs_of_stage * kPairStep;
  }
  // Lane (g, t) has lines 16 warp + g and + 8, that is part g of rows 2 warp and 2 warp + 1, in
  // columns 2 t and 2 t + 1 of each row of x.
  const int g = lane / 4, t = lane % 4;
  const bool own = t == g / 2;
#pragma unroll
  for (int m = 0; m < Columns; ++m) {
    if (m >= a.m) break;
    const float low = own ? (g % 2 ? total[4 * m + 1] : total[4 * m]) : 0.0f;
    const float high = own ? (g % 2 ? total[4 * m + 3] : total[4 * m + 2]) : 0.0f;
    const float2 both = {warp_sum(low), warp_sum(high)};
    if (lane == 0) *reinterpret_cast<float2*>(sums + m * kThinTile + warp * 2) = both;
  }
}

}  // namespace octet::cuda::thin
