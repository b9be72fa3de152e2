// Tiles of the AMX linears: how they are laid out in memory and registers, and what their sums
// become. fast_linear_amx.cpp says how a product is cut into them.
#pragma once

#if defined(__x86_64__)

#include <algorithm>

#include "backends/cpu/kernels/fast_attention_simd.h"
#include "backends/cpu/kernels/fast_linear_decode.h"
#include "backends/cpu/kernels/fast_linear_finish.h"
#include "backends/cpu/kernels/simd_amx.h"

namespace octet::cpu::fast {

inline constexpr int64_t kSide = 16;          // rows of a tile
inline constexpr int64_t kTile = kSide * 64;  // bytes
inline constexpr int64_t kChunkTiles = 2;     // of sixteen rows of W, or of x
inline constexpr int64_t kPanel = 2 * kSide;  // rows of W that are multiplied at once
inline constexpr int64_t kPanelChunk = 2 * kChunkTiles * kTile;  // bytes of a decoded chunk of them
// Tiles of W that are decoded before they are used, in a ring. An odd number: a load waits for
// stores on their way to the same place of another page, and so finds them in the other half of its
// page.
inline constexpr int64_t kRing = 8, kAhead = 5;

// Tiles 0 to 3 are sums, [16 rows of W][group of x]; 4 and 5 W; 6 and 7 x. Groups have `first` and
// `second` rows, or none.
inline OCTET_AMX void configure(int64_t first, int64_t second) {
  simd::TileConfig config;
  for (const int tile : {0, 2, 6}) config.set(tile, kSide, first);
  for (const int tile : {1, 3}) config.set(tile, kSide, second);
  config.set(7, kSide, second > 0 ? second : first);
  for (const int tile : {4, 5}) config.set(tile, kSide, kSide);
  config.load();
}

// A group of x in the packing: per chunk and tile, 16 pairs of values by its rows.
struct Group {
  const std::byte* data = nullptr;
  int64_t first = 0, rows = 0;

  int64_t step() const { return 4 * rows; }  // bytes from one pair to the next
  const std::byte* chunk(int64_t c) const { return data + c * kChunkTiles * kSide * step(); }
};

// sums += one chunk of sixteen rows of W by one group of x, in tile 0 or another. `same`: x is that
// of the product before.
OCTET_AMX_INLINE void add_tile(const std::byte* w, const Group& x, int64_t c, bool other,
                               bool same) {
  if (!same) {
    _tile_loadd(6, x.chunk(c), x.step());
    _tile_loadd(7, x.chunk(c) + kSide * x.step(), x.step());
  }
  _tile_loadd(4, w, 64);
  _tile_loadd(5, w + kTile, 64);
  if (other) {
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(2, 5, 7);
  } else {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(0, 5, 7);
  }
}

// Chunk c of sixteen rows of W: [register][16 rows], 64 bytes each.
template <class Decoder>
OCTET_AMX_INLINE void decode_rows(const Matrix& w, const std::byte* const* rows, int64_t c,
                                  std::byte* to) {
  const Decoder decoder = Decoder::make();
  const int64_t k = c * kChunk;
  const bool full = w.k - k >= kChunk;
#pragma GCC unroll 8
  for (int64_t r = 0; r < kSide; ++r, to += 64) {
    const std::byte* const p = rows[r] + k * Decoder::bytes;
    __m512i v[kChunkTiles];
    if (full) {
      decoder.full(p, v);
    } else {
      decoder.part(p, w.k - k, v);
    }
    _mm512_store_si512(to, v[0]);
    _mm512_store_si512(to + kTile, v[1]);
  }
}

// What a thread works with: the problem, its scratch, and what becomes of sums in memory.
class TileWork {
 public:
  TileWork(const Matrix& w, const Packed& packed, int64_t end, const Output& out,
           std::byte* scratch)
      : w_(w),
        packed_(packed),
        x_(packed, w.k),
        out_(out),
        end_(end),
        chunks_((w.k + kChunk - 1) / kChunk),
        fold_(w.scales.varies || packed.varies) {
    sums_ = reinterpret_cast<float*>(scratch);
    totals_ = sums_ + kTile;  // four tiles each
    scales_ = totals_ + kTile;
    values_ = scratch + 8 * kTile + x_.cells * kPanel * 4;
  }

 protected:
  // With `chunks` decoded chunks of sixteen rows of W.
  static size_t scratch_bytes(const Matrix& w, int64_t chunks) {
    return static_cast<size_t>(chunks * kChunkTiles * kTile + 8 * kTile +
                               cells_of(w.k) * kPanel * 4);
  }

  // Bytes from the sums of a row of W to those of the next: of one row of x they are one vector.
  static int64_t step_of(const Group& group) { return group.rows == 1 ? 4 : 64; }

  // The scales of sixteen rows of W, from scale_rows_, as [cell][kPanel], the tile's from 16 tile
  // on.
  OCTET_AMX void gather_cells(int64_t tile) {
    float* to = scales_ + tile * kSide;
    for (int64_t cell = 0; cell < x_.cells; cell += kSide) {
      const int64_t count = std::min(kSide, x_.cells - cell);
      __m512i v[kSide];
      for (int64_t r = 0; r < kSide; ++r) {
        v[r] = w_.scales.varies ? load_cells(scale_rows_[r], cell, count)
                                : _mm512_castps_si512(_mm512_set1_ps(1.0f));
      }
      simd::transpose16(v);
      for (int64_t i = 0; i < count; ++i, to += kPanel) _mm512_store_si512(to, v[i]);
    }
  }

  OCTET_AMX_INLINE __m512i load_cells(const std::byte* row, int64_t cell, int64_t count) const {
    const int64_t step = w_.scales.col_bytes;
    if (step == 4) {
      return _mm512_maskz_loadu_epi32(static_cast<__mmask16>(simd::first_lanes(count, kSide)),
                                      row + cell * 4);
    }
    alignas(64) float each[kSide] = {};
    for (int64_t i = 0; i < count; ++i) each[i] = load_f32(row + (cell + i) * step);
    return _mm512_load_si512(each);
  }

  // totals (+)= sums times the scales of a cell.
  OCTET_AMX void fold(int64_t tile, const Group& group, int64_t cell, const float* sums,
                      float* totals) const {
    const float* const w = scales_ + cell * kPanel + tile * kSide;
    const float* const x = x_.cell_scales(group.first) + cell * group.rows;
    const auto add = [&](const float* from, float* to, __m512 scale) OCTET_AMX {
      const __m512 before = cell == 0 ? _mm512_setzero_ps() : _mm512_load_ps(to);
      _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_load_ps(from), scale, before));
    };
    if (group.rows == 1) {
      return add(sums, totals, _mm512_mul_ps(_mm512_loadu_ps(w), _mm512_set1_ps(x[0])));
    }
    const auto mask = static_cast<__mmask16>(simd::first_lanes(group.rows, kSide));
    const __m512 x_scales = _mm512_maskz_loadu_ps(mask, x);
    for (int64_t r = 0; r < kSide; ++r) {
      add(sums + r * kSide, totals + r * kSide, _mm512_mul_ps(x_scales, _mm512_set1_ps(w[r])));
    }
  }

  // Calls use(sums of sixteen rows of W, m) for each row m of x, of sums [16 rows of W][rows of x].
  template <class Use>
  OCTET_AMX_INLINE void for_rows(const Group& group, const float* sums, Use use) const {
    if (group.rows == 1) return use(_mm512_load_ps(sums), 0);
    __m512i r[kSide];
#pragma GCC unroll 16
    for (int64_t i = 0; i < kSide; ++i) r[i] = _mm512_load_si512(sums + i * kSide);
    simd::transpose16(r);
    alignas(64) float rows[kSide][kSide];
#pragma GCC unroll 16
    for (int64_t i = 0; i < kSide; ++i) _mm512_store_si512(rows[i], r[i]);
    for (int64_t m = 0; m < group.rows; ++m) use(_mm512_load_ps(rows[m]), m);
  }

  const Matrix& w_;
  const Packed& packed_;
  const PackedRows x_;
  const Output& out_;
  int64_t end_, chunks_;
  bool fold_;  // scales vary along k
  float *sums_, *totals_, *scales_;
  std::byte* values_;                        // decoded
  const std::byte* scale_rows_[kSide] = {};  // where the scales of sixteen rows of W lie
};

}  // namespace octet::cpu::fast

#endif
