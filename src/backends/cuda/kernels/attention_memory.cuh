// How rows come into and out of the attention kernels: queries, the tiles of the paged cache, and
// which rows a sequence has in a step.
#pragma once

#include <bit>

#include "backends/cuda/kernels/attention_tile.cuh"
#include "backends/cuda/kernels/kv_planes.cuh"

namespace octet::cuda {

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
  bool vectors = false;  // four elements may be read at once, from every fourth on

  HeadsView() = default;
  explicit HeadsView(const Tensor& t)
      : data(static_cast<char*>(t.data)),
        token_stride(t.strides[0] * static_cast<int64_t>(size_of(t.type))),
        head_stride(t.strides[1] * static_cast<int64_t>(size_of(t.type))),
        type(t.type),
        vectors(t.shape[2] % 4 == 0 && rows_aligned(t, 4 * size_of(t.type))) {}
  __device__ __forceinline__ void* at(int64_t token, int64_t head) const {
    return data + token * token_stride + head * head_stride;
  }
};

// One query row on its way to shared memory, by a warp. All its loads are under way at once, and
// nothing waits for them before finish(). Lane l has runs of kRun elements from (32 c + l) kRun on.
template <int Dim>
class QueryRow {
 public:
  static constexpr int kRun = Dim / kWarp < 4 ? Dim / kWarp : 4, kRuns = Dim / kWarp / kRun;

  // `from`: dim elements. `vectors`: runs may be read at once.
  __device__ __forceinline__ void load(DType type, const void* from, int dim, bool vectors) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto* const words = static_cast<const uint32_t*>(from);
#pragma unroll
    for (int c = 0; c < kRuns; ++c) runs_[c] = {};
    if (vectors && type != DType::f32) {
#pragma unroll
      for (int c = 0; c < kRuns; ++c) {
        const int d = (c * kWarp + lane) * kRun;
        if (d < dim) load_words<kRun / 2>(words + d / 2, runs_[c]);
      }
    } else if (vectors) {
#pragma unroll
      for (int c = 0; c < kRuns; ++c) {
        const int d = (c * kWarp + lane) * kRun;
        if (d < dim) load_words<kRun>(words + d, runs_[c]);
      }
    } else if (type == DType::f32) {
#pragma unroll
      for (int i = 0; i < kRuns * kRun; ++i) {
        const int d = (i / kRun * kWarp + lane) * kRun + i % kRun;
        if (d < dim) runs_[i / kRun].v[i % kRun] = words[d];
      }
    } else {
      const auto* const halves = static_cast<const uint16_t*>(from);
#pragma unroll
      for (int i = 0; i < kRuns * kRun; ++i) {
        const int d = (i / kRun * kWarp + lane) * kRun + i % kRun;
        if (d < dim) runs_[i / kRun].v[i % kRun / 2] |= uint32_t{halves[d]} << i % 2 * 16;
      }
    }
  }

  // Writes it as T, padded with zeros to Dim. In FP8 mode it becomes the values of its codes, and
  // their scale is returned; else 1.
  template <typename T>
  __device__ __forceinline__ float finish(DType type, bool fp8, T* to) const {
    float x[kRuns][kRun];
    uint32_t absmax = 0;
#pragma unroll
    for (int c = 0; c < kRuns; ++c) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        if (type == DType::f32) {
          x[c][i] = __uint_as_float(runs_[c].v[i]);
        } else {
          const uint32_t pair = runs_[c].v[i / 2];
          const uint32_t bits = i % 2 == 0 ? pair & 0xFFFFu : pair >> 16;
          x[c][i] = type == DType::bf16
                        ? __uint_as_float(bits << 16)
                        : to_float(__ushort_as_half(static_cast<unsigned short>(bits)));
        }
        absmax = max(absmax, finite_magnitude(x[c][i]));
      }
    }
    float scale = 1.0f;
    if (fp8) {
      constexpr QuantFormat format = attention_rule::kQueryFormat;
      scale = choose_scale_device(__uint_as_float(warp_max(absmax)), format);
      const float inv = inverse_scale(scale);
#pragma unroll
      for (int c = 0; c < kRuns; ++c) {
#pragma unroll
        for (int i = 0; i < kRun; i += 2) {
          const uint32_t codes =
              encode_fp8x2<Code::e4m3>(__fmul_rn(x[c][i], inv), __fmul_rn(x[c][i + 1], inv));
          const float2 pair =
              __half22float2(decode_fp8x2<Code::e4m3>(static_cast<uint16_t>(codes)));
          x[c][i] = pair.x;
          x[c][i + 1] = pair.y;
        }
      }
    }
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int c = 0; c < kRuns; ++c) store_floats(to + (c * kWarp + lane) * kRun, x[c]);
    return scale;
  }

  // The elements of a BF16 row.
  __device__ __forceinline__ void values(float (&x)[kRuns][kRun]) const {
#pragma unroll
    for (int c = 0; c < kRuns; ++c) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const uint32_t pair = runs_[c].v[i / 2];
        x[c][i] = __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u);
      }
    }
  }
  // Turns pairs (j, j + Dim / 2) of a BF16 row by the lane's angles, and rounds them.
  __device__ __forceinline__ void rotate(const float (&c)[kRun], const float (&s)[kRun]) {
    static_assert(kRuns <= 2);
    float x[kRuns][kRun];
    values(x);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if constexpr (kRuns == 2) {
        paged::rotate(x[0][i], x[1][i], c[i], s[i]);
      } else {
        const float other = __shfl_xor_sync(~0u, x[0][i], kWarp / 2);
        float a = x[0][i], b = other;
        if (threadIdx.x % kWarp >= kWarp / 2) {
          a = other;
          b = x[0][i];
        }
        paged::rotate(a, b, c[i], s[i]);
        x[0][i] = threadIdx.x % kWarp >= kWarp / 2 ? b : a;
      }
    }
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
#pragma unroll
      for (int i = 0; i < kRun; i += 2) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x[r][i], x[r][i + 1]);
        runs_[r].v[i / 2] = *reinterpret_cast<const uint32_t*>(&pair);
      }
    }
  }

 private:
  using Run = Vector<uint32_t, kRun>;
  template <int N>
  __device__ __forceinline__ static void load_words(const uint32_t* from, Run& to) {
    const Vector<uint32_t, N> words = load_vector<N>(from);
#pragma unroll
    for (int i = 0; i < N; ++i) to.v[i] = words.v[i];
  }
  static_assert(kRun % 2 == 0 && Dim % (kWarp * kRun) == 0);

  Run runs_[kRuns];
};

// A row of zeros in its place.
template <int Dim, typename T>
__device__ __forceinline__ void zero_query(T* to) {
  for (int d = static_cast<int>(threadIdx.x) % kWarp; d < Dim; d += kWarp)
    to[d] = from_float<T>(0.0f);
}

// Rows [begin, end) of a tile.
struct TileRows {
  int begin = 0, end = 0;
  __device__ __forceinline__ bool has(int t) const { return t >= begin && t < end; }
};

// 16 bytes of the cache. Past the L1, whose lines may be older than what the kernel before wrote.
__device__ __forceinline__ uint4 load_piece(const uint8_t* from) {
  uint4 piece;
  asm volatile("ld.relaxed.gpu.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
               : "l"(from));
  return piece;
}

// The rows of a tile on their way from the cache to shared memory, by `Threads` consecutive
// threads. Width: bytes of an element, 1 or 2, where rows are read in pieces of 16 bytes, all in
// flight at once; 0 where they are not. Rows that are `left` out are neither read nor written.
template <typename T, int Width, int Dim, int Threads>
class TileReader {
 public:
  // Starts the loads. `slots` [64]: which row of `base` each position has; negative = none, zeros.
  __device__ __forceinline__ void load(const uint8_t* base, int64_t row_bytes, int dim,
                                       const int32_t* slots, TileRows left = {}) {
    if constexpr (Width > 0) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int piece = thread() + i * Threads;
        const int t = piece / kRowPieces, column = piece % kRowPieces;
        const int32_t slot = slots[t];
        pieces_[i] = make_uint4(0, 0, 0, 0);
        if (slot >= 0 && column * kElements < dim && !left.has(t))
          pieces_[i] = load_piece(base + slot * row_bytes + column * 16);
      }
    }
  }

  // Writes them as T. Returns whether there is a nonfinite element, if it is asked to `look`.
  __device__ __forceinline__ bool store(T* to, DType type, bool look, TileRows left = {}) const {
    if constexpr (Width == 1) {
      return type == DType::e4m3 ? store_as<Code::e4m3>(to, look, left)
                                 : store_as<Code::e5m2>(to, look, left);
    } else if constexpr (Width == 2) {
      return store_as<Code::e4m3>(to, look, left);
    } else {
      return false;
    }
  }

  // The rows that were left out: few, so a thread has one piece of them at most in nearly all
  // cases. Where that begins, from `base`; -1 if it has none.
  __device__ __forceinline__ static int64_t find_left(int64_t row_bytes, int dim,
                                                      const int32_t* slots, TileRows left,
                                                      int piece = thread()) {
    const int t = left.begin + piece / kRowPieces, column = piece % kRowPieces;
    if (Width == 0 || t >= left.end || slots[t] < 0 || column * kElements >= dim) return -1;
    return slots[t] * row_bytes + column * 16;
  }
  // Starts its load; store_left() writes it, and loads and writes what else there may be.
  __device__ __forceinline__ void load_left(const uint8_t* base, int64_t at) {
    pieces_[0] = at < 0 ? make_uint4(0, 0, 0, 0) : load_piece(base + at);
  }
  __device__ __forceinline__ bool store_left(const uint8_t* base, int64_t row_bytes, int dim,
                                             const int32_t* slots, TileRows left, T* to, DType type,
                                             bool look) {
    bool nonfinite = false;
    if constexpr (Width > 0) {
      for (int piece = thread(); piece < (left.end - left.begin) * kRowPieces; piece += Threads) {
        if (piece >= Threads) load_left(base, find_left(row_bytes, dim, slots, left, piece));
        const int at = left.begin * kRowPieces + piece;
        nonfinite |= Width == 1 && type == DType::e5m2
                         ? store_piece<Code::e5m2>(pieces_[0], at, to, look)
                         : store_piece<Code::e4m3>(pieces_[0], at, to, look);
      }
    }
    return nonfinite;
  }

  // Both for any type and alignment, an element at a time.
  __device__ static bool copy(const uint8_t* base, int64_t row_bytes, int dim, const int32_t* slots,
                              T* to, DType type) {
    bool nonfinite = false;
    for (int i = thread(); i < kTile * Dim; i += Threads) {
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

  __device__ __forceinline__ static int thread() {
    return static_cast<int>(threadIdx.x) % Threads;
  }
  // F only matters if elements are FP8.
  template <Code F>
  __device__ __forceinline__ bool store_as(T* to, bool look, TileRows left) const {
    bool nonfinite = false;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = thread() + i * Threads;
      if (!left.has(at / kRowPieces)) nonfinite |= store_piece<F>(pieces_[i], at, to, look);
    }
    return nonfinite;
  }
  // Piece `at` of the tile.
  template <Code F>
  __device__ __forceinline__ static bool store_piece(const uint4& piece, int at, T* to, bool look) {
    constexpr int kPairs = kElements / 2;
    const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
    uint32_t pairs[kPairs];
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      pairs[k] = Width == 2 ? words[k % 4]
                            : decode_pair<F>(static_cast<uint16_t>(words[k / 2] >> k % 2 * 16));
    }
    bool nonfinite = false;
    if (look) {
#pragma unroll
      for (int k = 0; k < kPairs; ++k) nonfinite |= !pair_is_finite<T>(pairs[k]);
    }
    uint4* const row = reinterpret_cast<uint4*>(to + at / kRowPieces * row_pitch<T>(Dim) +
                                                at % kRowPieces * kElements);
#pragma unroll
    for (int k = 0; k < kPairs; k += 4)
      row[k / 4] = make_uint4(pairs[k], pairs[k + 1], pairs[k + 2], pairs[k + 3]);
    return nonfinite;
  }
  template <Code F>
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

// A divisor of numbers >= 0. It nearly always is a power of two, and division is slow.
struct Divisor {
  int value = 1, shift = 0;  // value = 1 << shift; shift < 0 if it is not a power of two

  Divisor() = default;
  explicit Divisor(int divisor)
      : value(divisor),
        shift(std::has_single_bit(static_cast<unsigned>(divisor))
                  ? std::countr_zero(static_cast<unsigned>(divisor))
                  : -1) {}
  __device__ __forceinline__ friend int operator/(int x, const Divisor& d) {
    return d.shift >= 0 ? x >> d.shift : x / d.value;
  }
};

struct PagedRows {
  const int32_t* table = nullptr;  // i32 [sequences, entries], rows `pitch` apart
  int64_t pitch = 0;
  int entries = 0, blocks = 0;
  Divisor block_tokens;

  PagedRows() = default;
  PagedRows(const Tensor& block_table, int64_t tokens, int64_t count)
      : table(block_table.as<const int32_t>()),
        pitch(block_table.strides[0]),
        entries(static_cast<int>(block_table.shape[1])),
        blocks(static_cast<int>(count)),
        block_tokens(static_cast<int>(tokens)) {}

  // Slot of a position in [blocks, block_tokens] seen as rows; -1 if the table has no block for it
  // (then it reads as zeros: an id out of range must not read another's memory).
  __device__ __forceinline__ int32_t slot_of(int sequence, int position) const {
    const int entry = position / block_tokens;
    if (entry >= entries) return -1;
    const int32_t id = table[sequence * pitch + entry];
    return id < 0 || id >= blocks ? -1 : (id - entry) * block_tokens.value + position;
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
