// The fast linear in FP32: AVX-512 FMA on values decoded to FP32, which is exact for every type.
//
// Scales: x is scaled while it is packed. A weight scale that is constant along k multiplies the
// finished sum. One that varies along k multiplies the sum of its 128 values, lane by lane, as it
// is added to the total:
//
//   constant  acc += w * x                        over all of k;  out = tree(acc) * s
//   varying   part += w * x  over 128 values;  acc += part * s;   out = tree(acc)
#include "backends/cpu/kernels/fast_linear.h"

#if defined(__x86_64__)

#include <algorithm>
#include <cstring>

#include "backends/cpu/kernels/simd_avx512.h"
#include "numerics/half.h"

namespace octet::cpu::fast {
namespace {

using namespace simd;

constexpr int kGroup = 6;       // rows of x in a tile
constexpr int kDirect = 6;      // up to so many rows of x, W is decoded in registers and used once
constexpr int64_t kVecs = 4;    // FP32 vectors in a chunk
constexpr int64_t kBlock = 16;  // chunks of k that a tile handles before the next: x stays in L1
constexpr int64_t kPanelBytes = 512 << 10;  // decoded rows of W: in half of a small L2
constexpr int64_t kPanelRows = 32;
constexpr int64_t kFewGroups = 4;
constexpr int64_t kTurn = 8;  // groups of x whose accumulators are kept over blocks of k

// --- decoding ---------------------------------------------------------------------------------
// A decoder turns 64 stored values into four vectors. The order in which it does so is its own, and
// packing puts x in the same order: element `order[16 * v + lane]` is lane `lane` of vector v.
// `valid` < 64 reads only that many values and gives zeros beyond.

template <Fp8 F>
struct Fp8Decoder {
  static constexpr int bytes = 1;
  static constexpr int order(int i) {
    const int vec = i / 16, lane = i % 16;
    return lane / 4 * 16 + vec / 2 * 8 + lane % 4 * 2 + vec % 2;
  }
  Fp8Table table;
  OCTET_AVX512_INLINE static Fp8Decoder make() { return {load_fp8_table<F>()}; }
  OCTET_AVX512_INLINE void expand(__m512i codes, __m512* out) const {
    __m512i first, second;
    decode_fp8(table, codes, first, second);
    out[0] = even_bf16(first);
    out[1] = odd_bf16(first);
    out[2] = even_bf16(second);
    out[3] = odd_bf16(second);
  }
  OCTET_AVX512_INLINE void full(const std::byte* p, __m512* out) const {
    expand(_mm512_loadu_si512(p), out);
  }
  OCTET_AVX512_INLINE void part(const std::byte* p, int64_t valid, __m512* out) const {
    expand(_mm512_maskz_loadu_epi8(first_lanes(valid, 64), p), out);
  }
};

struct Bf16Decoder {
  static constexpr int bytes = 2;
  static constexpr int order(int i) {
    const int vec = i / 16, lane = i % 16;
    return vec / 2 * 32 + lane * 2 + vec % 2;
  }
  OCTET_AVX512_INLINE static Bf16Decoder make() { return {}; }
  OCTET_AVX512_INLINE void expand(__m512i first, __m512i second, __m512* out) const {
    out[0] = even_bf16(first);
    out[1] = odd_bf16(first);
    out[2] = even_bf16(second);
    out[3] = odd_bf16(second);
  }
  OCTET_AVX512_INLINE void full(const std::byte* p, __m512* out) const {
    expand(_mm512_loadu_si512(p), _mm512_loadu_si512(p + 64), out);
  }
  OCTET_AVX512_INLINE void part(const std::byte* p, int64_t valid, __m512* out) const {
    expand(_mm512_maskz_loadu_epi16(static_cast<__mmask32>(first_lanes(valid, 32)), p),
           _mm512_maskz_loadu_epi16(static_cast<__mmask32>(first_lanes(valid - 32, 32)), p + 64),
           out);
  }
};

struct Fp16Decoder {
  static constexpr int bytes = 2;
  static constexpr int order(int i) { return i; }
  OCTET_AVX512_INLINE static Fp16Decoder make() { return {}; }
  OCTET_AVX512_INLINE void full(const std::byte* p, __m512* out) const {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      out[v] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * v)));
    }
  }
  OCTET_AVX512_INLINE void part(const std::byte* p, int64_t valid, __m512* out) const {
    for (int v = 0; v < 4; ++v) {
      const auto mask = static_cast<__mmask16>(first_lanes(valid - 16 * v, 16));
      out[v] = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p + 32 * v));
    }
  }
};

struct F32Decoder {
  static constexpr int bytes = 4;
  static constexpr int order(int i) { return i; }
  OCTET_AVX512_INLINE static F32Decoder make() { return {}; }
  OCTET_AVX512_INLINE void full(const std::byte* p, __m512* out) const {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) out[v] = _mm512_loadu_ps(p + 64 * v);
  }
  OCTET_AVX512_INLINE void part(const std::byte* p, int64_t valid, __m512* out) const {
    for (int v = 0; v < 4; ++v) {
      const auto mask = static_cast<__mmask16>(first_lanes(valid - 16 * v, 16));
      out[v] = _mm512_maskz_loadu_ps(mask, p + 64 * v);
    }
  }
};

// Calls visit.template operator()<Decoder>() for the type of the values.
template <class Visit>
void with_decoder(DType type, Visit visit) {
  switch (type) {
    case DType::e4m3:
      return visit.template operator()<Fp8Decoder<Fp8::e4m3>>();
    case DType::e5m2:
      return visit.template operator()<Fp8Decoder<Fp8::e5m2>>();
    case DType::bf16:
      return visit.template operator()<Bf16Decoder>();
    case DType::f16:
      return visit.template operator()<Fp16Decoder>();
    case DType::f32:
      return visit.template operator()<F32Decoder>();
    default:
      throw Fault("fast linear: values of a type that it refuses");
  }
}

// --- packing x --------------------------------------------------------------------------------

template <class From, class To>
OCTET_AVX512 void pack_row(const Matrix& x, int64_t row, float* out, int64_t step) {
  constexpr bool same_order = [] {
    for (int i = 0; i < 64; ++i) {
      if (From::order(i) != To::order(i)) return false;
    }
    return true;
  }();
  // Where vector v, lane l of the target stands among the vectors of the source.
  static constexpr auto source = [] {
    std::array<int, 64> position{}, result{};
    for (int i = 0; i < 64; ++i) position[From::order(i)] = i;
    for (int i = 0; i < 64; ++i) result[i] = position[To::order(i)];
    return result;
  }();

  const From decoder = From::make();
  const std::byte* p = x.row(row);
  for (int64_t k = 0; k < x.k; k += kChunk) {
    alignas(64) __m512 v[kVecs];
    if (x.k - k >= kChunk) {
      decoder.full(p, v);
    } else {
      decoder.part(p, x.k - k, v);
    }
    p += kChunk * From::bytes;
    if constexpr (!same_order) {
      alignas(64) float values[kChunk];
      for (int i = 0; i < kVecs; ++i) _mm512_store_ps(values + 16 * i, v[i]);
      for (int i = 0; i < kVecs; ++i) {
        v[i] = _mm512_i32gather_ps(_mm512_loadu_si512(source.data() + 16 * i), values, 4);
      }
    }
    if (x.scales.data) {
      const __m512 scale = _mm512_set1_ps(x.scales.at(row, x.scales.varies ? k / kCell : 0));
      for (int i = 0; i < kVecs; ++i) v[i] = _mm512_mul_ps(v[i], scale);
    }
    for (int i = 0; i < kVecs; ++i, out += step) _mm512_storeu_ps(out, v[i]);
  }
}

void pack(const Matrix& x, const int32_t* index, const Matrix& w, const Packed& packed,
          int64_t begin, int64_t end) {
  with_decoder(x.type, [&]<class From>() {
    with_decoder(w.type, [&]<class To>() {
      for (int64_t group = begin; group < end; ++group) {
        const int64_t first = packed.first_row(group), last = packed.first_row(group + 1);
        auto* out = reinterpret_cast<float*>(packed.data + first * packed.row_bytes);
        for (int64_t m = first; m < last; ++m, out += 16) {
          pack_row<From, To>(x, index ? index[m] : m, out, 16 * (last - first));
        }
      }
    });
  });
}

// --- tiles ------------------------------------------------------------------------------------
// A tile is M rows of x by 4 rows of W. Its accumulators are one vector an output.
//
//              W row 0   1   2   3
//   x row 0      acc   acc acc acc       per 16 values of k: M + 4 loads for 4 M FMAs;
//         ...                            M = 6 fills 24 of the 32 registers with accumulators
//   x row M-1    acc   acc acc acc

template <int M>
struct Accumulators {
  __m512 at[M][4];

  OCTET_AVX512_INLINE void clear() {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) at[m][r] = _mm512_setzero_ps();
    }
  }
  OCTET_AVX512_INLINE void load(const float* from) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) at[m][r] = _mm512_load_ps(from + (m * 4 + r) * 16);
    }
  }
  OCTET_AVX512_INLINE void store(float* to) const {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) _mm512_store_ps(to + (m * 4 + r) * 16, at[m][r]);
    }
  }
  // total += this * scale, where `scale` has one factor a row of W.
  OCTET_AVX512_INLINE void fold(float* total, const float* scale) const {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        float* to = total + (m * 4 + r) * 16;
        _mm512_store_ps(to,
                        _mm512_fmadd_ps(at[m][r], _mm512_set1_ps(scale[r]), _mm512_load_ps(to)));
      }
    }
  }
};

// Four rows of W from the mapping; rows beyond the last repeat it, and are not written out.
struct Rows4 {
  const std::byte* row[4];
  int64_t ahead;  // bytes: the same place in the next four rows, which is prefetched

  static Rows4 of(const Matrix& w, int64_t n) {
    Rows4 rows;
    for (int r = 0; r < 4; ++r) rows.row[r] = w.row(std::min(n + r, w.rows - 1));
    rows.ahead = 4 * w.row_bytes;
    return rows;
  }
};

// The lines of one chunk, `ahead` bytes on. Integers, as the place may lie beyond the mapping.
template <int Lines>
OCTET_AVX512_INLINE void prefetch_ahead(const std::byte* p, int64_t ahead) {
#pragma GCC unroll 4
  for (int line = 0; line < Lines; ++line) {
    const uintptr_t place = reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(ahead) +
                            static_cast<uintptr_t>(64 * line);
    _mm_prefetch(reinterpret_cast<const char*>(place), _MM_HINT_T0);
  }
}

// acc += one chunk, W decoded in registers.
template <int M, class Decoder, bool Full>
OCTET_AVX512_INLINE void direct_chunk(Accumulators<M>& acc, const Decoder& decoder,
                                      const Rows4& rows, int64_t k, int64_t valid, const float* x) {
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    const std::byte* p = rows.row[r] + k * Decoder::bytes;
    __m512 w[kVecs];
    if constexpr (Full) {
      prefetch_ahead<Decoder::bytes>(p, rows.ahead);
      decoder.full(p, w);
    } else {
      decoder.part(p, valid, w);
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        acc.at[m][r] = _mm512_fmadd_ps(w[v], _mm512_load_ps(x + (v * M + m) * 16), acc.at[m][r]);
      }
    }
  }
}

// acc += one chunk, W decoded already: [vector][4 rows][16].
template <int M>
OCTET_AVX512_INLINE void packed_chunk(Accumulators<M>& acc, const float* w, const float* x) {
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) {
    __m512 row[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) row[r] = _mm512_load_ps(w + (v * 4 + r) * 16);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const __m512 value = _mm512_load_ps(x + (v * M + m) * 16);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) acc.at[m][r] = _mm512_fmadd_ps(row[r], value, acc.at[m][r]);
    }
  }
}

// Up to kDirect rows of x by four rows of W, over all of k. The sums go to `total` as lanes.
template <int M, class Decoder, bool Fold>
OCTET_AVX512 void direct_tile(const Rows4& rows, int64_t k_size, const float* x, const float* scale,
                              float* total) {
  const Decoder decoder = Decoder::make();
  const int64_t full = k_size / kChunk * kChunk;
  constexpr int64_t x_step = kVecs * M * 16;
  Accumulators<M> acc;
  acc.clear();
  if constexpr (!Fold) {
    for (int64_t k = 0; k < full; k += kChunk, x += x_step) {
      direct_chunk<M, Decoder, true>(acc, decoder, rows, k, kChunk, x);
    }
    if (full < k_size) {
      direct_chunk<M, Decoder, false>(acc, decoder, rows, full, k_size - full, x);
    }
    acc.store(total);
  } else {
    acc.store(total);
    for (int64_t k = 0; k < k_size; k += kCell, scale += 4) {
      acc.clear();
      for (int64_t c = k; c < std::min(k + kCell, k_size); c += kChunk, x += x_step) {
        if (c < full) {
          direct_chunk<M, Decoder, true>(acc, decoder, rows, c, kChunk, x);
        } else {
          direct_chunk<M, Decoder, false>(acc, decoder, rows, c, k_size - c, x);
        }
      }
      acc.fold(total, scale);
    }
  }
}

// A tile over `chunks` chunks of a decoded panel, continuing `total`; `scale` is null where no
// scale varies along k.
template <int M>
OCTET_AVX512 void packed_tile(const float* w, const float* x, int64_t chunks, const float* scale,
                              bool first, float* total) {
  Accumulators<M> acc;
  acc.clear();
  constexpr int64_t w_step = kVecs * 4 * 16, x_step = kVecs * M * 16;
  if (!scale) {
    if (!first) acc.load(total);
    for (int64_t c = 0; c < chunks; ++c, w += w_step, x += x_step) packed_chunk<M>(acc, w, x);
    acc.store(total);
    return;
  }
  if (first) acc.store(total);
  for (int64_t c = 0; c < chunks; c += 2, scale += 4) {
    acc.clear();
    packed_chunk<M>(acc, w, x);
    w += w_step, x += x_step;
    if (c + 1 < chunks) {
      packed_chunk<M>(acc, w, x);
      w += w_step, x += x_step;
    }
    acc.fold(total, scale);
  }
}

using PackedTile = void (*)(const float*, const float*, int64_t, const float*, bool, float*);
constexpr PackedTile packed_tiles[kGroup + 1] = {nullptr,        packed_tile<1>, packed_tile<2>,
                                                 packed_tile<3>, packed_tile<4>, packed_tile<5>,
                                                 packed_tile<6>};

// --- finishing --------------------------------------------------------------------------------

OCTET_AVX512_INLINE __m128 load4(const std::byte* p, DType type, int64_t n, __mmask8 mask) {
  if (type == DType::f32) return _mm_maskz_loadu_ps(mask, p + n * 4);
  return _mm_castsi128_ps(
      _mm_slli_epi32(_mm_cvtepu16_epi32(_mm_maskz_loadu_epi16(mask, p + n * 2)), 16));
}

// Adds the lanes of `rows` x 4 accumulators and writes columns [n, min(n + 4, last)).
OCTET_AVX512 void finish(const float* total, int64_t rows, int64_t first_row, const Matrix& w,
                         int64_t n, int64_t last, const Output& out) {
  const auto mask = static_cast<__mmask8>(first_lanes(last - n, 4));
  alignas(16) float scale[4] = {1, 1, 1, 1};
  if (w.scales.data && !w.scales.varies) {
    for (int r = 0; r < 4; ++r) scale[r] = w.scales.at(std::min(n + r, w.rows - 1), 0);
  }
  const __m128 factor = _mm_load_ps(scale);
  const __m128 bias = out.bias ? load4(out.bias, out.bias_type, n, mask) : _mm_setzero_ps();
  for (int64_t m = 0; m < rows; ++m, total += 64) {
    __m128 sum = reduce4(_mm512_load_ps(total), _mm512_load_ps(total + 16),
                         _mm512_load_ps(total + 32), _mm512_load_ps(total + 48));
    sum = _mm_mul_ps(sum, factor);
    if (out.bias) sum = _mm_add_ps(sum, bias);
    std::byte* to = out.data + (first_row + m) * out.row_bytes;
    if (out.type == DType::f32) {
      _mm_mask_storeu_ps(to + n * 4, mask, sum);
    } else {
      const __m512i rounded = round_to_bf16(_mm512_castps128_ps512(sum));
      const __m256i halves = _mm512_cvtepi32_epi16(rounded);
      _mm_mask_storeu_epi16(to + n * 2, mask, _mm256_castsi256_si128(halves));
    }
  }
}

// The scales of rows n .. n+3 that vary along k: [cell][4].
void gather_scales(const Matrix& w, int64_t n, float* out) {
  const int64_t cells = (w.k + kCell - 1) / kCell;
  for (int r = 0; r < 4; ++r) {
    const std::byte* from = w.scales.row(std::min(n + r, w.rows - 1));
    for (int64_t c = 0; c < cells; ++c) out[c * 4 + r] = load_f32(from + c * w.scales.col_bytes);
  }
}

// Decodes `chunks` chunks from chunk `first` on of four rows: [chunk][vector][4 rows][16].
template <class Decoder>
OCTET_AVX512 void decode_rows4(const Matrix& w, int64_t n, int64_t first, int64_t chunks,
                               float* out) {
  const Decoder decoder = Decoder::make();
  const Rows4 rows = Rows4::of(w, n);
  for (int64_t k = first * kChunk; k < (first + chunks) * kChunk; k += kChunk, out += kChunk * 4) {
    for (int r = 0; r < 4; ++r) {
      const std::byte* p = rows.row[r] + k * Decoder::bytes;
      __m512 v[kVecs];
      if (w.k - k >= kChunk) {
        prefetch_ahead<Decoder::bytes>(p, rows.ahead);
        decoder.full(p, v);
      } else {
        decoder.part(p, w.k - k, v);
      }
      for (int i = 0; i < kVecs; ++i) _mm512_store_ps(out + (i * 4 + r) * 16, v[i]);
    }
  }
}

// --- the ranges of a thread -------------------------------------------------------------------

template <class Decoder, bool Fold>
void direct_columns(const Matrix& w, const Packed& packed, int64_t begin, int64_t end,
                    const Output& out, std::byte* scratch) {
  using Tile = void (*)(const Rows4&, int64_t, const float*, const float*, float*);
  static constexpr Tile tiles[kDirect + 1] = {nullptr,
                                              direct_tile<1, Decoder, Fold>,
                                              direct_tile<2, Decoder, Fold>,
                                              direct_tile<3, Decoder, Fold>,
                                              direct_tile<4, Decoder, Fold>,
                                              direct_tile<5, Decoder, Fold>,
                                              direct_tile<6, Decoder, Fold>};
  alignas(64) float total[kDirect * 4 * 16];
  auto* scales = reinterpret_cast<float*>(scratch);
  const auto* x = reinterpret_cast<const float*>(packed.data);
  for (int64_t n = begin; n < end; n += 4) {
    if constexpr (Fold) gather_scales(w, n, scales);
    tiles[packed.rows](Rows4::of(w, n), w.k, x, scales, total);
    finish(total, packed.rows, 0, w, n, end, out);
  }
}

// How panel_columns cuts its problem.
//
//                block 0   block 1  ...         many rows of x              few rows of x (a few
//                tiles)
//   x  48 rows  [6 rows  |         |    ]       for each panel of W:        for each panel of W:
//               [        |         |    ]         decode all of it            for each block of k:
//               [        |         |    ]         for each 48 rows of x:        for each 4 of W:
//   W panel     [4 rows  |         |    ]           for each block of k:          decode the block
//               [        |         |    ]             for each 6 of x:            for each 6 of x:
//                                                       for each 4 of W: tile       tile
//
// Accumulators stay in registers within a block of k, and in scratch from one block to the next.
// Writing a decoded value beyond L1 costs more than decoding it, so with few rows of x, where
// it would not be read often enough, only one block of four rows exists at a time.
struct Cut {
  int64_t chunks, cells;  // of k
  int64_t block;          // chunks in a block of k
  int64_t turn;           // groups of x in a turn
  int64_t rows;           // of W in a panel
  bool few;

  Cut(int64_t k, int64_t groups) {
    chunks = (k + kChunk - 1) / kChunk;
    cells = (chunks + 1) / 2;
    few = groups <= kFewGroups;
    block = few ? std::min(chunks, kBlock / 2) : chunks <= kBlock + kBlock / 2 ? chunks : kBlock;
    turn = few ? groups : block == chunks ? 1 : kTurn;
    const int64_t fit = kPanelBytes / (chunks * kChunk * 4);
    rows = few ? kPanelRows / 2 : std::clamp(fit / 4 * 4, int64_t{4}, kPanelRows);
  }
  int64_t quad_floats() const { return chunks * kChunk * 4; }
  int64_t panel_floats() const { return few ? block * kChunk * 4 : rows / 4 * quad_floats(); }
  int64_t total_floats() const { return turn * kGroup * rows * 16; }
  int64_t scale_floats() const { return rows * cells; }
};

int64_t groups_of(int64_t rows) {
  return (rows + kGroup - 1) / kGroup;
}

size_t scratch_bytes(const Matrix& w, int64_t rows) {
  const Cut cut(w.k, groups_of(rows));
  return static_cast<size_t>(cut.panel_floats() + cut.total_floats() + cut.scale_floats()) * 4;
}

// W is decoded to FP32 and then used for every row of x.
template <class Decoder>
void panel_columns(const Matrix& w, const Packed& packed, int64_t begin, int64_t end,
                   const Output& out, std::byte* scratch) {
  const Cut cut(w.k, packed.groups);
  auto* panel = reinterpret_cast<float*>(scratch);
  float* totals = panel + cut.panel_floats();
  float* scales = totals + cut.total_floats();
  const bool fold = w.scales.varies;
  for (int64_t n0 = begin; n0 < end; n0 += cut.rows) {
    const int64_t quads = (std::min(cut.rows, end - n0) + 3) / 4;
    for (int64_t q = 0; q < quads; ++q) {
      if (!cut.few) {
        decode_rows4<Decoder>(w, n0 + 4 * q, 0, cut.chunks, panel + q * cut.quad_floats());
      }
      if (fold) gather_scales(w, n0 + 4 * q, scales + q * 4 * cut.cells);
    }
    // One tile: group g by four rows of W decoded at `values`, chunks [c, c + count).
    const auto tile = [&](int64_t g, int64_t slot, int64_t q, int64_t c, int64_t count,
                          const float* values) {
      const int64_t first = packed.first_row(g), m = packed.first_row(g + 1) - first;
      const auto* x = reinterpret_cast<const float*>(packed.data + first * packed.row_bytes);
      float* total = totals + (slot * quads + q) * kGroup * 4 * 16;
      packed_tiles[m](values, x + c * kChunk * m, count,
                      fold ? scales + (q * cut.cells + c / 2) * 4 : nullptr, c == 0, total);
      if (c + count == cut.chunks) finish(total, m, first, w, n0 + 4 * q, end, out);
    };
    for (int64_t g0 = 0; g0 < packed.groups; g0 += cut.turn) {
      const int64_t g1 = std::min(packed.groups, g0 + cut.turn);
      for (int64_t c = 0; c < cut.chunks; c += cut.block) {
        const int64_t count = std::min(cut.block, cut.chunks - c);
        if (cut.few) {
          for (int64_t q = 0; q < quads; ++q) {
            decode_rows4<Decoder>(w, n0 + 4 * q, c, count, panel);
            for (int64_t g = g0; g < g1; ++g) tile(g, g - g0, q, c, count, panel);
          }
          continue;
        }
        for (int64_t g = g0; g < g1; ++g) {
          for (int64_t q = 0; q < quads; ++q) {
            tile(g, g - g0, q, c, count, panel + q * cut.quad_floats() + c * kChunk * 4);
          }
        }
      }
    }
  }
}

void columns(const Matrix& w, const Packed& packed, int64_t begin, int64_t end, const Output& out,
             std::byte* scratch) {
  with_decoder(w.type, [&]<class Decoder>() {
    if (packed.rows > kDirect) return panel_columns<Decoder>(w, packed, begin, end, out, scratch);
    if (w.scales.varies) return direct_columns<Decoder, true>(w, packed, begin, end, out, scratch);
    direct_columns<Decoder, false>(w, packed, begin, end, out, scratch);
  });
}

constexpr Kernels kernels = {
    .group_rows = kGroup,
    .max_rows = 40 * kGroup,
    .packed_row_bytes = [](int64_t k) { return round_up(k, kChunk) * 4; },
    .scales_per_row = [](const Matrix&) { return int64_t{0}; },
    .pack = pack,
    .scratch_bytes = scratch_bytes,
    .columns = columns,
};

}  // namespace

const Kernels& fma_kernels() {
  return kernels;
}

}  // namespace octet::cpu::fast

#endif
