// How x comes into shared memory, for the kernel of linear_thin.h: copied as it is, unpacked to
// FP16, quantized, or normed and quantized.
#pragma once

#include "backends/cuda/kernels/bulk_copy.cuh"
#include "backends/cuda/kernels/device_math.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/linear_thin.h"

namespace octet::cuda::thin {

// Bytes of x that meet a unit of W.
template <ThinForm F>
inline constexpr int kXUnit =
    F == ThinForm::e4m3_bf16 || F == ThinForm::e4m3_halves ? 2 * kThinUnit : kThinUnit;

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

// The tiles of a block, in order: from `first` until `end`, where it does not take them at run
// time.
struct Share {
  int first, end, last;  // last: of the last round, or none: beyond all
  __device__ Share(const ThinArgs& a, int block, int split) {
    first = split > 1 ? block / split * a.tiles_each : block;
    end = split > 1 ? min(first + a.tiles_each, a.tiles) : a.tiles;
    const int own = block * a.last_spread >> kLastSpreadBits;
    const bool has = (block + 1) * a.last_spread >> kLastSpreadBits > own;
    last = split == 1 && has ? a.last_round + own : a.tiles;
  }
  __device__ __forceinline__ int after(const ThinArgs& a, int tile) const {
    const int next = tile + a.tile_step;
    return next < a.last_round ? next : tile < a.last_round ? last : a.tiles;
  }
};

// Waits for the `Warps` warps that multiply.
template <int Warps>
__device__ __forceinline__ void sync_multipliers() {
  asm volatile("bar.sync 1, %0;" ::"n"(Warps * kWarp) : "memory");
}

// Four codes as two pairs of FP16, which holds every E4M3 value. In one piece, so that the
// instruction takes the upper codes where they lie and no shift is needed.
__device__ __forceinline__ void codes_to_halves(uint32_t codes, uint32_t& low, uint32_t& high) {
  asm("{\n"
      ".reg .b16 l, h;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\n"
      "cvt.rn.f16x2.e4m3x2 %1, h;\n"
      "}\n"
      : "=r"(low), "=r"(high)
      : "r"(codes));
}
__device__ __forceinline__ uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// The slice of x, codes, into shared memory as FP16.
template <int Warps>
__device__ __forceinline__ void unpack_x(const ThinArgs& a, const Slice& slice, uint8_t* to) {
  const uint8_t* const from = a.x + int64_t{slice.first} * kThinUnit;
#pragma unroll 1
  for (int row = 0; row < a.m; ++row) {
    const uint8_t* const codes = from + row * a.x_stride;
    uint8_t* const halves = to + row * a.x_pitch;
    if (a.x_vector) {
#pragma unroll 4
      for (int i = static_cast<int>(threadIdx.x) * 16; i < slice.bytes; i += Warps * kWarp * 16) {
        const uint4 v = *reinterpret_cast<const uint4*>(codes + i);
        uint32_t h[8];
#pragma unroll
        for (int j = 0; j < 4; ++j) codes_to_halves(word(v, j), h[2 * j], h[2 * j + 1]);
        *reinterpret_cast<uint4*>(halves + 2 * i) = {h[0], h[1], h[2], h[3]};
        *reinterpret_cast<uint4*>(halves + 2 * i + 16) = {h[4], h[5], h[6], h[7]};
      }
    } else {
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x); i < slice.bytes; i += Warps * kWarp) {
        const __half2 h = decode_fp8x2<Code::e4m3>(codes[i]);
        *reinterpret_cast<__half*>(halves + 2 * i) = __low2half(h);
      }
    }
  }
}

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

// N neighbouring elements of plain x as codes, or as the FP16 of their codes. NaNs lose their sign
// here, which nobody sees.
template <ThinForm F, int N>
__device__ __forceinline__ void store_codes(uint8_t* x, int at, const float (&values)[N],
                                            float inverse) {
  Vector<__nv_fp8x2_storage_t, N / 2> codes;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    codes.v[i] = __nv_cvt_float2_to_fp8x2({values[2 * i] * inverse, values[2 * i + 1] * inverse},
                                          __NV_SATFINITE, __NV_E4M3);
  }
  if constexpr (F == ThinForm::e4m3 || F == ThinForm::e4m3_wgmma) {
    *reinterpret_cast<Vector<__nv_fp8x2_storage_t, N / 2>*>(x + at) = codes;
  } else {
    Vector<__half2, N / 2> halves;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) halves.v[i] = decode_fp8x2<Code::e4m3>(codes.v[i]);
    *reinterpret_cast<Vector<__half2, N / 2>*>(x + 2 * at) = halves;
  }
}
template <int N>
__device__ __forceinline__ uint32_t greatest_magnitude(const float (&x)[N]) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) most = max(most, finite_magnitude(x[i]));
  return most;
}

// Elements of a row of x that a warp works on: warp w has row w % m, so each row has one warp at
// least. A lane has vectors of eight, which begin at `first`, `first` + `step`, ...
template <int Warps>
struct RowShare {
  int row, first, step;
  uint32_t mates;  // the warps that have this row, by bits
  __device__ explicit RowShare(const ThinArgs& a) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = threadIdx.x / kWarp;
    const int part = warp / a.m;
    row = warp - part * a.m;
    first = (part * kWarp + lane) * 8;
    mates = a.row_mates << row & ((1u << Warps) - 1);
    step = __popc(mates) * kWarp * 8;
  }
};

// What `join` makes of the lanes' `own`, which the lanes of a warp agree on, of all `warps` (bits).
// `scratch`: Warps words, which nobody else uses until the next barrier but one.
template <int Warps, typename T, typename Join>
__device__ __forceinline__ T join_warps(T own, uint32_t warps, T* scratch, Join join) {
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = own;
  sync_multipliers<Warps>();
  T joined{};
#pragma unroll
  for (int i = 0; i < Warps; ++i) {
    const T other = scratch[i];
    if (warps >> i & 1) joined = join(joined, other);
  }
  return joined;
}

struct SquaresPeak {
  float squares = 0.0f;
  uint32_t peak = 0;
};

// Eight neighbours of a row of x, from element `at` on, as codes. Where each 128 of a row have a
// scale, the sixteen lanes that have them find it and leave it in the row's `scales`.
template <ThinForm F>
__device__ __forceinline__ void store_eight(const ThinArgs& a, uint8_t* row, float* scales, int at,
                                            bool live, const float (&values)[8], float inverse) {
  if (a.x_blocked) {
    uint32_t peak = greatest_magnitude(values);
#pragma unroll
    for (int apart = 1; apart < 16; apart *= 2) {
      peak = max(peak, __shfl_xor_sync(~0u, peak, apart));
    }
    const float scale =
        a.fixed_scale ? *a.fixed_scale : choose_scale(__uint_as_float(peak), a.x_format);
    inverse = inverse_scale(scale);
    if (threadIdx.x % 16 == 0 && live) scales[at / kThinUnit] = scale;
  }
  if (live) store_codes<F>(row, at, values, inverse);
}

// Codes (or their FP16) and scales of rms_norm(rows), whose moments are known: every warp adds up
// those of its row by itself, in the order of the columns.
template <ThinForm F, int Warps>
__device__ __forceinline__ void norm_measured_x(const ThinArgs& a, uint8_t* to, float* scales) {
  const RowShare<Warps> share(a);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto at = [&](int i) { return share.first + i * share.step; };
  Vector<float, 8> weight[kThinMostHeld] = {};
#pragma unroll
  for (int i = 0; i < kThinMostHeld; ++i) {  // constant, so before the wait
    if (at(i) < a.k) weight[i] = load_vector<8>(a.norm_weight + at(i));
  }
  wait_for_previous();
  const auto* const x = reinterpret_cast<const __nv_bfloat16*>(a.x + share.row * a.x_stride);
  Vector<__nv_bfloat16, 8> held[kThinMostHeld] = {};
#pragma unroll
  for (int i = 0; i < kThinMostHeld; ++i) {
    if (at(i) < a.k) held[i] = load_vector<8>(x + at(i));
  }
  const int pairs = a.k / kThinTile;
  const auto* const moments = reinterpret_cast<const float4*>(a.moments + share.row * pairs * 2);
  SquaresPeak all;
#pragma unroll 4
  for (int i = lane; i < pairs / 2; i += kWarp) {
    const float4 two = moments[i];
    all.squares += two.x + two.z;
    all.peak = max(all.peak, max(__float_as_uint(two.y), __float_as_uint(two.w)));
  }
  const float factor = rsqrtf(warp_sum(all.squares) * a.inverse_k + a.norm_eps);
  float inverse = 0.0f;
  if (!a.x_blocked) {
    const float peak = __uint_as_float(warp_max(all.peak)) * factor;
    const float scale = a.fixed_scale ? *a.fixed_scale : choose_scale(peak, a.x_format);
    if (share.first == 0) scales[share.row] = scale;
    inverse = inverse_scale(scale);
  }
  uint8_t* const own = to + share.row * a.x_pitch;
  float* const own_scales = scales + share.row * a.slice_units;
  const auto store = [&](int i, const auto& row, const auto& weights) {
    float values[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = to_float(row.v[j]) * factor * weights.v[j];
    store_eight<F>(a, own, own_scales, at(i), at(i) < a.k, values, inverse);
  };
#pragma unroll
  for (int i = 0; i < kThinMostHeld; ++i) store(i, held[i], weight[i]);
    // Whole warps, for their lanes meet.
#pragma unroll 2
  for (int i = kThinMostHeld; at(i) - lane * 8 < a.k; ++i) {
    const int from = at(i) < a.k ? at(i) : 0;
    store(i, load_vector<8>(x + from), load_vector<8>(a.norm_weight + from));
  }
}

// Codes (or their FP16) and scales of x, which registers hold: of BF16 rows, or, if Norm, of
// rms_norm(rows + delta), whose sum the first block also writes. The rule is numerics/quantize.h.
// Rounded values are kept and the rest is computed twice: registers are what the next kernel's
// blocks need to begin. A rehearsal does not wait for the kernel before.
template <ThinForm F, int Warps, bool Norm>
__device__ __forceinline__ void make_x(const ThinArgs& a, uint8_t* to, float* scales,
                                       uint32_t* scratch, bool rehearsal = false) {
  using Part = Vector<__nv_bfloat16, 8>;
  constexpr int Parts = kThinMostHeld;
  const RowShare<Warps> share(a);
  const auto at = [&](int i) { return share.first + i * share.step; };
  Part row[Parts] = {};
  Vector<float, 8> weight[Parts] = {};
  if constexpr (Norm) {
    // Constant, so before the wait.
#pragma unroll
    for (int i = 0; i < Parts; ++i) {
      if (at(i) < a.k) weight[i] = load_vector<8>(a.norm_weight + at(i));
    }
  }
  if (!rehearsal) wait_for_previous();
  const auto* const x = reinterpret_cast<const __nv_bfloat16*>(a.x + share.row * a.x_stride);
#pragma unroll
  for (int i = 0; i < Parts; ++i) {
    if (at(i) < a.k) row[i] = load_vector<8>(x + at(i));
  }
  float factor = 1.0f;
  uint32_t peak = 0;  // of the row, by bits
  if constexpr (Norm) {
    if (a.delta) {
      Part delta[Parts] = {};
#pragma unroll
      for (int i = 0; i < Parts; ++i) {
        if (at(i) < a.k) delta[i] = load_vector<8>(a.delta + share.row * a.k + at(i));
      }
#pragma unroll
      for (int i = 0; i < Parts; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          row[i].v[j] = __float2bfloat16_rn(to_float(row[i].v[j]) + to_float(delta[i].v[j]));
        }
      }
    }
    // The absmax before the factor, so that the warps meet once for both.
    float squares = 0.0f;
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < Parts; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float value = to_float(row[i].v[j]);
        squares = fmaf(value, value, squares);
        most = max(most, finite_magnitude(value * weight[i].v[j]));
      }
    }
    const SquaresPeak joined = join_warps<Warps>(
        SquaresPeak{warp_sum(squares), warp_max(most)}, share.mates,
        reinterpret_cast<SquaresPeak*>(scratch), [](SquaresPeak p, SquaresPeak q) {
          return SquaresPeak{p.squares + q.squares, max(p.peak, q.peak)};
        });
    factor = rsqrtf(joined.squares * a.inverse_k + a.norm_eps);
    peak = __float_as_uint(__uint_as_float(joined.peak) * factor);
    if (a.delta && blockIdx.x == 0) {
#pragma unroll
      for (int i = 0; i < Parts; ++i) {
        if (at(i) < a.k) store_vector(a.sum + share.row * a.k + at(i), row[i]);
      }
    }
  }
  const auto values_of = [&](int i, float(&values)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      values[j] = to_float(row[i].v[j]);
      if constexpr (Norm) values[j] = values[j] * factor * weight[i].v[j];
    }
  };
  uint8_t* const own = to + share.row * a.x_pitch;
  float values[8], scale = 0.0f;
  if (!a.x_blocked) {
    if (a.fixed_scale) {
      scale = *a.fixed_scale;
    } else {
      if constexpr (!Norm) {
#pragma unroll
        for (int i = 0; i < Parts; ++i) {
          values_of(i, values);
          peak = max(peak, greatest_magnitude(values));
        }
        peak = join_warps<Warps>(warp_max(peak), a.x_tensor ? ~0u : share.mates, scratch,
                                 [](uint32_t p, uint32_t q) { return max(p, q); });
      }
      scale = choose_scale(__uint_as_float(peak), a.x_format);
    }
    if (share.first == 0) scales[share.row] = scale;
  }
  const float inverse = inverse_scale(scale);
#pragma unroll
  for (int i = 0; i < Parts; ++i) {
    values_of(i, values);
    store_eight<F>(a, own, scales + share.row * a.slice_units, at(i), at(i) < a.k, values, inverse);
  }
}

// Codes and scales of BF16 rows of which the absmax of each eight columns is known, where a block
// has all of the inputs.
template <ThinForm F, int Warps>
__device__ __forceinline__ void quantize_measured_x(const ThinArgs& a, uint8_t* to, float* scales,
                                                    uint32_t* scratch) {
  constexpr int kHeld = 8;  // vectors in a lane, all on their way at once
  const RowShare<Warps> share(a);
  const int count = a.k / kGatedColumns;
  const auto at = [&](int i) { return share.first + i * share.step; };
  const auto* const x = reinterpret_cast<const __nv_bfloat16*>(a.x + share.row * a.x_stride);
  const __nv_bfloat16* const peaks = a.x_peaks + share.row * count;
  wait_for_previous();
  Vector<unsigned short, 8> most = {};
  Vector<__nv_bfloat16, 8> held[kHeld] = {};
  const auto load_peaks = [&](int i) {
    return load_vector<8>(reinterpret_cast<const unsigned short*>(peaks) + i);
  };
  if (share.first < count) most = load_peaks(share.first);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (at(i) < a.k) held[i] = load_vector<8>(x + at(i));
  }
  uint32_t peak = 0;
  const auto join = [&] {
#pragma unroll
    for (int j = 0; j < 8; ++j) peak = max(peak, uint32_t{most.v[j]} << 16);
  };
  join();
#pragma unroll 1
  for (int i = at(1); i < count; i += share.step) {
    most = load_peaks(i);
    join();
  }
  peak = join_warps<Warps>(warp_max(peak), a.x_tensor ? ~0u : share.mates, scratch,
                           [](uint32_t p, uint32_t q) { return max(p, q); });
  const float scale =
      a.fixed_scale ? *a.fixed_scale : choose_scale(__uint_as_float(peak), a.x_format);
  if (share.first == 0) scales[share.row] = scale;
  const float inverse = inverse_scale(scale);
  uint8_t* const own = to + share.row * a.x_pitch;
  const auto store = [&](int i, const auto& part) {
    float values[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = to_float(part.v[j]);
    store_codes<F>(own, i, values, inverse);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (at(i) < a.k) store(at(i), held[i]);
  }
#pragma unroll 2
  for (int i = at(kHeld); i < a.k; i += share.step) store(i, load_vector<8>(x + i));
}

// The same of BF16 rows where a block has a slice of them or they are long: every block finds the
// absmax of whole rows, and reads its slice again.
template <ThinForm F, int Warps>
__device__ __forceinline__ void quantize_x(const ThinArgs& a, const Slice& slice, uint8_t* to,
                                           float* scales, uint32_t* scratch) {
  const RowShare<Warps> share(a);
  const auto* const x = reinterpret_cast<const __nv_bfloat16*>(a.x + share.row * a.x_stride);
  const auto* const own = x + slice.first * kThinUnit;  // an element is a byte of W
  to += share.row * a.x_pitch;
  float values[8], scale = 0.0f;
  if (!a.x_blocked) {
    if (a.fixed_scale) {
      scale = *a.fixed_scale;
    } else {
      uint32_t peak = 0;
#pragma unroll 2
      for (int k = share.first; k < a.k; k += share.step) {
        load_floats(x + k, values);
        peak = max(peak, greatest_magnitude(values));
      }
      peak = join_warps<Warps>(warp_max(peak), a.x_tensor ? ~0u : share.mates, scratch,
                               [](uint32_t p, uint32_t q) { return max(p, q); });
      scale = choose_scale(__uint_as_float(peak), a.x_format);
    }
    if (share.first == 0) scales[share.row] = scale;
  }
  const float inverse = inverse_scale(scale);
  const int lane_at = static_cast<int>(threadIdx.x) % kWarp * 8;
#pragma unroll 2
  for (int at = share.first; at - lane_at < slice.bytes; at += share.step) {
    const bool live = at < slice.bytes;
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = 0.0f;
    if (live) load_floats(own + at, values);
    store_eight<F>(a, to, scales + share.row * a.slice_units, at, live, values, inverse);
  }
}

}  // namespace octet::cuda::thin
