// The kernel of linear_thin.h.
#pragma once

#include "backends/cuda/kernels/bulk_copy.cuh"
#include "backends/cuda/kernels/device_math.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/linear_outputs.cuh"
#include "backends/cuda/kernels/linear_thin_codes.cuh"
#include "backends/cuda/kernels/linear_thin_x.cuh"

namespace octet::cuda::thin {

template <ThinForm F>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (F == ThinForm::e4m3 || F == ThinForm::e4m3_halves) {
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

__device__ __forceinline__ uint32_t halves_to_bf16s(uint32_t halves) {
  const __nv_bfloat162 values =
      __float22bfloat162_rn(__half22float2(*reinterpret_cast<const __half2*>(&halves)));
  return *reinterpret_cast<const uint32_t*>(&values);
}
// Four codes of W as they are multiplied.
template <ThinForm F>
__device__ __forceinline__ void unpack_weights(uint32_t codes, uint32_t& low, uint32_t& high) {
  codes_to_halves(codes, low, high);
  if constexpr (F == ThinForm::e4m3_bf16) {
    low = halves_to_bf16s(low);
    high = halves_to_bf16s(high);
  }
}

template <bool Whole>
__device__ __forceinline__ uint4 load16(const uint8_t* from, bool live) {
  return Whole || live ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
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
// `w` is where the lane's row g begins, `xs[c]` its row of the c-th eight rows of x; a lane whose
// row is not there may have any row, since a column of products meets no other. `rest`: bytes of W
// that are left from the unit's beginning on; unless it is `Whole`, what lies behind counts as
// zero.
template <ThinForm F, int Columns, bool Whole>
__device__ __forceinline__ void multiply_unit(float (&acc)[Columns][2][4], const uint8_t* w,
                                              int w_pitch, const uint8_t* const (&xs)[Columns],
                                              int x_at, int rest) {
  constexpr int vectors = kXUnit<F> / kThinUnit;  // of x, that meet one of W
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool live = half * 64 + t * 16 < rest;
    const uint4 low = load16<Whole>(w + half * 64, live);
    const uint4 high = load16<Whole>(w + 8 * w_pitch + half * 64, live);
    uint4 x[Columns][vectors];
#pragma unroll
    for (int c = 0; c < Columns; ++c) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        x[c][v] = load16<Whole>(xs[c] + x_at + half * 64 * vectors + v * 16, live);
      }
    }
    if constexpr (F == ThinForm::bf16) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t a[4] = {word(low, 2 * j), word(high, 2 * j), word(low, 2 * j + 1),
                               word(high, 2 * j + 1)};
#pragma unroll
        for (int c = 0; c < Columns; ++c) {
          multiply<F>(acc[c][j], a, word(x[c][0], 2 * j), word(x[c][0], 2 * j + 1));
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t a[4];
        unpack_weights<F>(word(low, j), a[0], a[2]);
        unpack_weights<F>(word(high, j), a[1], a[3]);
#pragma unroll
        for (int c = 0; c < Columns; ++c) {
          uint32_t b[2];
          if constexpr (F == ThinForm::e4m3) {
            codes_to_halves(word(x[c][0], j), b[0], b[1]);
          } else {
            b[0] = word(x[c][j / 2], j % 2 * 2);
            b[1] = word(x[c][j / 2], j % 2 * 2 + 1);
          }
          multiply<F>(acc[c][j % 2], a, b[0], b[1]);
        }
      }
    }
  }
}

// What a kernel is compiled for.
template <ThinForm Form_, bool Blocked_, int Columns_, int Warps_, ThinTask Task_>
struct Config {
  static constexpr ThinForm Form = Form_;
  static constexpr bool Blocked = Blocked_;  // W or x has a scale for each 128 of k
  static constexpr int Columns = Columns_;   // of eight rows of x, or by codes rows
  static constexpr int Warps = Warps_;       // that multiply
  static constexpr ThinTask Task = Task_;
  // E4M3 weights and inputs, and few rows: what a kernel may quantize by itself, and whose outputs
  // it may add to a stream.
  static constexpr bool FewRows =
      Form == ThinForm::e4m3_wgmma ||
      ((Form == ThinForm::e4m3 || Form == ThinForm::e4m3_halves) && Columns == 1);
  static constexpr bool Any = Task == ThinTask::any, Gated = Task == ThinTask::norm_gated;
  // Its blocks begin long before x is there, and so go through all of it in vain first.
  static constexpr bool Rehearses = Task == ThinTask::held;
  static constexpr bool ToStream = FewRows && Task != ThinTask::norm && !Gated;  // perhaps
  static_assert(Any || Form == ThinForm::e4m3_wgmma);

  __device__ __forceinline__ static int split(const ThinArgs& a) { return Any ? a.split : 1; }
};
static_assert(kThinCodesRows <= kThinQuantizedRows);

// Whose output the row of a tile is. An index, not a reference: through one, a kernel's parameters
// would be read as if they lay in memory.
struct TileRow {
  int matrix, n;
};
template <class C>
__device__ __forceinline__ TileRow row_of_tile(const ThinArgs& a, int tile, int row) {
  if constexpr (C::Gated) {
    return {row / kGatedColumns, tile * kGatedColumns + row % kGatedColumns};
  }
  const int matrix = matrix_of(a, tile);
  return {matrix, (tile - a.matrix[matrix].first_tile) * kThinTile + row};
}

__device__ __forceinline__ float output_of(float sum, const OutputConstants& constants,
                                           float x_scale) {
  return __fadd_rn(__fmul_rn(__fmul_rn(sum, constants.scale), x_scale), constants.bias);
}

// out[m, n of (tile, row)] = sum · scales + bias.
template <class C>
__device__ __forceinline__ void store_output(const ThinArgs& a, int tile, int row, int m, float sum,
                                             const OutputConstants& constants, float x_scale) {
  const auto [matrix, n] = row_of_tile<C>(a, tile, row);
  const ThinMatrix& w = a.matrix[matrix];
  if (n >= w.n) return;
  const float y = output_of(sum, constants, x_scale);
  const int64_t at = m * w.out_stride + n;
  if (a.out_bf16) {
    static_cast<__nv_bfloat16*>(w.out)[at] = __float2bfloat16_rn(y);
  } else {
    static_cast<float*>(w.out)[at] = y;
  }
}

template <class C>
__device__ __forceinline__ bool to_stream(const ThinArgs& a) {
  return C::ToStream && a.stream;
}

// What an output needs beside its sum, and does not depend on the kernel before: also the weight of
// the next norm of the stream that it is added to.
struct TileConstants {
  OutputConstants output;
  float norm_weight = 0.0f;
};
template <class C>
__device__ __forceinline__ TileConstants tile_constants(const ThinArgs& a, int tile, int row) {
  const auto [matrix, n] = row_of_tile<C>(a, tile, row);
  TileConstants constants{output_constants(a, matrix, n)};
  if (to_stream<C>(a)) constants.norm_weight = a.stream_norm[tile * kThinTile + row];
  return constants;
}
// What it is added to.
__device__ __forceinline__ float residual_of(const ThinArgs& a, int tile, int row, int m) {
  const auto* const stream = reinterpret_cast<const unsigned short*>(a.stream);
  const int64_t at = int64_t{m} * a.matrix[0].n + tile * kThinTile + row;
  return to_float(__ushort_as_bfloat16(__ldcg(stream + at)));
}

// stream[m, n of (tile, row)] += sum · scales + bias, as BF16, and the tile's moments. Sixteen
// neighbouring lanes have the rows of a tile; `lanes`: those of the warp that call.
__device__ __forceinline__ void add_output(const ThinArgs& a, int tile, int row, int m, float sum,
                                           const TileConstants& constants, float x_scale,
                                           float residual, uint32_t lanes, bool rehearsal) {
  const __nv_bfloat16 rounded = __float2bfloat16_rn(output_of(sum, constants.output, x_scale));
  const __nv_bfloat16 added = __float2bfloat16_rn(residual + to_float(rounded));
  if (!rehearsal) a.stream[int64_t{m} * a.matrix[0].n + tile * kThinTile + row] = added;
  const float value = to_float(added);
  float squares = value * value;
  uint32_t peak = finite_magnitude(value * constants.norm_weight);
#pragma unroll
  for (int apart = 1; apart < kThinTile; apart *= 2) {
    squares += __shfl_xor_sync(lanes, squares, apart);
    peak = max(peak, __shfl_xor_sync(lanes, peak, apart));
  }
  if (row == 0 && !rehearsal) {
    reinterpret_cast<float2*>(a.stream_moments)[m * a.tiles + tile] = {squares,
                                                                       __uint_as_float(peak)};
  }
}

// out[m, column] = silu(gate) · up of a tile of both, which eight lanes each have the rows of, and
// the absmax of its columns. Rounded to BF16 where the linears, and silu_mul, would.
__device__ __forceinline__ void store_gated(const ThinArgs& a, int tile, int row, int m, float sum,
                                            const OutputConstants& constants, float x_scale,
                                            uint32_t lanes) {
  const float y = to_float(__float2bfloat16_rn(output_of(sum, constants, x_scale)));
  const float up = __shfl_xor_sync(lanes, y, kGatedColumns);
  const __nv_bfloat16 hidden = __float2bfloat16_rn(silu(y) * up);
  uint32_t peak = finite_magnitude(to_float(hidden));
#pragma unroll
  for (int apart = 1; apart < kGatedColumns; apart *= 2) {
    peak = max(peak, __shfl_xor_sync(lanes, peak, apart));
  }
  const ThinMatrix& w = a.matrix[0];
  if (row < kGatedColumns) {
    static_cast<__nv_bfloat16*>(w.out)[m * w.out_stride + tile * kGatedColumns + row] = hidden;
  }
  if (row == 0) a.gated_peaks[m * a.tiles + tile] = __float2bfloat16_rn(__uint_as_float(peak));
}
// The lanes of a warp that handle an element of `count`, a multiple of sixteen, if this one has
// element i of a run that its warp shares in order.
__device__ __forceinline__ uint32_t lanes_of(int i, int count) {
  return i - static_cast<int>(threadIdx.x) % kWarp + kWarp <= count ? ~0u : 0xFFFFu;
}

// --- the two roles ---------------------------------------------------------------------

// One warp: brings W, and the scales of its blocks, into the ring. It fills the ring with no more
// than `flying` stages on their way: what memory does not need to be busy would stand in the way of
// what the kernel before reads.
template <class C>
__device__ __forceinline__ void produce(const ThinArgs& a, const Slice& slice, const Share& share,
                                        uint8_t* shared, uint64_t* full, uint64_t* empty) {
  constexpr int Warps = C::Warps;
  constexpr bool Blocked = C::Blocked;
  constexpr int pitch = Warps * kThinUnit + (C::Form == ThinForm::e4m3_wgmma ? 0 : kThinRowPad);
  const uint64_t policy = evict_first_policy();
  auto* const tile_ids = reinterpret_cast<int*>(shared + a.tile_ids_at);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  RingPosition ring, arrived;
  int filled = 0, tile = share.first;
  while (tile < share.end) {
    int following = share.after(a, tile);
    if (a.next && lane == 0) {
      following = static_cast<int>(gridDim.x) + atomicAdd(a.next, 1);  // back by the tile's end
    }
    // Of gate and up, eight rows each.
    constexpr int height = C::Gated ? kGatedColumns : kThinTile;
    const ThinMatrix& w = a.matrix[C::Gated ? 0 : matrix_of(a, tile)];
    const int first = (tile - w.first_tile) * height;
    const int rows = C::Gated ? kThinTile : min(kThinTile, w.n - first);
    const uint8_t* const from =
        w.weight + first * w.weight_stride + int64_t{slice.first} * kThinUnit;
    for (int unit = 0; unit < slice.count; unit += Warps) {
      if (filled < a.stages && filled++ >= a.flying) {
        wait_barrier(&full[arrived.slot], arrived.parity);
        arrived.advance(a.stages);
      }
      wait_barrier(&empty[ring.slot], ring.parity ^ 1);
      if constexpr (Blocked) {
        if (a.w_blocked) {
          // float [16, Warps], of which each lane copies some.
          auto* const scales =
              reinterpret_cast<float*>(shared + a.ring_scales_at) + ring.slot * (kThinTile * Warps);
          for (int i = lane; i < kThinTile * Warps; i += kWarp) {
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
        tile_ids[ring.slot] = tile;
        arrive_and_expect(&full[ring.slot], static_cast<uint32_t>(rows * bytes));
        uint8_t* to = shared + ring.slot * (kThinTile * pitch);
        const auto copy = [&](const uint8_t* row, int count) {
          for (int i = 0; i < count; ++i) {
            bulk_copy(to, row, static_cast<uint32_t>(bytes), &full[ring.slot], policy);
            to += pitch;
            row += w.weight_stride;
          }
        };
        copy(from + at, min(rows, height));
        if constexpr (C::Gated) copy(from + at + (a.matrix[1].weight - w.weight), height);
      }
      __syncwarp();
      ring.advance(a.stages);
    }
    tile = a.next ? __shfl_sync(~0u, following, 0) : following;
  }
  if (!a.next) return;
  // A stage without a tile is the last. The last block that takes none leaves the counters as it
  // found them.
  wait_barrier(&empty[ring.slot], ring.parity ^ 1);
  if (lane == 0) tile_ids[ring.slot] = -1;
  __syncwarp();
  if (lane == 0 || (Blocked && a.w_blocked)) arrive_barrier(&full[ring.slot]);
  if (Blocked && a.w_blocked && lane == 0) arrive_barrier(&full[ring.slot]);
  if (lane == 0 && atomicAdd(a.next + 1, 1) == static_cast<int>(gridDim.x) - 1) {
    a.next[0] = a.next[1] = 0;
  }
}

// Multiplies a tile with x: `sums` [Warps, m, 16] are the warps' parts of it.
template <class C>
__device__ __forceinline__ void multiply_tile(const ThinArgs& a, const Slice& slice,
                                              uint8_t* shared, uint64_t* full, uint64_t* empty,
                                              RingPosition& ring, float* sums) {
  constexpr ThinForm F = C::Form;
  constexpr int Columns = C::Columns, Warps = C::Warps;
  constexpr bool Blocked = C::Blocked;
  constexpr int pitch = Warps * kThinUnit + kThinRowPad;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % kWarp, warp = tid / kWarp;
  const int g = lane / 4, t = lane % 4;
  // This lane's part of W in a stage, and of x.
  const uint8_t* const own_w = shared + g * pitch + warp * kThinUnit + t * 16;
  const uint8_t* own_x[Columns];
#pragma unroll
  for (int c = 0; c < Columns; ++c) {
    own_x[c] = shared + a.x_at + min(c * 8 + g, a.m - 1) * a.x_pitch + t * (kXUnit<F> / 8);
  }
  const auto* const x_scales = reinterpret_cast<const float*>(shared + a.x_scales_at);
  float acc[Columns][2][4] = {}, total[Columns][4] = {};
  for (int first = 0; first < slice.count; first += Warps) {
    wait_barrier(&full[ring.slot], ring.parity);
    const int unit = first + warp;
    if (unit < slice.count) {
      const uint8_t* const w = own_w + ring.slot * (kThinTile * pitch);
      const int rest = slice.bytes - unit * kThinUnit, x_at = unit * kXUnit<F>;
      if (rest >= kThinUnit) {
        multiply_unit<F, Columns, true>(acc, w, pitch, own_x, x_at, rest);
      } else {
        multiply_unit<F, Columns, false>(acc, w, pitch, own_x, x_at, rest);
      }
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
  float* const own = sums + warp * a.m * kThinTile;
#pragma unroll
  for (int c = 0; c < Columns; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = c * 8 + t * 2 + i % 2;
      if (m >= a.m) continue;
      own[m * kThinTile + g + i / 2 * 8] = Blocked ? total[c][i] : acc[c][0][i] + acc[c][1][i];
    }
  }
}

// Multiplies tiles with x and writes outputs, or this block's part of them: those that the producer
// names or, where there are no counters, those of `share`. `constants`: of the first tile. A
// rehearsal multiplies the first tile, and leaves the ring and all outputs as they are.
template <class C>
__device__ __forceinline__ void consume(const ThinArgs& a, const Slice& slice, const Share& share,
                                        int rank, TileConstants constants, uint8_t* shared,
                                        uint64_t* full, uint64_t* empty, bool rehearsal) {
  constexpr bool codes = C::Form == ThinForm::e4m3_wgmma;
  constexpr int Warps = C::Warps, threads = Warps * kWarp, parts = codes ? 1 : Warps;
  const int tid = static_cast<int>(threadIdx.x);
  const auto* const x_scales = reinterpret_cast<const float*>(shared + a.x_scales_at);
  const int part = a.m * kThinTile;
  RingPosition ring;
  const auto* const tile_ids = reinterpret_cast<const int*>(shared + a.tile_ids_at);
  bool begins = true;
  int tile = share.first;
  for (int parity = 0;; tile = share.after(a, tile), parity ^= 1) {
    if (a.next) {
      wait_barrier(&full[ring.slot], ring.parity);
      tile = tile_ids[ring.slot];
      if (tile < 0) break;
    } else if (tile >= share.end) {
      break;
    }
    float residual = 0.0f;
    if (C::split(a) == 1 && tid < part) {  // on their way while the tile is multiplied
      const int row = tid % kThinTile;
      if (!begins) constants = tile_constants<C>(a, tile, row);
      if (to_stream<C>(a)) residual = residual_of(a, tile, row, tid / kThinTile);
    }
    begins = false;
    // The parts of outputs meet in shared memory. Two buffers: nobody writes the one that is still
    // read.
    float* const sums = reinterpret_cast<float*>(shared + a.sums_at) + parity * (Warps * part);
    if constexpr (codes) {
      multiply_codes<C::Columns, Warps>(a, slice, shared, full, empty, ring, sums, rehearsal);
    } else {
      multiply_tile<C>(a, slice, shared, full, empty, ring, sums);
    }
    sync_multipliers<Warps>();
    for (int i = tid; i < part; i += threads) {
      const int m = i / kThinTile, row = i % kThinTile;
      float sum = 0.0f;
#pragma unroll
      for (int s = 0; s < parts; ++s) sum += sums[s * part + i];
      if (C::split(a) > 1) {
        a.partial[(int64_t{rank} * a.m + m) * a.tiles * kThinTile + tile * kThinTile + row] = sum;
      } else if (to_stream<C>(a)) {
        add_output(a, tile, row, m, sum, constants, a.x_blocked ? 1.0f : x_scales[m], residual,
                   lanes_of(i, part), rehearsal);
      } else if constexpr (C::Gated) {
        store_gated(a, tile, row, m, sum, constants.output, x_scales[m], lanes_of(i, part));
      } else if (!rehearsal) {
        store_output<C>(a, tile, row, m, sum, constants.output, a.x_blocked ? 1.0f : x_scales[m]);
      }
    }
    if (rehearsal) break;
  }
}

// The parts of a cluster's blocks, which are in memory, become outputs.
template <class C>
__device__ __forceinline__ void join_slices(const ThinArgs& a, int begin, int end, int rank,
                                            const float* x_scales) {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
  const int rows = (end - begin) * kThinTile, count = rows * a.m;
  const int64_t line = int64_t{a.tiles} * kThinTile;
  constexpr int Warps = C::Warps;
  if (threadIdx.x >= Warps * kWarp) return;
  for (int i = rank * Warps * kWarp + static_cast<int>(threadIdx.x); i < count;
       i += a.split * Warps * kWarp) {
    const int m = i / rows, at = begin * kThinTile + i % rows;
    float sum = 0.0f;
    for (int r = 0; r < a.split; ++r) {
      sum += __ldcg(a.partial + (int64_t{r} * a.m + m) * line + at);
    }
    const int tile = at / kThinTile, row = at % kThinTile;
    const TileConstants constants = tile_constants<C>(a, tile, row);
    const float x_scale = a.x_blocked ? 1.0f : x_scales[m];
    if (to_stream<C>(a)) {
      add_output(a, tile, row, m, sum, constants, x_scale, residual_of(a, tile, row, m),
                 lanes_of(i, count), false);
    } else {
      store_output<C>(a, tile, row, m, sum, constants.output, x_scale);
    }
  }
}

// x, as it is multiplied, and its scales in shared memory, from what the arguments say it is.
template <class C>
__device__ __forceinline__ void bring_x(const ThinArgs& a, const Slice& slice, uint8_t* shared,
                                        float* x_scales, uint64_t* x_arrived, bool rehearsal) {
  constexpr ThinForm F = C::Form;
  constexpr int Warps = C::Warps;
  uint8_t* const to = shared + a.x_at;
  auto* const scratch = reinterpret_cast<uint32_t*>(shared + a.sums_at);  // sums come later
  if constexpr (C::Task == ThinTask::norm || C::Gated) {
    return norm_measured_x<F, Warps>(a, to, x_scales);
  } else if constexpr (C::Task == ThinTask::hidden) {
    return quantize_measured_x<F, Warps>(a, to, x_scales, scratch);
  } else if constexpr (C::Task == ThinTask::held) {
    return make_x<F, Warps, false>(a, to, x_scales, scratch, rehearsal);
  } else if constexpr (F == ThinForm::e4m3_halves || F == ThinForm::e4m3_wgmma) {
    if (F == ThinForm::e4m3_halves && a.moments) return norm_measured_x<F, Warps>(a, to, x_scales);
    if (a.norm) return make_x<F, Warps, true>(a, to, x_scales, scratch);
    if (F == ThinForm::e4m3_halves && a.held) {
      return make_x<F, Warps, false>(a, to, x_scales, scratch);
    }
  }
  wait_for_previous();
  if constexpr (C::FewRows) {
    if (a.quantize) return quantize_x<F, Warps>(a, slice, to, x_scales, scratch);
  }
  copy_x_scales<Warps>(a, slice, x_scales);
  if constexpr (F == ThinForm::e4m3_halves) {
    unpack_x<Warps>(a, slice, to);
  } else {
    copy_x<F, Warps>(a, slice, to, x_arrived);
    if (a.x_vector && slice.bytes > 0) wait_barrier(x_arrived, 0);
  }
}

// Grid: clusters of a.split blocks; block: Warps warps that multiply, then one that copies.
// With a split cluster i has tiles [i * tiles_each, (i + 1) * tiles_each).
template <ThinForm F, bool Blocked, int Columns, int Warps, ThinTask Task = ThinTask::any>
__global__ void __launch_bounds__((Warps + 1) * kWarp, F == ThinForm::e4m3_wgmma  ? 2
                                                       : Columns > 1 || Warps > 8 ? 1
                                                       : Blocked                  ? 2
                                                                                  : 3)
    linear_kernel(const __grid_constant__ ThinArgs a) {
  using C = Config<F, Blocked, Columns, Warps, Task>;
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

  const int split = C::split(a), rank = static_cast<int>(blockIdx.x) % split;
  const Share share(a, static_cast<int>(blockIdx.x), split);
  const Slice slice(a, rank);
  auto* const x_scales = reinterpret_cast<float*>(shared + a.x_scales_at);
  if (threadIdx.x >= Warps * kWarp) {
    produce<C>(a, slice, share, shared, full, empty);
  } else {
    TileConstants constants;
    if (split == 1 && threadIdx.x < a.m * kThinTile && share.first < share.end) {
      constants = tile_constants<C>(a, share.first, static_cast<int>(threadIdx.x) % kThinTile);
    }
#pragma unroll 1
    for (int pass = C::Rehearses ? 0 : 1; pass < 2; ++pass) {
      const bool rehearsal = C::Rehearses && pass == 0;
      bring_x<C>(a, slice, shared, x_scales, x_arrived, rehearsal);
      if constexpr (F == ThinForm::e4m3_wgmma) fence_writes();
      sync_multipliers<Warps>();
      consume<C>(a, slice, share, rank, constants, shared, full, empty, rehearsal);
    }
  }
  if (split > 1) join_slices<C>(a, share.first, share.end, rank, x_scales);
}

}  // namespace octet::cuda::thin
