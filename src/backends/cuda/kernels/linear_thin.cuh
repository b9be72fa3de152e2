// The kernel of linear_thin.h.
#pragma once

#include "backends/cuda/kernels/bulk_copy.cuh"
#include "backends/cuda/kernels/device_math.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/linear_outputs.cuh"
#include "backends/cuda/kernels/linear_thin.h"

namespace octet::cuda::thin {

// Bytes of x that meet a unit of W.
template <ThinForm F>
inline constexpr int kXUnit = F == ThinForm::e4m3_bf16 ? 2 * kThinUnit : kThinUnit;

template <ThinForm F>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (F == ThinForm::e4m3) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Two codes as FP16 or BF16; both hold every E4M3 value.
__device__ __forceinline__ uint32_t codes_to_halves(uint32_t codes) {
  const __half2 halves = decode_fp8x2<Fp8::e4m3>(static_cast<uint16_t>(codes));
  return *reinterpret_cast<const uint32_t*>(&halves);
}
__device__ __forceinline__ uint32_t codes_to_bf16s(uint32_t codes) {
  const __half2 halves = decode_fp8x2<Fp8::e4m3>(static_cast<uint16_t>(codes));
  const __nv_bfloat162 values = __float22bfloat162_rn(__half22float2(halves));
  return *reinterpret_cast<const uint32_t*>(&values);
}
template <ThinForm F>
__device__ __forceinline__ uint32_t weight_pair(uint32_t codes) {
  return F == ThinForm::e4m3 ? codes_to_halves(codes) : codes_to_bf16s(codes);
}

__device__ __forceinline__ uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ __forceinline__ uint4 load16(const uint8_t* from, bool live) {
  return live ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
}

// Adds the products of a warp's unit of W [16 rows, 128 bytes] and of x [m, kXUnit] to acc.
//
// Lane (g, t) = (lane / 4, lane % 4) has 16 bytes of rows g and g + 8 of W, and what belongs to
// them of row g of x. The instruction wants pairs 2t and 2t + 8 of sixteen k from it: any pairs
// will do, if they are the same of W and of x. So k goes through the instructions in this order:
//
//   bytes of a half unit    | t = 0          | t = 1          | t = 2          | t = 3          |
//   FP8 instruction         | 0    1   2   3 | 0   1   2   3  | ...
//   BF16 instruction        | 0        1     | 0       1      | ...
//
// `rest`: bytes of W that are left from the unit's beginning on; what lies behind counts as zero.
template <ThinForm F, int Columns>
__device__ __forceinline__ void multiply_unit(float (&acc)[Columns][2][4], const uint8_t* w,
                                              int w_pitch, const uint8_t* x, int x_pitch, int rest,
                                              int m) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = half * 64 + t * 16;
    const bool live = at < rest;
    const uint4 low = load16(w + g * w_pitch + at, live);
    const uint4 high = load16(w + (g + 8) * w_pitch + at, live);
    if constexpr (F == ThinForm::bf16) {
      uint4 xs[Columns];
#pragma unroll
      for (int c = 0; c < Columns; ++c) {
        xs[c] = load16(x + (c * 8 + g) * x_pitch + at, live && c * 8 + g < m);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t a[4] = {word(low, 2 * j), word(high, 2 * j), word(low, 2 * j + 1),
                               word(high, 2 * j + 1)};
#pragma unroll
        for (int c = 0; c < Columns; ++c) {
          multiply<F>(acc[c][j], a, word(xs[c], 2 * j), word(xs[c], 2 * j + 1));
        }
      }
    } else {
      // x of this half: 16 codes, or 16 BF16 in two vectors.
      constexpr int vectors = F == ThinForm::e4m3 ? 1 : 2;
      uint4 xs[Columns][vectors];
#pragma unroll
      for (int c = 0; c < Columns; ++c) {
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
          xs[c][v] =
              load16(x + (c * 8 + g) * x_pitch + at * vectors + v * 16, live && c * 8 + g < m);
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t a[4] = {weight_pair<F>(word(low, j)), weight_pair<F>(word(high, j)),
                               weight_pair<F>(word(low, j) >> 16),
                               weight_pair<F>(word(high, j) >> 16)};
#pragma unroll
        for (int c = 0; c < Columns; ++c) {
          if constexpr (F == ThinForm::e4m3) {
            const uint32_t codes = word(xs[c][0], j);
            multiply<F>(acc[c][j % 2], a, codes_to_halves(codes), codes_to_halves(codes >> 16));
          } else {
            multiply<F>(acc[c][j % 2], a, word(xs[c][j / 2], j % 2 * 2),
                        word(xs[c][j / 2], j % 2 * 2 + 1));
          }
        }
      }
    }
  }
}

// The part of the inputs that a block multiplies: units [first, first + count) of a row of W.
struct Slice {
  int first, count, bytes;  // bytes of a row of W
  __device__ explicit Slice(const ThinArgs& a, int rank) {
    first = rank * a.slice_units;
    count = min(a.slice_units, a.units - first);
    if (count < 0) count = 0;
    bytes = min(a.k_bytes - first * kThinUnit, count * kThinUnit);
  }
};

// out[m, n of (tile, row)] = sum · scales + bias.
__device__ __forceinline__ void store_output(const ThinArgs& a, int tile, int row, int m, float sum,
                                             const OutputConstants& constants, float x_scale) {
  const ThinMatrix& w = a.matrix[matrix_of(a, tile)];
  const int n = (tile - w.first_tile) * kThinTile + row;
  if (n >= w.n) return;
  const float y = __fadd_rn(__fmul_rn(__fmul_rn(sum, constants.scale), x_scale), constants.bias);
  const int64_t at = m * w.out_stride + n;
  if (a.out_bf16) {
    static_cast<__nv_bfloat16*>(w.out)[at] = __float2bfloat16_rn(y);
  } else {
    static_cast<float*>(w.out)[at] = y;
  }
}

// Waits for the `Warps` warps that multiply.
template <int Warps>
__device__ __forceinline__ void sync_multipliers() {
  asm volatile("bar.sync 1, %0;" ::"n"(Warps * kWarp) : "memory");
}

// --- x ---------------------------------------------------------------------------------

// The slice of x into shared memory, as it is. `arrived` is a barrier of one arrival; if x can be
// copied in bulk, its phase 0 completes when x is there.
template <ThinForm F, int Warps>
__device__ __forceinline__ void copy_x(const ThinArgs& a, const Slice& slice, uint8_t* to,
                                       uint64_t* arrived) {
  const int bytes = slice.bytes * (kXUnit<F> / kThinUnit);
  const uint8_t* const from = a.x + int64_t{slice.first} * kXUnit<F>;
  if (bytes <= 0) return;
  if (a.x_vector) {
    if (threadIdx.x < kWarp && elect_lane()) {
      arrive_and_expect(arrived, static_cast<uint32_t>(a.m * bytes));
      for (int row = 0; row < a.m; ++row) {
        bulk_copy(to + row * a.x_pitch, from + row * a.x_stride, static_cast<uint32_t>(bytes),
                  arrived);
      }
    }
    return;
  }
#pragma unroll 1
  for (int row = 0; row < a.m; ++row) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < bytes; i += Warps * kWarp) {
      to[row * a.x_pitch + i] = from[row * a.x_stride + i];
    }
  }
}

// The scales of x: [m] or, if it has blocks, [m, slice_units].
template <int Warps>
__device__ __forceinline__ void copy_x_scales(const ThinArgs& a, const Slice& slice, float* to) {
  const int per_row = a.x_blocked ? a.slice_units : 1, count = a.x_blocked ? slice.count : 1;
  for (int i = static_cast<int>(threadIdx.x); i < a.m * per_row; i += Warps * kWarp) {
    const int row = i / per_row, unit = i % per_row;
    if (unit >= count) continue;
    to[i] = a.x_scale ? a.x_scale[row * a.x_scale_row +
                                  (a.x_blocked ? (slice.first + unit) * a.x_scale_unit : 0)]
                      : 1.0f;
  }
}

// N neighbouring elements of plain x as codes. NaNs lose their sign here, which nobody sees.
template <int N>
__device__ __forceinline__ void store_codes(uint8_t* to, const float (&x)[N], float inverse) {
  Vector<__nv_fp8x2_storage_t, N / 2> codes;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    codes.v[i] = __nv_cvt_float2_to_fp8x2({x[2 * i] * inverse, x[2 * i + 1] * inverse},
                                          __NV_SATFINITE, __NV_E4M3);
  }
  *reinterpret_cast<Vector<__nv_fp8x2_storage_t, N / 2>*>(to) = codes;
}
template <int N>
__device__ __forceinline__ uint32_t greatest_magnitude(const float (&x)[N]) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) most = max(most, finite_magnitude(x[i]));
  return most;
}

// Codes and scales of the slice from BF16 x, by the rule of numerics/quantize.h. Warp w works on
// row w % m, so each row has one warp at least. `peaks`: scratch for Warps words.
template <int Warps>
__device__ __forceinline__ void quantize_x(const ThinArgs& a, const Slice& slice, uint8_t* to,
                                           float* scales, uint32_t* peaks) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = threadIdx.x / kWarp;
  const int row = warp % a.m, part = warp / a.m, parts = (Warps - row + a.m - 1) / a.m;
  const auto* const x = reinterpret_cast<const __nv_bfloat16*>(a.x + row * a.x_stride);
  const auto* const own = x + slice.first * kThinUnit;  // an element is a byte of W
  to += row * a.x_pitch;
  if (a.x_blocked) {
    // A group at a time: four elements a lane.
#pragma unroll 4
    for (int unit = part; unit < slice.count; unit += parts) {
      const int at = unit * kThinUnit + lane * 4;
      float values[4] = {};
      if (at < slice.bytes) load_floats(own + at, values);
      const float absmax = __uint_as_float(warp_max(greatest_magnitude(values)));
      const float scale = a.fixed_scale ? *a.fixed_scale : choose_scale(absmax, a.x_format);
      if (at < slice.bytes) store_codes(to + at, values, inverse_scale(scale));
      if (lane == 0) scales[row * a.slice_units + unit] = scale;
    }
    return;
  }
  const int first = (part * kWarp + lane) * 8, step = parts * kWarp * 8;
  float scale = 0;
  if (a.fixed_scale) {
    scale = *a.fixed_scale;
  } else {
    // Every block finds the absmax of whole rows, also where it has only a slice of them.
    uint32_t peak = 0;
#pragma unroll 4
    for (int k = first; k < a.k; k += step) {
      float values[8];
      load_floats(x + k, values);
      peak = max(peak, greatest_magnitude(values));
    }
    peak = warp_max(peak);
    if (lane == 0) peaks[warp] = peak;
    sync_multipliers<Warps>();
    peak = 0;
#pragma unroll
    for (int i = 0; i < Warps; ++i) {
      if (a.x_tensor || i % a.m == row) peak = max(peak, peaks[i]);
    }
    scale = choose_scale(__uint_as_float(peak), a.x_format);
  }
  if (part == 0 && lane == 0) scales[row] = scale;
  const float inverse = inverse_scale(scale);
#pragma unroll 4
  for (int at = first; at < slice.bytes; at += step) {
    float values[8];
    load_floats(own + at, values);
    store_codes(to + at, values, inverse);
  }
}

// --- the two roles ---------------------------------------------------------------------

// One warp: brings W, and the scales of its blocks, into the ring.
template <bool Blocked, int Warps>
__device__ __forceinline__ void produce(const ThinArgs& a, const Slice& slice, int tile, int end,
                                        uint8_t* shared, uint64_t* full, uint64_t* empty) {
  constexpr int pitch = Warps * kThinUnit + kThinRowPad;
  const uint64_t policy = evict_first_policy();
  RingPosition ring;
  for (; tile < end; ++tile) {
    const ThinMatrix& w = a.matrix[matrix_of(a, tile)];
    const int first = (tile - w.first_tile) * kThinTile, rows = min(kThinTile, w.n - first);
    const uint8_t* const from =
        w.weight + first * w.weight_stride + int64_t{slice.first} * kThinUnit;
    for (int unit = 0; unit < slice.count; unit += Warps) {
      wait_barrier(&empty[ring.slot], ring.parity ^ 1);
      if constexpr (Blocked) {
        if (a.w_blocked) {
          // float [16, Warps], of which each lane copies some.
          auto* const scales =
              reinterpret_cast<float*>(shared + a.ring_scales_at) + ring.slot * (kThinTile * Warps);
          for (int i = static_cast<int>(threadIdx.x) % kWarp; i < kThinTile * Warps; i += kWarp) {
            const int row = min(i / Warps, rows - 1), u = unit + i % Warps;
            if (u >= slice.count) continue;
            copy_word(scales + i,
                      w.scale + static_cast<uint32_t>(first + row) / a.w_cell_rows * a.w_scale_row +
                          (slice.first + u) * a.w_scale_unit);
          }
          arrive_after_copies(&full[ring.slot]);
        }
      }
      __syncwarp();
      if (elect_lane()) {
        const int at = unit * kThinUnit, bytes = min(Warps * kThinUnit, slice.bytes - at);
        arrive_and_expect(&full[ring.slot], static_cast<uint32_t>(rows * bytes));
        uint8_t* to = shared + ring.slot * (kThinTile * pitch);
        const uint8_t* row = from + at;
        for (int i = 0; i < rows; ++i) {
          bulk_copy(to, row, static_cast<uint32_t>(bytes), &full[ring.slot], policy);
          to += pitch;
          row += w.weight_stride;
        }
      }
      __syncwarp();
      ring.advance(a.stages);
    }
  }
}

// Multiplies tiles [tile, end) with x and writes outputs, or this block's part of them.
template <ThinForm F, bool Blocked, int Columns, int Warps>
__device__ __forceinline__ void consume(const ThinArgs& a, const Slice& slice, int tile, int end,
                                        int rank, uint8_t* shared, OutputConstants constants,
                                        uint64_t* full, uint64_t* empty) {
  constexpr int pitch = Warps * kThinUnit + kThinRowPad, threads = Warps * kWarp;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % kWarp, warp = tid / kWarp;
  const int g = lane / 4, t = lane % 4;
  const uint8_t* const x = shared + a.x_at;
  const auto* const x_scales = reinterpret_cast<const float*>(shared + a.x_scales_at);
  auto* sums = reinterpret_cast<float*>(shared + a.sums_at);  // [Warps, m, 16], twice
  const int sums_size = Warps * a.m * kThinTile;
  RingPosition ring;
  for (int parity = 0; tile < end; ++tile, parity ^= 1) {
    float acc[Columns][2][4] = {}, total[Columns][4] = {};
    for (int first = 0; first < slice.count; first += Warps) {
      wait_barrier(&full[ring.slot], ring.parity);
      const int unit = first + warp;
      if (unit < slice.count) {
        const uint8_t* const w = shared + ring.slot * (kThinTile * pitch) + warp * kThinUnit;
        multiply_unit<F, Columns>(acc, w, pitch, x + unit * kXUnit<F>, a.x_pitch,
                                  slice.bytes - unit * kThinUnit, a.m);
        if constexpr (Blocked) {
          float low = 1.0f, high = 1.0f;  // scales of rows g and g + 8 of W
          if (a.w_blocked) {
            const auto* const scales = reinterpret_cast<const float*>(shared + a.ring_scales_at) +
                                       ring.slot * (kThinTile * Warps) + warp;
            low = scales[g * Warps];
            high = scales[(g + 8) * Warps];
          }
#pragma unroll
          for (int c = 0; c < Columns; ++c) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int m = c * 8 + t * 2 + i % 2;
              const float w_scale = i < 2 ? low : high;
              const float x_scale =
                  a.x_blocked && m < a.m ? x_scales[m * a.slice_units + unit] : 1.0f;
              total[c][i] = __fmaf_rn(acc[c][0][i] + acc[c][1][i], w_scale * x_scale, total[c][i]);
              acc[c][0][i] = acc[c][1][i] = 0.0f;
            }
          }
        }
      }
      __syncwarp();
      if (lane == 0) arrive_barrier(&empty[ring.slot]);
      ring.advance(a.stages);
    }
    // The warps' sums meet in shared memory. Two buffers: nobody writes the one that is still read.
    float* const own = sums + parity * sums_size + warp * a.m * kThinTile;
#pragma unroll
    for (int c = 0; c < Columns; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int m = c * 8 + t * 2 + i % 2;
        if (m >= a.m) continue;
        own[m * kThinTile + g + i / 2 * 8] = Blocked ? total[c][i] : acc[c][0][i] + acc[c][1][i];
      }
    }
    sync_multipliers<Warps>();
    for (int i = tid; i < a.m * kThinTile; i += threads) {
      const int m = i / kThinTile, row = i % kThinTile;
      float sum = 0.0f;
#pragma unroll
      for (int s = 0; s < Warps; ++s) {
        sum += sums[parity * sums_size + s * a.m * kThinTile + i];
      }
      if (a.split > 1) {
        a.partial[(int64_t{rank} * a.m + m) * a.tiles * kThinTile + tile * kThinTile + row] = sum;
      } else {
        store_output(a, tile, row, m, sum, constants, a.x_blocked ? 1.0f : x_scales[m]);
      }
    }
    if (a.split == 1 && tile + 1 < end && tid < a.m * kThinTile) {
      constants = output_constants(a, tile + 1, tid % kThinTile, kThinTile);
    }
  }
}

// The parts of a cluster's blocks, which are in memory, become outputs.
template <int Warps>
__device__ __forceinline__ void join_slices(const ThinArgs& a, int begin, int end, int rank,
                                            const float* x_scales) {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
  const int rows = (end - begin) * kThinTile, count = rows * a.m;
  const int64_t line = int64_t{a.tiles} * kThinTile;
  if (threadIdx.x >= Warps * kWarp) return;
  for (int i = rank * Warps * kWarp + static_cast<int>(threadIdx.x); i < count;
       i += a.split * Warps * kWarp) {
    const int m = i / rows, at = begin * kThinTile + i % rows;
    const OutputConstants constants =
        output_constants(a, at / kThinTile, at % kThinTile, kThinTile);
    float sum = 0.0f;
    for (int r = 0; r < a.split; ++r) {
      sum += __ldcg(a.partial + (int64_t{r} * a.m + m) * line + at);
    }
    store_output(a, at / kThinTile, at % kThinTile, m, sum, constants,
                 a.x_blocked ? 1.0f : x_scales[m]);
  }
}

// Grid: clusters of a.split blocks; block: Warps warps that multiply, then one that copies.
// Cluster i has tiles [i * tiles_each, (i + 1) * tiles_each).
template <ThinForm F, bool Blocked, int Columns, int Warps>
__global__ void __launch_bounds__((Warps + 1) * kWarp, Columns > 1 || Warps > 8 ? 1
                                                       : Blocked                ? 2
                                                                                : 3)
    linear_kernel(const __grid_constant__ ThinArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto* const full = reinterpret_cast<uint64_t*>(shared + a.barriers_at);
  uint64_t* const empty = full + a.stages;
  uint64_t* const x_arrived = empty + a.stages;
  allow_next();
  if (threadIdx.x == 0) {
    for (int i = 0; i < a.stages; ++i) {
      init_barrier(&full[i], Blocked && a.w_blocked ? 1 + kWarp : 1);
      init_barrier(&empty[i], Warps);
    }
    init_barrier(x_arrived, 1);
    fence_barriers();
  }
  __syncthreads();

  const int rank = static_cast<int>(blockIdx.x) % a.split;
  const int begin = static_cast<int>(blockIdx.x) / a.split * a.tiles_each;
  const int end = min(begin + a.tiles_each, a.tiles);
  const Slice slice(a, rank);
  auto* const x_scales = reinterpret_cast<float*>(shared + a.x_scales_at);
  if (threadIdx.x >= Warps * kWarp) {
    produce<Blocked, Warps>(a, slice, begin, end, shared, full, empty);
  } else {
    const OutputConstants constants =
        output_constants(a, begin, static_cast<int>(threadIdx.x) % kThinTile, kThinTile);
    wait_for_previous();
    bool quantized = false;
    if constexpr (F == ThinForm::e4m3 && Columns == 1) {
      quantized = a.quantize;
      if (quantized) {
        quantize_x<Warps>(a, slice, shared + a.x_at, x_scales,
                          reinterpret_cast<uint32_t*>(shared + a.sums_at));
      }
    }
    if (!quantized) {
      copy_x<F, Warps>(a, slice, shared + a.x_at, x_arrived);
      copy_x_scales<Warps>(a, slice, x_scales);
      if (a.x_vector && slice.bytes > 0) wait_barrier(x_arrived, 0);
    }
    sync_multipliers<Warps>();
    consume<F, Blocked, Columns, Warps>(a, slice, begin, end, rank, shared, constants, full, empty);
  }
  if (a.split > 1) join_slices<Warps>(a, begin, end, rank, x_scales);
}

}  // namespace octet::cuda::thin
