#include "offline/scale_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

namespace octet::offline {
namespace {

using Errors = std::array<double, kScaleSteps>;  // of a cell, by the scale that is tried

float step(int j) {
  return static_cast<float>(std::exp2(static_cast<double>(j) / kScaleSteps));
}

// Adds the squared errors of `count` values under each of the scales plain · step(j).
template <Code F>
void add_errors(const float* x, int64_t count, float plain, Errors& errors) {
  const std::array<float, 256>& values = code_values_of(F);
  for (int j = 0; j < kScaleSteps; ++j) {
    const float scale = plain * step(j), inv = inverse_scale(scale);
    double sum = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(x[i])) continue;
      const double error = double{values[quantize_value<F>(x[i], inv)] * scale} - double{x[i]};
      sum += error * error;
    }
    errors[static_cast<size_t>(j)] += sum;
  }
}

}  // namespace

std::vector<float> plain_scales(std::span<const float> w, int64_t rows, int64_t cols,
                                const QuantFormat& format) {
  std::vector<uint8_t> codes(w.size());
  std::vector<float> scales(static_cast<size_t>(scale_shape(format.grid, rows, cols).count()));
  quantize(w, rows, cols, format, codes, scales);
  return scales;
}

std::vector<float> search_scales(std::span<const float> w, int64_t rows, int64_t cols,
                                 const QuantFormat& format) {
  std::vector<float> scales = plain_scales(w, rows, cols, format);
  if (!is_fp8(format.code) || format.scale != ScaleType::f32) return scales;

  const int64_t cell_rows = format.grid.rows == 0 ? rows : format.grid.rows;
  const int64_t cell_cols = format.grid.cols == 0 ? cols : format.grid.cols;
  const int64_t per_row = scale_shape(format.grid, rows, cols).cols;
  std::vector<Errors> errors(scales.size());
  visit_code(format.code, [&](auto code) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; c += cell_cols) {
        const auto cell = static_cast<size_t>(r / cell_rows * per_row + c / cell_cols);
        add_errors<decltype(code)::value>(w.data() + r * cols + c, std::min(cell_cols, cols - c),
                                          scales[cell], errors[cell]);
      }
    }
  });
  for (size_t cell = 0; cell < scales.size(); ++cell) {
    const auto best = std::ranges::min_element(errors[cell]);  // the first of equal ones
    scales[cell] *= step(static_cast<int>(best - errors[cell].begin()));
  }
  return scales;
}

}  // namespace octet::offline
