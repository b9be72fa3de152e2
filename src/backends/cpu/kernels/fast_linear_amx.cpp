// The fast linear by AMX: one tdpbf16ps multiplies sixteen rows of W by up to sixteen rows of x
// over 32 values of k, for weights and inputs that BF16 holds exactly (fast_linear_dot.cpp says
// which, and what becomes of scales).
//
//          32 values of k              rows of x                      rows of x
//        +----------------+          +-----------+                  +-----------+
//   rows |                |       16 | pairs of  |             rows | FP32 sums |
//   of W | as it is stored|   x  pairs values    |   += ===>   of W |           |
//        +----------------+          +-----------+                  +-----------+
//
// W is decoded row by row into tiles in memory, some chunks ahead of their products: a tile is not
// forwarded from stores that are still on their way. Sums grow over ascending k in the tile itself,
// so no lanes have to be added in the end; what else a tile holds changes no sum.
#include "backends/cpu/kernels/fast_linear.h"

#if defined(__x86_64__)

#include <algorithm>

#include "backends/cpu/kernels/fast_linear_pairs.h"
#include "backends/cpu/kernels/fast_linear_streams.h"

namespace octet::cpu::fast {
namespace {

constexpr int64_t kFetch = 6;   // tiles whose lines are asked for into L2 before they are decoded
constexpr uintptr_t kNear = 1;  // chunks that are asked for into L1

// sums += one chunk of N times sixteen rows of W by G groups of x.
template <int N, int G>
OCTET_AMX_INLINE void add_chunk(const std::byte* w, const Group (&x)[2], int64_t c) {
  const std::byte *first = x[0].chunk(c), *second = G > 1 ? x[1].chunk(c) : nullptr;
#pragma GCC unroll 2
  for (int64_t v = 0; v < kChunkTiles; ++v) {
    _tile_loadd(6, first + v * kSide * x[0].step(), x[0].step());
    if constexpr (G > 1) _tile_loadd(7, second + v * kSide * x[1].step(), x[1].step());
    _tile_loadd(4, w + v * kTile, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (G > 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (N > 1) {
      _tile_loadd(5, w + (kChunkTiles + v) * kTile, 64);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (G > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
}

// add_tile by two groups, in tiles 0 and 1 or others.
OCTET_AMX_INLINE void add_tile(const std::byte* w, const Group (&x)[2], int64_t c, bool other) {
#pragma GCC unroll 2
  for (int64_t v = 0; v < kChunkTiles; ++v) {
    _tile_loadd(4, w + v * kTile, 64);
    _tile_loadd(6, x[0].chunk(c) + v * kSide * x[0].step(), x[0].step());
    _tile_loadd(7, x[1].chunk(c) + v * kSide * x[1].step(), x[1].step());
    if (other) {
      _tile_dpbf16ps(2, 4, 6);
      _tile_dpbf16ps(3, 4, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    }
  }
}

// The columns of a thread.
//
//   up to 32 rows of x                          more
//   W  decode chunk c + 2 of 32 rows            W  decode all of 32 rows
//   x  multiply chunk c by both groups          x  for every two groups: multiply all chunks
template <class Decoder>
class Columns : TileWork {
 public:
  static size_t scratch_bytes(const Matrix& w, int64_t rows) {
    const int64_t chunks = (w.k + kChunk - 1) / kChunk;
    return TileWork::scratch_bytes(w, rows > 2 * kSide ? chunks * 2 : kRing);
  }

  using TileWork::TileWork;

  OCTET_AMX void run(int64_t begin) {
    begin_fetch(begin);
    if (packed_.groups > 2) {
      run_panels(begin);
    } else {
      run_ring(begin);
    }
    _tile_release();
  }

 private:
  // Rows [n, n + 32) of W, of which those from the end on are not written.
  struct Panel {
    int64_t n;
    int tiles;
  };
  Panel panel(int64_t n) const { return {n, end_ - n > kSide ? 2 : 1}; }

  // Sixteen rows of a panel, in one chunk.
  struct Place {
    Panel panel{};
    int64_t chunk = 0;
    int tile = 0;
  };
  void advance(Place& place) const {
    if (++place.tile < place.panel.tiles) return;
    place.tile = 0;
    if (++place.chunk == chunks_) place = {panel(place.panel.n + kPanel)};
  }

  OCTET_AMX void run_ring(int64_t begin) {
    take_groups(0);
    const int64_t steps = (end_ - begin + kSide - 1) / kSide * chunks_;
    const auto slot = [&](int64_t step) { return values_ + step % kRing * kChunkTiles * kTile; };
    const bool both = groups_[1].rows > 0;
    Place next{panel(begin)}, now = next;
    for (int64_t step = 0; step < steps + kAhead; ++step) {
      if (step < steps) {
        if (next.chunk + next.tile == 0) enter(next.panel);
        decode(next.chunk, next.tile, slot(step));
        advance(next);
      }
      if (step < kAhead) continue;
      if (now.chunk + now.tile == 0) begin_sums(now.panel);
      const std::byte* const values = slot(step - kAhead);
      simd::tile_barrier(values);
      both ? add_tile(values, groups_, now.chunk, now.tile != 0)
           : add_tile(values, groups_[0], now.chunk, now.tile != 0, now.tile != 0);
      simd::tile_barrier(values);
      if (now.tile + 1 == now.panel.tiles) end_chunk(now.panel, now.chunk);
      advance(now);
    }
  }

  OCTET_AMX void run_panels(int64_t begin) {
    for (int64_t n = begin; n < end_; n += kPanel) {
      const Panel now = panel(n);
      enter(now);
      for (int64_t c = 0; c < chunks_; ++c) {
        for (int tile = 0; tile < now.tiles; ++tile) {
          decode(c, tile, values_ + c * kPanelChunk + tile * kChunkTiles * kTile);
        }
      }
      for (int64_t group = 0; group < packed_.groups; group += 2) {
        take_groups(group);
        for (int64_t c = 0; c < chunks_; ++c) multiply(now, c, values_ + c * kPanelChunk);
      }
    }
  }

  OCTET_AMX void take_groups(int64_t group) {
    const Group before[2] = {groups_[0], groups_[1]};
    for (int64_t i = 0; i < 2; ++i) {
      groups_[i] = {};
      if (group + i >= packed_.groups) continue;
      const int64_t first = packed_.first_row(group + i);
      groups_[i] = {x_.data(first), first, packed_.first_row(group + i + 1) - first};
    }
    if (groups_[0].rows == before[0].rows && groups_[1].rows == before[1].rows) return;
    configure(groups_[0].rows, groups_[1].rows);
  }

  void enter(const Panel& panel) {
    for (int64_t r = 0; r < kPanel; ++r) rows_[r] = w_.row(std::min(panel.n + r, w_.rows - 1));
  }

  // Where the lines lie that are read kFetch tiles later, as an integer: it may be beyond the
  // mapping.
  uintptr_t fetch_place() const {
    return reinterpret_cast<uintptr_t>(w_.data) +
           static_cast<uintptr_t>((fetch_.panel.n + fetch_.tile * kSide) * w_.row_bytes +
                                  fetch_.chunk * kChunk * Decoder::bytes);
  }
  // The row r of a tile: into L2 what is read kFetch tiles later, and into L1 what is read a few
  // chunks after `p`, unless the rows lie so that those would drive each other out of it.
  OCTET_AMX_INLINE void prefetch_row(uintptr_t place, const std::byte* p, int64_t r,
                                     bool near) const {
    const auto here = reinterpret_cast<uintptr_t>(p);
#pragma GCC unroll 2
    for (uintptr_t i = 0; i < Decoder::bytes; ++i) {
      const auto far = place + static_cast<uintptr_t>(r * w_.row_bytes) + 64 * i;
      _mm_prefetch(reinterpret_cast<const char*>(far), _MM_HINT_T1);
      const auto next = here + 64 * (kNear * Decoder::bytes + i);
      if (near) _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
    }
  }
  OCTET_AMX void begin_fetch(int64_t begin) {
    fetch_ = {panel(begin)};
    for (int64_t i = 0; i < kFetch && fetch_.panel.n < end_; ++i, advance(fetch_)) {
      for (int64_t r = 0; r < kSide; ++r) prefetch_row(fetch_place(), nullptr, r, false);
    }
  }

  // Chunk c of sixteen of the rows that enter() found: [register][16 rows], 64 bytes each.
  OCTET_AMX void decode(int64_t c, int tile, std::byte* to) {
    const std::byte* const* const rows = rows_ + tile * kSide;
    const bool near = w_.row_bytes % 1024 != 0;
    const uintptr_t ahead = fetch_place();
    for (int64_t r = 0; r < kSide; ++r) {
      prefetch_row(ahead, rows[r] + c * kChunk * Decoder::bytes, r, near);
    }
    decode_rows<Decoder>(w_, rows, c, to);
    if (fetch_.panel.n < end_) advance(fetch_);
  }

  OCTET_AMX void multiply(const Panel& panel, int64_t c, const std::byte* values) {
    if (c == 0) begin_sums(panel);
    simd::tile_barrier(values);
    const bool both = groups_[1].rows > 0;
    if (panel.tiles > 1) {
      both ? add_chunk<2, 2>(values, groups_, c) : add_chunk<2, 1>(values, groups_, c);
    } else {
      both ? add_chunk<1, 2>(values, groups_, c) : add_chunk<1, 1>(values, groups_, c);
    }
    simd::tile_barrier(values);
    end_chunk(panel, c);
  }

  OCTET_AMX void begin_sums(const Panel& panel) {
    if (fold_) gather_panel_cells(panel);
    clear();
  }

  // After chunk c of all of the panel: what the sums become where a cell ends, or k.
  OCTET_AMX_INLINE void end_chunk(const Panel& panel, int64_t c) {
    const bool last = c + 1 == chunks_;
    if (!last && (!fold_ || c % 2 == 0)) return;
    store();
    for (int64_t tile = 0; tile < panel.tiles; ++tile) {
      for (int64_t g = 0; g < 2 && groups_[g].rows > 0; ++g) {
        const int64_t at = (tile * 2 + g) * kSide * kSide;
        if (fold_) fold(tile, groups_[g], c / 2, sums_ + at, totals_ + at);
        if (last) finish(panel.n + tile * kSide, groups_[g], (fold_ ? totals_ : sums_) + at);
      }
    }
    if (!last) clear();
  }

  // Tiles of no rows are not configured, and nothing may be done with them.
  OCTET_AMX_INLINE void clear() const {
    _tile_zero(0);
    _tile_zero(2);
    if (groups_[1].rows == 0) return;
    _tile_zero(1);
    _tile_zero(3);
  }
  OCTET_AMX_INLINE void store() {
    const int64_t first = step_of(groups_[0]), second = step_of(groups_[1]);
    _tile_stored(0, sums_, first);
    _tile_stored(2, sums_ + 2 * kSide * kSide, first);
    if (groups_[1].rows > 0) {
      _tile_stored(1, sums_ + kSide * kSide, second);
      _tile_stored(3, sums_ + 3 * kSide * kSide, second);
    }
    simd::tile_barrier(sums_);
  }
  // The scales of the panel's rows, [cell][32].
  OCTET_AMX void gather_panel_cells(const Panel& panel) {
    const Scales& scales = w_.scales;
    // Rows until the next ones have other scales: counted, as a division a row would cost more.
    int64_t left = 0;
    for (int64_t tile = 0; tile < panel.tiles; ++tile) {
      for (int64_t r = 0; r < kSide && scales.varies; ++r, --left) {
        const int64_t row = std::min(panel.n + tile * kSide + r, w_.rows - 1);
        const bool next = left == 0;
        if (next) left = scales.cell_rows == 0 ? kPanel : scales.cell_rows - row % scales.cell_rows;
        scale_rows_[r] = next || r == 0 ? scales.row(row) : scale_rows_[r - 1];
      }
      gather_cells(tile);
    }
  }

  // Sums [16 rows of W][rows of x] to columns of out.
  OCTET_AMX void finish(int64_t n, const Group& group, const float* sums) const {
    const auto columns = Columns16::of(w_, n, end_, out_);
    const float* const scales = x_.row_scales(group.first);
    for_rows(group, sums, [&](__m512 sum, int64_t m) OCTET_AMX {
      columns.write(_mm512_mul_ps(sum, _mm512_set1_ps(scales[m])), group.first + m, out_);
    });
  }

  Group groups_[2];
  Place fetch_{};
  const std::byte* rows_[kPanel] = {};
};

// Sixteen rows of x or fewer, from row `first` of the packing on, as Group says.
template <class From, class To>
OCTET_AVX512 void pack_group(const Matrix& x, const int32_t* index, int64_t first, int64_t rows,
                             std::byte* out) {
  const From decoder = From::make();
  const auto mask = static_cast<__mmask16>(simd::first_lanes(rows, kSide));
  for (int64_t k = 0; k < x.k; k += kChunk) {
    __m512i r[kChunkTiles][kSide] = {};
    for (int64_t m = 0; m < rows; ++m) {
      const std::byte* const row = x.row(index ? index[first + m] : first + m);
      __m512i v[kChunkTiles];
      load_pairs<From, To>(decoder, row + k * From::bytes, x.k - k, v);
      for (int64_t i = 0; i < kChunkTiles; ++i) r[i][m] = v[i];
    }
    for (auto& tile : r) {
      if (rows == 1) {  // it is its own column
        _mm512_storeu_si512(out, tile[0]);
      } else {
        simd::transpose16(tile);
        for (int64_t p = 0; p < kSide; ++p) {
          _mm512_mask_storeu_epi32(out + p * 4 * rows, mask, tile[p]);
        }
      }
      out += kSide * 4 * rows;
    }
  }
}

void pack(const Matrix& x, const int32_t* index, const Matrix& w, const Packed& packed,
          int64_t begin, int64_t end) {
  pack_pairs(x, index, w, packed, begin, end,
             [&]<class From, class To>(int64_t first, int64_t rows, std::byte* out) {
               pack_group<From, To>(x, index, first, rows, out);
             });
}

constexpr int64_t kStreamedBytes = 48 << 10;  // of W, or streams would end before they have begun

// A chunk of 16-bit values is two lines: neighbouring rows are read as fast as streams, and faster.
bool in_streams(const Matrix& w, int64_t rows, int64_t columns) {
  return rows <= kStreamedRows && size_of(w.type) == 1 && columns * w.row_bytes >= kStreamedBytes;
}

// Enough for fewer rows as well.
size_t scratch_bytes(const Matrix& w, int64_t rows) {
  using Any = PairDecoder<DotMath, Bf16Pairs>;
  return std::max(Columns<Any>::scratch_bytes(w, rows), Streams<Any>::scratch_bytes(w));
}

void columns(const Matrix& w, const Packed& packed, int64_t begin, int64_t end, const Output& out,
             std::byte* scratch) {
  with_decoder<DotMath>(w.type, [&]<class Decoder>() {
    if (in_streams(w, packed.rows, end - begin)) {
      Streams<Decoder>(w, packed, end, out, scratch).run(begin);
    } else {
      Columns<Decoder>(w, packed, end, out, scratch).run(begin);
    }
  });
}

constexpr Kernels kernels = {
    .group_rows = kSide,
    .max_rows = 32 * kSide,
    .packed_row_bytes = [](int64_t k) { return round_up(k, kChunk) * 2; },
    .scales_per_row = pair_scales_per_row,
    .pack = pack,
    .scratch_bytes = scratch_bytes,
    .columns = columns,
};

}  // namespace

const Kernels& amx_kernels() {
  return kernels;
}

}  // namespace octet::cpu::fast

#endif
