// The AMX linear for few rows of x and weights of a byte. It waits for memory, which is fastest
// where few long streams are read, so the sixteen rows of a tile are far apart:
//
//   rows of W     0 .. length-1   length .. 2 length-1   ...     (16 streams)
//   tile j        row j           row length + j         ...
//
// Chunk after chunk of a tile is decoded into a ring, some steps ahead of its product. The sums of
// every column are kept until the block ends, and then finished sixteen neighbours at a time.
#pragma once

#if defined(__x86_64__)

#include "backends/cpu/kernels/fast_linear_tiles.h"

namespace octet::cpu::fast {

template <class Decoder>
class Streams : TileWork {
  static constexpr int64_t kLength = 128;          // the most rows of a stream
  static constexpr uintptr_t kLine = 64;           // bytes of a chunk of a row
  static constexpr uintptr_t kFar = 8, kNear = 2;  // chunks that are asked for into L2 and L1
  static constexpr int64_t kScaleFar = 256;        // bytes of a row's scales ahead

 public:
  // Of up to kStreamedRows rows of x.
  static size_t scratch_bytes(const Matrix& w) {
    return TileWork::scratch_bytes(w, kRing) +
           static_cast<size_t>(kLength * kStreamedRows * kSide * 4);
  }

  Streams(const Matrix& w, const Packed& packed, int64_t end, const Output& out, std::byte* scratch)
      : TileWork(w, packed, end, out, scratch), group_{x_.data(0), 0, packed.rows} {
    spare_ = sums_ + kSide * kSide;
    kept_ = reinterpret_cast<float*>(values_ + kRing * kChunkTiles * kTile);
  }

  OCTET_AMX void run(int64_t begin) {
    configure(group_.rows, 0);
    const int64_t tiles = (end_ - begin + kSide - 1) / kSide;
    const int64_t blocks = (tiles + kLength - 1) / kLength;
    for (int64_t block = 0; block < blocks && begin < end_; ++block) {
      const int64_t last = std::min(end_, begin + (tiles + blocks - 1) / blocks * kSide);
      block_ = {begin, last, (last - begin + kSide - 1) / kSide};
      run_block();
      begin = last;
    }
    _tile_release();
  }

 private:
  OCTET_AMX void run_block() {
    const int64_t steps = block_.length * chunks_;
    const auto slot = [&](int64_t step) { return values_ + step % kRing * kChunkTiles * kTile; };
    const bool near = block_.length * w_.row_bytes % 2048 != 0;
    begin_fetch();
    int64_t j = 0, c = 0, ended = 0;  // the product's place, and steps since the last cell
    for (int64_t step = 0, row = 0, chunk = 0; step < steps + kAhead; ++step) {
      if (step < steps) {
        if (chunk == 0) enter_streams(row);
        fetch(chunk, near);
        decode_rows<Decoder>(w_, rows_, chunk, slot(step));
        if (++chunk == chunks_) chunk = 0, ++row;
      }
      if (step < kAhead) continue;
      const std::byte* const values = slot(step - kAhead);
      simd::tile_barrier(values);
      if (ended == 0) _tile_zero(0);
      add_tile(values, group_, c, false, false);
      simd::tile_barrier(values);
      ++ended;
      const bool last = c + 1 == chunks_;
      if (last || (fold_ && c % 2 != 0)) {
        end_cell(j, c / 2, last);
        ended = 0;
      }
      if (++c == chunks_) c = 0, ++j;
    }
    resolve();
    finish_streams();
  }

  int64_t stream_row(int64_t r, int64_t j) const {
    return std::min(block_.begin + r * block_.length + j, w_.rows - 1);
  }
  void enter_streams(int64_t j) {
    for (int64_t r = 0; r < kSide; ++r) rows_[r] = w_.row(stream_row(r, j));
  }

  // As it is decoded, of each stream what comes next.
  OCTET_AMX_INLINE void fetch(int64_t c, bool near) const {
    for (int64_t r = 0; r < kSide; ++r) {
      const auto here = reinterpret_cast<uintptr_t>(rows_[r]) + static_cast<uintptr_t>(c * kLine);
      _mm_prefetch(reinterpret_cast<const char*>(here + kFar * kLine), _MM_HINT_T1);
      if (near) _mm_prefetch(reinterpret_cast<const char*>(here + kNear * kLine), _MM_HINT_T0);
    }
  }
  // What fetch() does not ask for: the begin of each.
  OCTET_AMX void begin_fetch() const {
    for (uintptr_t line = 0; line < kFar * kLine; line += kLine) {
      for (int64_t r = 0; r < kSide; ++r) {
        const auto place = reinterpret_cast<uintptr_t>(w_.row(stream_row(r, 0))) + line;
        _mm_prefetch(reinterpret_cast<const char*>(place), _MM_HINT_T1);
      }
    }
    for (int64_t r = 0; r < kSide && w_.scales.varies; ++r) {
      prefetch_scales(reinterpret_cast<uintptr_t>(w_.scales.row(stream_row(r, 0))),
                      kScaleFar + w_.scales.row_bytes);
    }
  }

  // Where a cell ends, or k, the sums go to memory. What becomes of them has to wait until they are
  // there, and so comes at the end of the next cell.
  OCTET_AMX_INLINE void end_cell(int64_t j, int64_t cell, bool last) {
    resolve();
    std::swap(sums_, spare_);
    _tile_stored(0, sums_, step_of(group_));
    ended_ = {j, fold_ ? cell : 0, last, true};
  }
  OCTET_AMX void resolve() {
    if (!ended_.any) return;
    ended_.any = false;
    simd::tile_barrier(sums_);
    if (fold_) {
      if (ended_.cell == 0) gather_stream_cells(ended_.j);
      fold(0, group_, ended_.cell, sums_, totals_);
    }
    if (!ended_.last) return;
    const float* const sums = fold_ ? totals_ : sums_;
    float* const to = kept_ + ended_.j * group_.rows * kSide;
    for_rows(group_, sums,
             [&](__m512 sum, int64_t m) OCTET_AMX { _mm512_store_ps(to + m * kSide, sum); });
  }

  // Kept sums, [j][row of x][16 streams], to columns of out.
  OCTET_AMX void finish_streams() const {
    const int64_t rows = group_.rows;
    const float* const scales = x_.row_scales(0);
    for (int64_t j = 0; j < block_.length; j += kSide) {
      const int64_t columns = std::min(kSide, block_.length - j);
      for (int64_t m = 0; m < rows; ++m) {
        __m512i v[kSide] = {};
        for (int64_t i = 0; i < columns; ++i) {
          v[i] = _mm512_load_si512(kept_ + ((j + i) * rows + m) * kSide);
        }
        simd::transpose16(v);
        const __m512 scale = _mm512_set1_ps(scales[m]);
        for (int64_t r = 0; r < kSide; ++r) {
          const int64_t n = block_.begin + r * block_.length + j;
          const int64_t last = std::min(n + columns, block_.end);
          if (n >= last) break;
          const auto to = Columns16::of(w_, n, last, out_);
          to.write(_mm512_mul_ps(_mm512_castsi512_ps(v[r]), scale), m, out_);
        }
      }
    }
  }

  static void prefetch_scales(uintptr_t place, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64, place += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(place), _MM_HINT_T0);
    }
  }
  // The scales of the rows of tile j, as gather_cells().
  OCTET_AMX void gather_stream_cells(int64_t j) {
    const Scales& scales = w_.scales;
    for (int64_t r = 0; r < kSide && scales.varies; ++r) {
      const int64_t row = block_.begin + r * block_.length + j;
      if (j > 0 && row >= w_.rows) continue;
      if (j > 0 && --same_[r] > 0) continue;
      scale_rows_[r] = scales.row(std::min(row, w_.rows - 1));
      same_[r] = scales.cell_rows == 0 ? w_.rows : scales.cell_rows - row % scales.cell_rows;
      prefetch_scales(reinterpret_cast<uintptr_t>(scale_rows_[r]) + kScaleFar, scales.row_bytes);
    }
    gather_cells(0);
  }

  // Rows [begin, end) of W as streams of `length` rows.
  struct Block {
    int64_t begin = 0, end = 0, length = 0;
  };
  Block block_{};
  Group group_;
  struct Ended {  // a cell whose sums are in memory, where there is `any`
    int64_t j = 0, cell = 0;
    bool last = false, any = false;
  };
  Ended ended_{};
  float *spare_, *kept_;  // the tile of sums that comes next; [j][row of x][16 streams]
  const std::byte* rows_[kSide] = {};
  int64_t same_[kSide] = {};  // rows of a stream until the next one has other scales
};

}  // namespace octet::cpu::fast

#endif
