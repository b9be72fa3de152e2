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

// --- memory --------------------------------------------------------------------------------------

__device__ __forceinline__ float load_element(DType type, const void* from, int64_t i) {
  switch (type) {
    case DType::f32:
      return static_cast<const float*>(from)[i];
    case DType::bf16:
      return to_float(static_cast<const __nv_bfloat16*>(from)[i]);
    case DType::f16:
      return to_float(static_cast<const __half*>(from)[i]);
    case DType::e4m3:
      return decode_e4m3(static_cast<const uint8_t*>(from)[i]);
    default:
      return decode_e5m2(static_cast<const uint8_t*>(from)[i]);
  }
}
// To f32 or bf16.
__device__ __forceinline__ void store_element(DType type, void* to, int64_t i, float x) {
  if (type == DType::f32) {
    static_cast<float*>(to)[i] = x;
  } else {
    static_cast<__nv_bfloat16*>(to)[i] = from_float<__nv_bfloat16>(x);
  }
}

// Elements i and i + 1; i is even and the array begins at a multiple of their size.
__device__ __forceinline__ void store_pair(DType type, void* to, int64_t i, const float (&x)[2]) {
  if (type == DType::f32) {
    store_floats(static_cast<float*>(to) + i, x);
  } else {
    store_floats(static_cast<__nv_bfloat16*>(to) + i, x);
  }
}

// A [T, heads, dim] tensor.
struct HeadsView {
  char* data = nullptr;
  int64_t token_stride = 0, head_stride = 0;  // bytes
  DType type = DType::f32;

  HeadsView() = default;
  explicit HeadsView(const Tensor& t)
      : data(static_cast<char*>(t.data)),
        token_stride(t.strides[0] * static_cast<int64_t>(size_of(t.type))),
        head_stride(t.strides[1] * static_cast<int64_t>(size_of(t.type))),
        type(t.type) {}
  __device__ __forceinline__ void* at(int64_t token, int64_t head) const {
    return data + token * token_stride + head * head_stride;
  }
};

// One query row, by a warp: to `to` as T, padded with zeros to Dim. In FP8 mode it becomes the
// values of its codes, and their scale is returned; else 1.
template <int Dim, typename T>
__device__ __forceinline__ float load_query(DType type, const void* from, int dim, bool fp8,
                                            T* to) {
  constexpr int kEach = Dim / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float x[kEach];
  uint32_t absmax = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int d = lane + i * kWarp;
    x[i] = d < dim ? load_element(type, from, d) : 0.0f;
    absmax = max(absmax, finite_magnitude(x[i]));
  }
  float scale = 1.0f;
  if (fp8) {
    constexpr QuantFormat format = attention_rule::kQueryFormat;
    scale = choose_scale_device(__uint_as_float(warp_max(absmax)), format);
    const float inv = inverse_scale(scale);
#pragma unroll
    for (int i = 0; i < kEach; ++i) x[i] = decode_e4m3(encode_e4m3(__fmul_rn(x[i], inv)));
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) to[lane + i * kWarp] = from_float<T>(x[i]);
  return scale;
}

// The rows of a tile on their way from the cache to shared memory. Width: bytes of an element, 1 or
// 2, where rows are read in pieces of 16 bytes, all in flight at once; 0 where they are not.
template <typename T, int Width, int Dim, int Threads>
class TileReader {
 public:
  // Starts the loads. `slots` [64]: which row of `base` each position has; negative = none, zeros.
  __device__ __forceinline__ void load(const uint8_t* base, int64_t row_bytes, int dim,
                                       const int32_t* slots) {
    if constexpr (Width > 0) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int piece = static_cast<int>(threadIdx.x) + i * Threads;
        const int t = piece / kRowPieces, column = piece % kRowPieces;
        const int32_t slot = slots[t];
        pieces_[i] = make_uint4(0, 0, 0, 0);
        if (slot >= 0 && column * kElements < dim) {
          const uint8_t* const from = base + slot * row_bytes + column * 16;
          asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                       : "=r"(pieces_[i].x), "=r"(pieces_[i].y), "=r"(pieces_[i].z),
                         "=r"(pieces_[i].w)
                       : "l"(from));
        }
      }
    }
  }

  // Writes them as T. Returns whether there is a nonfinite element, if it is asked to `look`.
  __device__ __forceinline__ bool store(T* to, DType type, bool look) const {
    if constexpr (Width == 1) {
      return type == DType::e4m3 ? store_as<Fp8::e4m3>(to, look) : store_as<Fp8::e5m2>(to, look);
    } else if constexpr (Width == 2) {
      return store_as<Fp8::e4m3>(to, look);
    } else {
      return false;
    }
  }

  // Both for any type and alignment, an element at a time.
  __device__ static bool copy(const uint8_t* base, int64_t row_bytes, int dim, const int32_t* slots,
                              T* to, DType type) {
    bool nonfinite = false;
    for (int i = static_cast<int>(threadIdx.x); i < kTile * Dim; i += Threads) {
      const int t = i / Dim, d = i % Dim;
      const int32_t slot = slots[t];
      float x = 0.0f;
      if (slot >= 0 && d < dim) x = load_element(type, base + slot * row_bytes, d);
      to[t * row_pitch<T>(Dim) + d] = from_float<T>(x);
      nonfinite |= !isfinite(x);
    }
    return nonfinite;
  }

 private:
  static constexpr int kElements = Width > 0 ? 16 / Width : 16;
  static constexpr int kRowPieces = Dim / kElements;
  static constexpr int kPieces = kTile * kRowPieces / Threads;
  static_assert(Width == 0 || kTile * kRowPieces % Threads == 0);

  // F only matters if elements are FP8.
  template <Fp8 F>
  __device__ __forceinline__ bool store_as(T* to, bool look) const {
    constexpr int kPairs = kElements / 2;
    bool nonfinite = false;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int piece = static_cast<int>(threadIdx.x) + i * Threads;
      const uint32_t words[4] = {pieces_[i].x, pieces_[i].y, pieces_[i].z, pieces_[i].w};
      uint32_t pairs[kPairs];
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        pairs[k] = Width == 2 ? words[k % 4]
                              : decode_pair<F>(static_cast<uint16_t>(words[k / 2] >> k % 2 * 16));
      }
      if (look) {
#pragma unroll
        for (int k = 0; k < kPairs; ++k) nonfinite |= !pair_is_finite<T>(pairs[k]);
      }
      uint4* const row = reinterpret_cast<uint4*>(to + piece / kRowPieces * row_pitch<T>(Dim) +
                                                  piece % kRowPieces * kElements);
#pragma unroll
      for (int k = 0; k < kPairs; k += 4)
        row[k / 4] = make_uint4(pairs[k], pairs[k + 1], pairs[k + 2], pairs[k + 3]);
    }
    return nonfinite;
  }
  template <Fp8 F>
  __device__ __forceinline__ static uint32_t decode_pair(uint16_t codes) {
    const __half2 halves = decode_fp8x2<F>(codes);
    if constexpr (std::is_same_v<T, __half>) {
      return *reinterpret_cast<const uint32_t*>(&halves);
    } else {
      const __nv_bfloat162 pair = __float22bfloat162_rn(__half22float2(halves));
      return *reinterpret_cast<const uint32_t*>(&pair);
    }
  }

  uint4 pieces_[Width > 0 ? kPieces : 1];
};

// --- the paged cache -----------------------------------------------------------------------------

struct PagedRows {
  const int32_t* table = nullptr;  // i32 [sequences, entries], rows `pitch` apart
  int64_t pitch = 0;
  int entries = 0, block_tokens = 0, blocks = 0;

  PagedRows() = default;
  PagedRows(const Tensor& block_table, int64_t tokens, int64_t count)
      : table(block_table.as<const int32_t>()),
        pitch(block_table.strides[0]),
        entries(static_cast<int>(block_table.shape[1])),
        block_tokens(static_cast<int>(tokens)),
        blocks(static_cast<int>(count)) {}

  // Slot of a position in [blocks, block_tokens] seen as rows; -1 if the table has no block for it
  // (then it reads as zeros: an id out of range must not read another's memory).
  __device__ __forceinline__ int32_t slot_of(int sequence, int position) const {
    const int entry = position / block_tokens;
    if (entry >= entries) return -1;
    const int32_t id = table[sequence * pitch + entry];
    return id < 0 || id >= blocks ? -1 : id * block_tokens + position % block_tokens;
  }
};

// One sequence's rows: `spans` of ops::Batch.
struct Span {
  int first_row, rows, first_position;
};
__device__ __forceinline__ Span load_span(const int32_t* spans, int sequence) {
  return {spans[3 * sequence], spans[3 * sequence + 1], spans[3 * sequence + 2]};
}

// Where work item `index` lies if every sequence of more than `least` rows has
// ceil(rows * heads / item_rows) items, later ones first, since they cost more. sequence = -1 if
// there are fewer items. Called by whole warps; all lanes get the answer.
struct Item {
  int sequence = -1, item = 0;
  Span span{};
};
__device__ __forceinline__ Item find_item(const int32_t* spans, int sequences, int index, int least,
                                          int heads, int item_rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int first = 0; first < sequences; first += kWarp) {
    Span span{0, 0, 0};
    if (first + lane < sequences) span = load_span(spans, first + lane);
    const int items = span.rows > least ? (span.rows * heads + item_rows - 1) / item_rows : 0;
    int end = items;
#pragma unroll
    for (int apart = 1; apart < kWarp; apart *= 2) {
      const int other = __shfl_up_sync(~0u, end, apart);
      if (lane >= apart) end += other;
    }
    const unsigned found = __ballot_sync(~0u, index < end);
    if (found != 0) {
      const int at = __ffs(static_cast<int>(found)) - 1;
      Item item;
      item.sequence = first + at;
      item.item = __shfl_sync(~0u, end, at) - 1 - index;
      item.span.first_row = __shfl_sync(~0u, span.first_row, at);
      item.span.rows = __shfl_sync(~0u, span.rows, at);
      item.span.first_position = __shfl_sync(~0u, span.first_position, at);
      return item;
    }
    index -= __shfl_sync(~0u, end, kWarp - 1);
  }
  return {};
}

}  // namespace octet::cuda
