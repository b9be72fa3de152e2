#include "numerics/quantize.h"

#include <algorithm>

#include "base/error.h"

namespace octet {
namespace {

// One cell of a scale grid, clipped to the matrix.
struct Cell {
  int64_t row, col, rows, cols;
  int64_t scale;  // index into the scale matrix
};

template <class Visit>
void for_each_cell(const ScaleGrid& grid, int64_t rows, int64_t cols, Visit visit) {
  const int64_t cell_rows = grid.rows == 0 ? rows : grid.rows;
  const int64_t cell_cols = grid.cols == 0 ? cols : grid.cols;
  int64_t scale = 0;
  for (int64_t r = 0; r < rows; r += cell_rows) {
    for (int64_t c = 0; c < cols; c += cell_cols) {
      visit(Cell{r, c, std::min(cell_rows, rows - r), std::min(cell_cols, cols - c), scale++});
    }
  }
}

void check_sizes(size_t values, size_t codes, size_t scales, int64_t rows, int64_t cols,
                 const QuantFormat& format) {
  invariant(rows >= 0 && cols >= 0, "quantize: negative shape");
  const auto count = static_cast<size_t>(rows * cols);
  invariant(values == count && codes == count, "quantize: values and codes must be rows * cols");
  invariant(scales == static_cast<size_t>(scale_shape(format.grid, rows, cols).count()),
            "quantize: scales must match scale_shape");
}

template <Code F>
void encode_cell(const Cell& cell, const float* x, int64_t cols, float inv, uint8_t* codes,
                 QuantStats& stats) {
  for (int64_t r = cell.row; r < cell.row + cell.rows; ++r) {
    for (int64_t c = cell.col; c < cell.col + cell.cols; ++c) {
      const float value = x[r * cols + c];
      const uint8_t code = quantize_value<F>(value, inv);
      codes[r * cols + c] = code;
      const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
      stats.nan += magnitude > 0x7F800000u;
      stats.inf += magnitude == 0x7F800000u;
      stats.saturated += magnitude < 0x7F800000u && is_saturated(F, value * inv);
      stats.flushed += magnitude != 0 && (code & 0x7Fu) == 0;
    }
  }
}

// `scale_of` gives the cell's scale from its absmax and index.
template <class ScaleOf>
QuantStats encode_matrix(const float* x, int64_t rows, int64_t cols, const QuantFormat& format,
                         uint8_t* codes, ScaleOf scale_of) {
  QuantStats stats;
  stats.elements = rows * cols;
  for_each_cell(format.grid, rows, cols, [&](const Cell& cell) {
    float absmax = 0.0f;
    for (int64_t r = cell.row; r < cell.row + cell.rows; ++r) {
      absmax = std::max(absmax, finite_absmax(x + r * cols + cell.col, cell.cols));
    }
    stats.zero_cells += absmax == 0.0f;
    const float inv = inverse_scale(scale_of(absmax, cell.scale));
    visit_code(format.code, [&](auto code) {
      encode_cell<decltype(code)::value>(cell, x, cols, inv, codes, stats);
    });
  });
  return stats;
}

}  // namespace

QuantStats& QuantStats::operator+=(const QuantStats& other) {
  elements += other.elements;
  saturated += other.saturated;
  flushed += other.flushed;
  nan += other.nan;
  inf += other.inf;
  zero_cells += other.zero_cells;
  return *this;
}

QuantStats quantize(std::span<const float> x, int64_t rows, int64_t cols, const QuantFormat& format,
                    std::span<uint8_t> codes, std::span<float> scales) {
  check_sizes(x.size(), codes.size(), scales.size(), rows, cols, format);
  return encode_matrix(
      x.data(), rows, cols, format, codes.data(),
      [&](float absmax, int64_t index) { return scales[index] = choose_scale(absmax, format); });
}

QuantStats quantize_with_scales(std::span<const float> x, int64_t rows, int64_t cols,
                                const QuantFormat& format, std::span<const float> scales,
                                std::span<uint8_t> codes) {
  check_sizes(x.size(), codes.size(), scales.size(), rows, cols, format);
  return encode_matrix(x.data(), rows, cols, format, codes.data(),
                       [&](float, int64_t index) { return scales[index]; });
}

void dequantize(std::span<const uint8_t> codes, int64_t rows, int64_t cols,
                const QuantFormat& format, std::span<const float> scales, std::span<float> x) {
  check_sizes(x.size(), codes.size(), scales.size(), rows, cols, format);
  const std::array<float, 256>& values = code_values_of(format.code);
  for_each_cell(format.grid, rows, cols, [&](const Cell& cell) {
    const float scale = scales[cell.scale];
    for (int64_t r = cell.row; r < cell.row + cell.rows; ++r) {
      for (int64_t c = cell.col; c < cell.col + cell.cols; ++c) {
        x[r * cols + c] = values[codes[r * cols + c]] * scale;
      }
    }
  });
}

}  // namespace octet
