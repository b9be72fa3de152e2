// The loops of the AVX-512 linears, for both ways to multiply (fast_linear_decode.h).
//
// Scales that are constant along k multiply the finished sum. Scales that vary multiply the sum of
// their 128 values, lane by lane, as it is added to the total:
//
//   constant  acc += w * x                           over all of k;   out = tree(acc) * s
//   varying   part += w * x  over 128 values;   acc += part * s;      out = tree(acc)
#pragma once

#if defined(__x86_64__)

#include <algorithm>
#include <bit>

#include "backends/cpu/kernels/fast_linear_decode.h"
#include "backends/cpu/kernels/fast_linear_finish.h"

namespace octet::cpu::fast {

inline constexpr int kGroup = 6;         // rows of x in a tile
inline constexpr int64_t kBlock = 1024;  // values of k before the next tile: x stays in L1
inline constexpr int64_t kPanelBytes = 512 << 10;  // decoded rows of W: part of a small L2
inline constexpr int64_t kPanelRows = 16;
inline constexpr int64_t kFewGroups = 4;       // of x: then W is decoded for one tile at a time
inline constexpr int kStreams = 8;             // of W, where one or two rows of x wait for memory
inline constexpr int64_t kStreamAhead = 2048;  // bytes
inline constexpr int64_t kTurn = 8;  // groups of x whose accumulators are kept over blocks of k

// --- tiles ------------------------------------------------------------------------------------
// A tile is M rows of x by R = 4 rows of W. Its accumulators are one register an output.
//
//              W row 0   1   2   3
//   x row 0      acc   acc acc acc       per register of k: M + 4 loads for 4 M products;
//         ...                            M = 6 fills 24 of the 32 registers with accumulators
//   x row M-1    acc   acc acc acc

// Scales that vary along k, from the tile's first cell on; null where none does.
struct CellScales {
  const float* w = nullptr;  // [cell][R rows]
  const float* x = nullptr;  // [cell][M rows], only where the kernel does not scale x beforehand

  void next(int x_rows, int w_rows) {
    w += w_rows;
    if (x) x += x_rows;
  }
};

template <class Math, int M, int R>
struct Accumulators {
  __m512 at[M][R];

  OCTET_AVX512_INLINE void clear() {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) at[m][r] = _mm512_setzero_ps();
    }
  }
  // In memory rows lie `step` floats apart, and the registers of a row side by side, or `column`
  // floats apart.
  OCTET_AVX512_INLINE void load(const float* from, int64_t step) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m, from += step) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) at[m][r] = _mm512_load_ps(from + r * 16);
    }
  }
  OCTET_AVX512_INLINE void store(float* to, int64_t step, int64_t column = 16) const {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m, to += step) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) _mm512_store_ps(to + r * column, at[m][r]);
    }
  }
  // total += this * scale of the cell.
  OCTET_AVX512_INLINE void fold(float* total, int64_t step, const CellScales& scales) const {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m, total += step) {
      alignas(16) float both[R];
      const float* scale = scales.w;
      if constexpr (Math::scales_x) {
        const __m128 x = _mm_set1_ps(scales.x[m]);
        for (int r = 0; r < R; r += 4) {
          _mm_store_ps(both + r, _mm_mul_ps(_mm_loadu_ps(scales.w + r), x));
        }
        scale = both;
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        float* to = total + r * 16;
        _mm512_store_ps(to,
                        _mm512_fmadd_ps(at[m][r], _mm512_set1_ps(scale[r]), _mm512_load_ps(to)));
      }
    }
    // The totals live in memory: there are no registers for them, and the compiler would only keep
    // a second copy on the stack.
    asm volatile("" ::: "memory");
  }
};

// R rows of W from the mapping, `step` apart, and their scales, `scale_step` bytes from one cell to
// the next (all ones if they do not vary); rows beyond the last repeat it, and are not written out.
template <int R>
struct WeightRows {
  const std::byte* row[R];
  const std::byte* scale[R];
  int64_t scale_step;
  int64_t ahead;  // bytes from here to what is prefetched: the same place in the next R rows

  static WeightRows of(const Matrix& w, int64_t n, int64_t step = 1) {
    static constexpr float one = 1.0f;
    WeightRows rows;
    rows.scale_step = w.scales.varies ? w.scales.col_bytes : 0;
    rows.ahead = step == 1 ? R * w.row_bytes : kStreamAhead;
    for (int r = 0; r < R; ++r) {
      const int64_t at = std::min(n + r * step, w.rows - 1);
      rows.row[r] = w.row(at);
      rows.scale[r] = w.scales.varies ? w.scales.row(at) : reinterpret_cast<const std::byte*>(&one);
    }
    return rows;
  }
};

// total += acc * scale of the cell; `x` has the scales of the rows of x, where the kernel does not
// scale x beforehand. Totals lie as store() puts them.
template <class Math, int M, int R>
OCTET_AVX512_INLINE void fold_rows(const Accumulators<Math, M, R>& acc, const WeightRows<R>& rows,
                                   int64_t cell, const float* x, float* total, int64_t step,
                                   int64_t column) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const float scale = load_f32(rows.scale[r] + cell * rows.scale_step);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      float* const to = total + m * step + r * column;
      const float both = Math::scales_x ? scale * x[cell * M + m] : scale;
      _mm512_store_ps(to, _mm512_fmadd_ps(acc.at[m][r], _mm512_set1_ps(both), _mm512_load_ps(to)));
    }
  }
  asm volatile("" ::: "memory");  // see Accumulators::fold
}

// Asks for what comes later: into L2 the lines of this chunk in the next rows (`ahead` bytes on),
// and into L1 those of this row a few chunks on. Asking for the next rows into L1 would drive x out
// of it. Integers, as the places may lie beyond the mapping.
template <int Lines>
OCTET_AVX512_INLINE void prefetch(const std::byte* p, int64_t ahead) {
  const auto here = reinterpret_cast<uintptr_t>(p);
#pragma GCC unroll 4
  for (int line = 0; line < Lines; ++line) {
    const auto far = here + static_cast<uintptr_t>(ahead + 64 * line);
    const auto near = here + static_cast<uintptr_t>(256 * Lines + 64 * line);
    _mm_prefetch(reinterpret_cast<const char*>(far), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(near), _MM_HINT_T0);
  }
}

// acc += one chunk, W decoded in registers.
template <class Math, int M, int R, class Decoder, bool Full>
OCTET_AVX512_INLINE void direct_chunk(Accumulators<Math, M, R>& acc, const Decoder& decoder,
                                      const WeightRows<R>& rows, int64_t k, int64_t valid,
                                      const std::byte* x) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const std::byte* p = rows.row[r] + k * Decoder::bytes;
    typename Math::Vec w[Math::vecs];
    if constexpr (Full) {
      prefetch<Decoder::bytes>(p, rows.ahead);
      decoder.full(p, w);
    } else {
      decoder.part(p, valid, w);
    }
#pragma GCC unroll 4
    for (int v = 0; v < Math::vecs; ++v) {
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        acc.at[m][r] = Math::add_product(acc.at[m][r], w[v], Math::load(x + (v * M + m) * 64));
      }
    }
  }
}

// acc += one chunk, W decoded already: [register of k][4 rows].
template <class Math, int M>
OCTET_AVX512_INLINE void packed_chunk(Accumulators<Math, M, 4>& acc, const std::byte* w,
                                      const std::byte* x) {
#pragma GCC unroll 4
  for (int v = 0; v < Math::vecs; ++v) {
    typename Math::Vec row[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) row[r] = Math::load(w + (v * 4 + r) * 64);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const typename Math::Vec value = Math::load(x + (v * M + m) * 64);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        acc.at[m][r] = Math::add_product(acc.at[m][r], row[r], value);
      }
    }
  }
}

// M rows of x by R rows of W, over all of k, `count` times: rows n + i, n + i + apart, ... of W for
// i < count. The sums go to `total` as lanes, rows `step` floats apart, columns `column`, and those
// of the next i 16. `x_scales`: as of Accumulators::fold.
template <class Math, int M, int R, class Decoder, bool Fold>
OCTET_AVX512 void direct_tiles(const Matrix& w, int64_t n, int64_t apart, int64_t count,
                               const std::byte* x, const float* x_scales, float* total,
                               int64_t step, int64_t column) {
  const Decoder decoder = Decoder::make();
  const int64_t full = w.k / kChunk * kChunk;
  constexpr int64_t x_step = Math::vecs * M * 64;
  for (int64_t i = 0; i < count; ++i, total += 16) {
    const auto rows = WeightRows<R>::of(w, n + i, apart);
    const std::byte* at = x;
    Accumulators<Math, M, R> acc;
    acc.clear();
    if constexpr (!Fold) {
      for (int64_t k = 0; k < full; k += kChunk, at += x_step) {
        direct_chunk<Math, M, R, Decoder, true>(acc, decoder, rows, k, kChunk, at);
      }
      if (full < w.k) {
        direct_chunk<Math, M, R, Decoder, false>(acc, decoder, rows, full, w.k - full, at);
      }
      acc.store(total, step, column);
    } else {
      acc.store(total, step, column);
      for (int64_t k = 0, cell = 0; k < w.k; k += kCell, ++cell) {
        acc.clear();
        for (int64_t c = k; c < std::min(k + kCell, w.k); c += kChunk, at += x_step) {
          if (c < full) {
            direct_chunk<Math, M, R, Decoder, true>(acc, decoder, rows, c, kChunk, at);
          } else {
            direct_chunk<Math, M, R, Decoder, false>(acc, decoder, rows, c, w.k - c, at);
          }
        }
        fold_rows(acc, rows, cell, x_scales, total, step, column);
      }
    }
  }
}

// A tile over `chunks` chunks of a decoded panel, continuing `total`, whose rows are `step` apart.
template <class Math, int M>
OCTET_AVX512 void packed_tile(const std::byte* w, const std::byte* x, int64_t chunks,
                              CellScales scales, bool first, float* total, int64_t step) {
  Accumulators<Math, M, 4> acc;
  acc.clear();
  constexpr int64_t w_step = Math::vecs * 4 * 64, x_step = Math::vecs * M * 64;
  if (!scales.w) {
    if (!first) acc.load(total, step);
    for (int64_t c = 0; c < chunks; ++c, w += w_step, x += x_step) {
      packed_chunk<Math, M>(acc, w, x);
    }
    acc.store(total, step);
    return;
  }
  if (first) acc.store(total, step);
  for (int64_t c = 0; c < chunks; c += 2, scales.next(M, 4)) {
    acc.clear();
    packed_chunk<Math, M>(acc, w, x);
    w += w_step, x += x_step;
    if (c + 1 < chunks) {
      packed_chunk<Math, M>(acc, w, x);
      w += w_step, x += x_step;
    }
    acc.fold(total, step, scales);
  }
}

// --- finishing --------------------------------------------------------------------------------

// Adds the lanes of sixteen accumulators of each of `rows` rows, which are `step` floats apart,
// scales the sums, and writes columns [n, min(n + 16, last)); accumulators of columns beyond may
// hold anything. `x` is the packing, of which these are rows `first_row` and on.
template <class Math>
OCTET_AVX512 void finish(const float* total, int64_t step, int64_t rows, int64_t first_row,
                         const PackedRows& x, const Matrix& w, int64_t n, int64_t last,
                         const Output& out) {
  const float* const x_scales = x.row_scales(first_row);
  const auto columns = Columns16::of(w, n, last, out);
  for (int64_t m = 0; m < rows; ++m, total += step) {
    __m512 sum;
    if constexpr (Math::integers) {
      const __m512i whole = _mm512_castps_si512(simd::reduce16<simd::AddIntegers>(total));
      const __m512i offset = _mm512_set1_epi32(std::bit_cast<int32_t>(x.p.scales[first_row + m]));
      sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(whole, offset));
    } else {
      sum = simd::reduce16<simd::AddFloats>(total);
    }
    if (x_scales) sum = _mm512_mul_ps(sum, _mm512_set1_ps(x_scales[m]));
    columns.write(sum, first_row + m, out);
  }
}

// The scales of four rows from n on, by cell, [cell][4].
inline void gather_scales(const Matrix& w, int64_t n, float* out) {
  const int64_t cells = cells_of(w.k);
  const auto rows = WeightRows<4>::of(w, n);
  for (int r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < cells; ++c) {
      out[c * 4 + r] = load_f32(rows.scale[r] + c * rows.scale_step);
    }
  }
}

// Decodes `chunks` chunks from chunk `first` on of four rows: [chunk][register][4 rows].
template <class Math, class Decoder>
OCTET_AVX512 void decode_rows4(const Matrix& w, int64_t n, int64_t first, int64_t chunks,
                               std::byte* out) {
  const Decoder decoder = Decoder::make();
  const auto rows = WeightRows<4>::of(w, n);
  const auto store = [&](int r, const typename Math::Vec* v) OCTET_AVX512 {
#pragma GCC unroll 4
    for (int i = 0; i < Math::vecs; ++i) Math::store(out + (i * 4 + r) * 64, v[i]);
  };
  const int64_t end = std::min((first + chunks) * kChunk, w.k);
  int64_t k = first * kChunk;
  for (; k + kChunk <= end; k += kChunk, out += Math::vecs * 4 * 64) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const std::byte* p = rows.row[r] + k * Decoder::bytes;
      typename Math::Vec v[Math::vecs];
      prefetch<Decoder::bytes>(p, rows.ahead);
      decoder.full(p, v);
      store(r, v);
    }
  }
  if (k == end) return;
  for (int r = 0; r < 4; ++r) {
    typename Math::Vec v[Math::vecs];
    decoder.part(rows.row[r] + k * Decoder::bytes, end - k, v);
    store(r, v);
  }
}

// --- the columns of a thread ------------------------------------------------------------------

// How panel_columns cuts its problem.
//
//               block 0   block 1  ...     many rows of x              few rows of x (few tiles)
//   x 48 rows  [6 rows  |         |   ]    for each panel of W:        for each panel of W:
//              [        |         |   ]      decode all of it            for each block of k:
//              [        |         |   ]      for each 48 rows of x:        for each 4 of W:
//   W panel    [4 rows  |         |   ]        for each block of k:          decode the block
//              [        |         |   ]          for each 6 of x:            for each 6 of x:
//                                                  for each 4 of W: tile       tile
//
// Accumulators stay in registers within a block of k, and in scratch from one block to the next.
// Writing a decoded value beyond L1 costs more than decoding it, so with few rows of x, where it
// would not be read often enough, only one block of four rows exists at a time.
template <class Math>
struct Cut {
  static constexpr int64_t chunk_bytes = Math::vecs * 64;  // of one row, decoded
  int64_t chunks, cells;                                   // of k
  int64_t block;                                           // chunks in a block of k
  int64_t turn;                                            // groups of x in a turn
  int64_t rows;                                            // of W in a panel
  bool few;

  Cut(int64_t k, int64_t groups) {
    constexpr int64_t fits = kBlock * 4 / chunk_bytes;
    chunks = (k + kChunk - 1) / kChunk;
    cells = (chunks + 1) / 2;
    few = groups <= kFewGroups;
    const int64_t most = few ? fits / 2 : fits;
    block = chunks <= most + most / 2 ? chunks : most;
    turn = few ? groups : block == chunks ? 1 : kTurn;
    const int64_t panel = kPanelBytes / (chunks * chunk_bytes);
    rows = few ? kPanelRows : std::clamp(panel / 4 * 4, int64_t{4}, kPanelRows);
  }
  int64_t quad_bytes() const { return chunks * chunk_bytes * 4; }
  int64_t panel_bytes() const { return few ? block * chunk_bytes * 4 : rows / 4 * quad_bytes(); }
  // Floats from a row of x to the next in the totals, and their bytes.
  int64_t total_step() const { return round_up(rows, kFinish) * 16; }
  int64_t total_bytes() const { return turn * kGroup * total_step() * 4; }
  int64_t scale_bytes() const { return rows * cells * 4; }
};

// W is decoded and then used for every row of x.
template <class Math, class Decoder>
void panel_columns(const Matrix& w, const Packed& packed, int64_t begin, int64_t end,
                   const Output& out, std::byte* scratch) {
  using Tile =
      void (*)(const std::byte*, const std::byte*, int64_t, CellScales, bool, float*, int64_t);
  static constexpr Tile tiles[kGroup + 1] = {
      nullptr,
      packed_tile<Math, 1>,
      packed_tile<Math, 2>,
      packed_tile<Math, 3>,
      packed_tile<Math, 4>,
      packed_tile<Math, 5>,
      packed_tile<Math, 6>,
  };
  const Cut<Math> cut(w.k, packed.groups);
  const PackedRows x(packed, w.k);
  std::byte* panel = scratch;
  auto* totals = reinterpret_cast<float*>(panel + cut.panel_bytes());
  auto* scales = reinterpret_cast<float*>(panel + cut.panel_bytes() + cut.total_bytes());
  const bool fold = w.scales.varies || packed.varies;
  const int64_t step = cut.total_step();
  for (int64_t n0 = begin; n0 < end; n0 += cut.rows) {
    const int64_t quads = (std::min(cut.rows, end - n0) + 3) / 4;
    for (int64_t q = 0; q < quads; ++q) {
      if (!cut.few) {
        decode_rows4<Math, Decoder>(w, n0 + 4 * q, 0, cut.chunks, panel + q * cut.quad_bytes());
      }
      if (fold) gather_scales(w, n0 + 4 * q, scales + q * 4 * cut.cells);
    }
    // One tile: group g by four rows of W decoded at `values`, chunks [c, c + count).
    const auto tile = [&](int64_t g, int64_t place, int64_t q, int64_t c, int64_t count,
                          const std::byte* values) {
      const int64_t first = packed.first_row(g), m = packed.first_row(g + 1) - first;
      CellScales cells;
      if (fold) cells.w = scales + (q * cut.cells + c / 2) * 4;
      if (fold && Math::scales_x) cells.x = x.cell_scales(first) + c / 2 * m;
      tiles[m](values, x.data(first) + c * Cut<Math>::chunk_bytes * m, count, cells, c == 0,
               totals + place * kGroup * step + q * 4 * 16, step);
    };
    const auto finish_group = [&](int64_t g, int64_t place) {
      const int64_t first = packed.first_row(g), m = packed.first_row(g + 1) - first;
      for (int64_t q = 0; q < quads; q += kFinish / 4) {
        finish<Math>(totals + place * kGroup * step + q * 4 * 16, step, m, first, x, w, n0 + 4 * q,
                     end, out);
      }
    };
    for (int64_t g0 = 0; g0 < packed.groups; g0 += cut.turn) {
      const int64_t g1 = std::min(packed.groups, g0 + cut.turn);
      for (int64_t c = 0; c < cut.chunks; c += cut.block) {
        const int64_t count = std::min(cut.block, cut.chunks - c);
        if (cut.few) {
          for (int64_t q = 0; q < quads; ++q) {
            decode_rows4<Math, Decoder>(w, n0 + 4 * q, c, count, panel);
            for (int64_t g = g0; g < g1; ++g) tile(g, g - g0, q, c, count, panel);
          }
          continue;
        }
        for (int64_t g = g0; g < g1; ++g) {
          for (int64_t q = 0; q < quads; ++q) {
            tile(g, g - g0, q, c, count,
                 panel + q * cut.quad_bytes() + c * Cut<Math>::chunk_bytes * 4);
          }
        }
      }
      for (int64_t g = g0; g < g1; ++g) finish_group(g, g - g0);
    }
  }
}

// One group of x: W is decoded in registers, used, and never written.
template <class Math, int R, class Decoder, bool Fold>
struct DirectTiles {
  using Tile = void (*)(const Matrix&, int64_t, int64_t, int64_t, const std::byte*, const float*,
                        float*, int64_t, int64_t);
  static constexpr Tile tiles[] = {
      nullptr,
      direct_tiles<Math, 1, R, Decoder, Fold>,
      direct_tiles<Math, 2, R, Decoder, Fold>,
      direct_tiles<Math, R == 8 ? 2 : 3, R, Decoder, Fold>,
      direct_tiles<Math, R == 8 ? 2 : 4, R, Decoder, Fold>,
      direct_tiles<Math, R == 8 ? 2 : 5, R, Decoder, Fold>,
      direct_tiles<Math, R == 8 ? 2 : 6, R, Decoder, Fold>,
  };
};

// One or two rows of x wait for memory. Columns [begin, begin + 8 * each) are read as eight
// streams, each of `each` rows of W one after another, which is as many as the memory likes.
//
//   W  begin           [row 0, row 1, ...   stream 0
//      begin + each    [row 0, row 1, ...   stream 1      a tile is row i of every stream,
//      begin + 2 each  [row 0, row 1, ...   ...           sixteen of them are finished at once
template <class Math, class Decoder, bool Fold>
void stream_columns(const Matrix& w, const Packed& packed, int64_t begin, int64_t each,
                    const Output& out) {
  constexpr int64_t stream = kFinish * 16, step = kStreams * stream;
  alignas(64) float total[2 * step];
  const PackedRows x(packed, w.k);
  for (int64_t i0 = 0; i0 < each; i0 += kFinish) {
    const int64_t count = std::min(kFinish, each - i0);
    DirectTiles<Math, kStreams, Decoder, Fold>::tiles[packed.rows](
        w, begin + i0, each, count, x.data(0), x.cell_scales(0), total, step, stream);
    for (int64_t s = 0; s < kStreams; ++s) {
      const int64_t n = begin + s * each + i0;
      finish<Math>(total + s * stream, step, packed.rows, 0, x, w, n, n + count, out);
    }
  }
}

template <class Math, class Decoder, bool Fold>
void direct_columns(const Matrix& w, const Packed& packed, int64_t begin, int64_t end,
                    const Output& out) {
  const int64_t each = (end - begin) / kStreams;
  if (packed.rows <= kStreamedRows && each >= kFinish / 2) {
    stream_columns<Math, Decoder, Fold>(w, packed, begin, each, out);
    begin += kStreams * each;
  }
  constexpr int64_t step = kFinish * 16;
  alignas(64) float total[kGroup * step];
  const PackedRows x(packed, w.k);
  for (int64_t n = begin; n < end; n += kFinish) {
    for (int64_t i = 0; i < std::min(kFinish, end - n); i += 4) {
      DirectTiles<Math, 4, Decoder, Fold>::tiles[packed.rows](
          w, n + i, 1, 1, x.data(0), x.cell_scales(0), total + i * 16, step, 16);
    }
    finish<Math>(total, step, packed.rows, 0, x, w, n, end, out);
  }
}

template <class Math>
void all_columns(const Matrix& w, const Packed& packed, int64_t begin, int64_t end,
                 const Output& out, std::byte* scratch) {
  with_decoder<Math>(w.type, [&]<class Decoder>() {
    if (packed.groups > 1) {
      panel_columns<Math, Decoder>(w, packed, begin, end, out, scratch);
    } else if (w.scales.varies || packed.varies) {
      direct_columns<Math, Decoder, true>(w, packed, begin, end, out);
    } else {
      direct_columns<Math, Decoder, false>(w, packed, begin, end, out);
    }
  });
}

template <class Math>
size_t thread_scratch_bytes(const Matrix& w, int64_t rows) {
  const Cut<Math> cut(w.k, (rows + kGroup - 1) / kGroup);
  const int64_t bytes = cut.panel_bytes() + cut.total_bytes() + cut.scale_bytes();
  return static_cast<size_t>(bytes);
}

}  // namespace octet::cpu::fast

#endif
