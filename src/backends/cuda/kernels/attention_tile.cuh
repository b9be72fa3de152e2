// The tile: 64 positions against a group of 16 rows, a row being one (token, head). What the
// attention kernels share, for GQA and MLA, decode and prefill: numerics/attention_rule.h made of
// tensor core products.
//
//   scores  C[16, 64]  = Q[16, dim] * K[64, dim]^T        multiply_keys
//   values  C[16, dim] = P[16, 64]  * V[64, dim]          multiply_values
//
// Q, K, V and P lie in shared memory as T: FP16 where all are FP8 codes (every code is an FP16
// value), BF16 where activations are, else FP32 (plain FMAs; nothing but tests needs speed there).
// One element of C is one chain of m16n8k16 products in ascending order, whatever the other rows
// are and however many warps share a group: that is why decode, prefill and every way to cut a
// sequence into chunks give the same bits. Three more rules make it so:
//
//   * a tile counts from zero and has its own maximum, so tiles may be computed in any place; they
//     are folded into their split in ascending order, then the splits into the row;
//   * the sum of p has a fixed order, which depends on the position within the tile alone;
//   * products and sums that two kernels share are written as intrinsics: no contraction differs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "backends/cuda/kernels/device_math.cuh"
#include "numerics/attention_rule.h"

namespace octet::cuda {

inline constexpr int kGroupRows = 16;
inline constexpr int kTile = static_cast<int>(attention_rule::kTileTokens);
inline constexpr int kSplit = static_cast<int>(attention_rule::kSplitTokens);
inline constexpr int kSplitTiles = kSplit / kTile;
static_assert(kTile == 64 && kSplit % kTile == 0);

// Elements from one row in shared memory to the next: 16 bytes more than the row, so that eight
// rows at one column lie in eight different sets of banks.
template <typename T>
constexpr int row_pitch(int columns) {
  return columns + 16 / static_cast<int>(sizeof(T));
}

// Positions [begin, end) within a tile that a row sees.
struct Seen {
  int begin = 0, end = 0;
  __device__ __forceinline__ bool has(int t) const { return t >= begin && t < end; }
};
__device__ __forceinline__ int visible_begin(int position, int window) {
  return window > 0 && position + 1 > window ? position + 1 - window : 0;
}
__device__ __forceinline__ Seen seen_of(int position, int window, int start) {
  if (position < 0) return {};
  return {max(visible_begin(position, window) - start, 0), min(position + 1 - start, kTile)};
}

// --- products ------------------------------------------------------------------------------------
//
// Fragments of m16n8k16, for lane = 4 g + j: of A rows g and g + 8, of B column g, of C rows g and
// g + 8 (c[0..1] and c[2..3]) at columns 2j and 2j + 1.

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

template <typename T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// c[n] += A[16, K] * B[8N, K]^T; a and b are in shared memory, rows `a_pitch`, `b_pitch` apart.
template <int N, int K, typename T>
__device__ __forceinline__ void multiply_keys(const T* a, int a_pitch, const T* b, int b_pitch,
                                              float (&c)[N][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if constexpr (std::is_same_v<T, float>) {
    const T* const a0 = a + lane / 4 * a_pitch;
    const T* const b0 = b + lane % 4 * 2 * b_pitch;
#pragma unroll 1
    for (int k = 0; k < K; ++k) {
      const float low = a0[k], high = a0[8 * a_pitch + k];
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const float x = b0[n * 8 * b_pitch + k], y = b0[(n * 8 + 1) * b_pitch + k];
        c[n][0] = __fmaf_rn(low, x, c[n][0]);
        c[n][1] = __fmaf_rn(low, y, c[n][1]);
        c[n][2] = __fmaf_rn(high, x, c[n][2]);
        c[n][3] = __fmaf_rn(high, y, c[n][3]);
      }
    }
  } else {
    static_assert(K % 32 == 0);
    const T* const a_row = a + lane % 16 * a_pitch + lane / 16 * 8;
    const T* const b_row = b + lane % 8 * b_pitch + lane / 8 * 8;
#pragma unroll
    for (int k = 0; k < K; k += 32) {
      uint32_t first[4], second[4];
      load_matrices(first, a_row + k);
      load_matrices(second, a_row + k + 16);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        uint32_t keys[4];
        load_matrices(keys, b_row + n * 8 * b_pitch + k);
        multiply_add<T>(c[n], first, keys[0], keys[1]);
        multiply_add<T>(c[n], second, keys[2], keys[3]);
      }
    }
  }
}

// NaN and the infinities have all exponent bits set.
template <typename T>
__device__ __forceinline__ uint32_t exponent_mask() {
  return std::is_same_v<T, __half> ? 0x7C00u : 0x7F80u;
}
template <typename T>
__device__ __forceinline__ bool pair_is_finite(uint32_t pair) {
  const uint32_t mask = exponent_mask<T>();
  return (pair & mask) != mask && ((pair >> 16) & mask) != mask;
}
template <typename T>
__device__ __forceinline__ uint32_t zero_nonfinite(uint32_t pair) {
  const uint32_t mask = exponent_mask<T>();
  if ((pair & mask) == mask) pair &= 0xFFFF0000u;
  if (((pair >> 16) & mask) == mask) pair &= 0x0000FFFFu;
  return pair;
}

// c[n] += P[16, 64] * V[64, 8N]. A row must not meet the V of positions that it does not see, not
// even times zero, if that is not finite. Where rows of a tile see different positions and V is
// `poisoned`, the product is made without its nonfinite elements, and those are added by hand: all
// finite outputs keep their bits.
template <int N, typename T>
__device__ __forceinline__ void multiply_values(const T* p, int p_pitch, const T* v, int v_pitch,
                                                bool poisoned, const Seen (&seen)[2],
                                                float (&c)[N][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const T* const p_own = p + lane / 4 * p_pitch;
  const T* const v_own = v + lane % 4 * 2;
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll 1
    for (int t = 0; t < kTile; ++t) {
      const bool low = seen[0].has(t), high = seen[1].has(t);
      const float p_low = p_own[t], p_high = p_own[8 * p_pitch + t];
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const float x = v_own[t * v_pitch + n * 8], y = v_own[t * v_pitch + n * 8 + 1];
        if (low) c[n][0] = __fmaf_rn(p_low, x, c[n][0]);
        if (low) c[n][1] = __fmaf_rn(p_low, y, c[n][1]);
        if (high) c[n][2] = __fmaf_rn(p_high, x, c[n][2]);
        if (high) c[n][3] = __fmaf_rn(p_high, y, c[n][3]);
      }
    }
  } else {
    static_assert(N % 2 == 0);
    const T* const p_row = p + lane % 16 * p_pitch + lane / 16 * 8;
    const T* const v_row = v + lane % 16 * v_pitch + lane / 16 * 8;
#pragma unroll
    for (int t = 0; t < kTile; t += 16) {
      uint32_t weights[4];
      load_matrices(weights, p_row + t);
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        uint32_t values[4];
        load_matrices_transposed(values, v_row + t * v_pitch + n * 8);
        if (poisoned) [[unlikely]] {
#pragma unroll
          for (int i = 0; i < 4; ++i) values[i] = zero_nonfinite<T>(values[i]);
        }
        multiply_add<T>(c[n], weights, values[0], values[1]);
        multiply_add<T>(c[n + 1], weights, values[2], values[3]);
      }
    }
    if (poisoned) [[unlikely]] {
#pragma unroll 1
      for (int t = 0; t < kTile; ++t) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float value = to_float(v_own[t * v_pitch + n * 8 + e % 2]);
            if (isfinite(value) || !seen[e / 2].has(t)) continue;
            c[n][e] = __fmaf_rn(to_float(p_own[e / 2 * 8 * p_pitch + t]), value, c[n][e]);
          }
        }
      }
    }
  }
}

// --- softmax -------------------------------------------------------------------------------------

// 2^x, at most 2 units in the last place off, 0 below -126: as good as attention_rule::exp2.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Over the four lanes that hold a row of C; all get the same bits.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x = __fadd_rn(x, __shfl_xor_sync(~0u, x, 1));
  return __fadd_rn(x, __shfl_xor_sync(~0u, x, 2));
}

// A tile's M from its largest score: an integer, kNoMax if all are -Inf.
__device__ __forceinline__ float tile_max(float most) {
  return fmaxf(ceilf(most), attention_rule::kNoMax);
}

// How P is rounded before it meets V: step 5. FP16 operands imply e4m3, BF16 ones no less than
// bf16.
enum class RoundP : uint8_t { none, bf16, e4m3 };
inline RoundP round_of(bool fp8, DType activation, DType cache) {
  if (fp8) return RoundP::e4m3;
  return activation == DType::bf16 && cache != DType::f32 ? RoundP::bf16 : RoundP::none;
}

// Two neighbours of P, rounded, with E4M3's factor 256 still in them.
template <typename T>
__device__ __forceinline__ void store_p(T* to, float x, float y, RoundP round) {
  if (std::is_same_v<T, __half> || round == RoundP::e4m3) {
    uint16_t codes;
    uint32_t halves;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(codes)
        : "f"(y * attention_rule::kPScale), "f"(x * attention_rule::kPScale));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    if constexpr (std::is_same_v<T, __half>) {
      *reinterpret_cast<uint32_t*>(to) = halves;
      return;
    }
    const float2 values = __half22float2(*reinterpret_cast<const __half2*>(&halves));
    x = values.x;
    y = values.y;
  } else if (std::is_same_v<T, float> && round == RoundP::bf16) {
    x = to_float(from_float<__nv_bfloat16>(x));
    y = to_float(from_float<__nv_bfloat16>(y));
  }
  store_vector(to, Vector<T, 2>{from_float<T>(x), from_float<T>(y)});
}

// Joins (M, l) of a later tile or split to a row's; returns what the outputs are multiplied by.
__device__ __forceinline__ attention_rule::MergeFactors join(float& max, float& sum, float next_max,
                                                             float next_sum) {
  const attention_rule::MergeFactors f = attention_rule::merge_factors(max, next_max);
  max = f.max;
  sum = __fmaf_rn(sum, f.total, __fmul_rn(next_sum, f.split));
  return f;
}
__device__ __forceinline__ float join(float o, float next, const attention_rule::MergeFactors& f) {
  return __fmaf_rn(o, f.total, __fmul_rn(next, f.split));
}

// O / l, and M ln 2 + ln l.
__device__ __forceinline__ float normalized(float o, float sum) {
  return sum == 0.0f ? 0.0f : __fdiv_rn(o, sum);
}
__device__ __forceinline__ float log_sum_exp(float max, float sum) {
  return sum == 0.0f ? -INFINITY : __fmaf_rn(max, 0x1.62e43p-1f, logf(sum));
}

}  // namespace octet::cuda
