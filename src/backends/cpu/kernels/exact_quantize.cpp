#include "backends/cpu/kernels/exact_quantize.h"

#include <algorithm>
#include <vector>

#include "backends/cpu/kernels/exact_loops.h"

namespace octet::cpu {
namespace {

OCTET_EXACT_CLONES void encode_e4m3(const float* x, int64_t n, float inv, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = quantize_value<Code::e4m3>(x[i], inv);
}

OCTET_EXACT_CLONES void encode_e5m2(const float* x, int64_t n, float inv, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = quantize_value<Code::e5m2>(x[i], inv);
}

OCTET_EXACT_CLONES void encode_i8(const float* x, int64_t n, float inv, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = quantize_value<Code::i8>(x[i], inv);
}

// Magnitudes of floats order as their bits do, so the absmax is an integer maximum.
OCTET_EXACT_CLONES int32_t absmax_bits(const float* x, int64_t n, int32_t so_far) {
  for (int64_t i = 0; i < n; ++i) {
    const int32_t magnitude = std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF;
    const int32_t finite = magnitude < 0x7F800000 ? magnitude : 0;
    so_far = finite > so_far ? finite : so_far;
  }
  return so_far;
}

uint8_t* codes_of(const QuantTensor& out, int64_t row) {
  return reinterpret_cast<uint8_t*>(Rows(out.codes)[row]);
}

void check(const char* op, const QuantTensor& out, int64_t rows, int64_t cols) {
  const ScaleShape cells = scale_shape(out.format.grid, rows, cols);
  if (!out.scales || out.codes.rows() != rows || out.codes.cols() != cols ||
      out.codes.type != dtype_of(out.format.code) || out.scales.type != DType::f32 ||
      out.scales.count() != cells.count()) {
    unsupported(op, "codes and scales do not fit " + to_string(out.format),
                {{"codes", out.codes}, {"scales", out.scales}});
  }
}

// Grids whose cells span rows, in three passes: the absmax of each row's part of each cell, the
// scales, the codes. Maxima do not depend on their order, so the first and last may run in
// parallel.
void quantize_cells(const KernelContext& context, const Tensor& x, const QuantTensor& out) {
  const int64_t rows = x.rows(), cols = x.cols();
  const ScaleGrid grid = out.format.grid;
  const ScaleShape cells = scale_shape(grid, rows, cols);
  const int64_t cell_rows = grid.rows == 0 ? rows : grid.rows;
  const int64_t cell_cols = grid.cols == 0 ? cols : grid.cols;
  const ScaleView scales(out);
  std::vector<float> absmax(static_cast<size_t>(rows * cells.cols));
  const Rows x_rows(x);
  const auto for_rows = [&](auto body) {
    context.threads.parallel_for(rows, 8, [&](int64_t begin, int64_t end, int) {
      std::vector<float> values(static_cast<size_t>(cols));
      for (int64_t row = begin; row < end; ++row) {
        load_floats(x.type, x_rows[row], cols, values.data());
        for (int64_t cell = 0; cell < cells.cols; ++cell) {
          const int64_t first = cell * cell_cols;
          body(row, cell, values.data() + first, std::min(cell_cols, cols - first), first);
        }
      }
    });
  };
  for_rows([&](int64_t row, int64_t cell, const float* values, int64_t n, int64_t) {
    absmax[static_cast<size_t>(row * cells.cols + cell)] = row_absmax(values, n);
  });
  for (int64_t band = 0; band < cells.rows; ++band) {
    for (int64_t cell = 0; cell < cells.cols; ++cell) {
      float most = 0.0f;
      const int64_t end = std::min(rows, (band + 1) * cell_rows);
      for (int64_t row = band * cell_rows; row < end; ++row) {
        most = std::max(most, absmax[static_cast<size_t>(row * cells.cols + cell)]);
      }
      scales.set_cell(band, cell, choose_scale(most, out.format));
    }
  }
  for_rows([&](int64_t row, int64_t cell, const float* values, int64_t n, int64_t first) {
    encode_row(out.format.code, values, n, inverse_scale(scales.cell(row / cell_rows, cell)),
               codes_of(out, row) + first);
  });
}

}  // namespace

float row_absmax(const float* x, int64_t n, float so_far) {
  return std::bit_cast<float>(absmax_bits(x, n, std::bit_cast<int32_t>(so_far)));
}

void encode_row(Code type, const float* x, int64_t n, float inv, uint8_t* codes) {
  switch (type) {
    case Code::e4m3:
      return encode_e4m3(x, n, inv, codes);
    case Code::e5m2:
      return encode_e5m2(x, n, inv, codes);
    case Code::i8:
      return encode_i8(x, n, inv, codes);
  }
}

void quantize_row(const float* x, const QuantTensor& out, int64_t row) {
  const int64_t cols = out.codes.cols();
  const int64_t step = out.format.grid.cols == 0 ? cols : out.format.grid.cols;
  const ScaleView scales(out);
  uint8_t* const codes = codes_of(out, row);
  for (int64_t begin = 0, cell = 0; begin < cols; begin += step, ++cell) {
    const int64_t n = std::min(step, cols - begin);
    const float scale = choose_scale(row_absmax(x + begin, n), out.format);
    scales.set_cell(row, cell, scale);
    encode_row(out.format.code, x + begin, n, inverse_scale(scale), codes + begin);
  }
}

void quantize(const KernelContext& context, const Tensor& x, const QuantTensor& out,
              const Tensor& fixed_scale) {
  if (!x || !is_float_type(x.type))
    unsupported("quantize", "x must be f32, bf16 or f16", {{"x", x}});
  const int64_t rows = x.rows(), cols = x.cols();
  check("quantize", out, rows, cols);
  const Rows x_rows(x);
  const auto for_rows = [&](auto body) {
    context.threads.parallel_for(rows, 8, [&](int64_t begin, int64_t end, int) {
      std::vector<float> values(static_cast<size_t>(cols));
      for (int64_t row = begin; row < end; ++row) {
        load_floats(x.type, x_rows[row], cols, values.data());
        body(row, values.data());
      }
    });
  };
  if (fixed_scale) {
    const float scale = load_f32(fixed_scale.data), inv = inverse_scale(scale);
    const ScaleView scales(out);
    const ScaleShape cells = scale_shape(out.format.grid, rows, cols);
    for (int64_t r = 0; r < cells.rows; ++r) {
      for (int64_t c = 0; c < cells.cols; ++c) scales.set_cell(r, c, scale);
    }
    for_rows([&](int64_t row, const float* values) {
      encode_row(out.format.code, values, cols, inv, codes_of(out, row));
    });
  } else if (out.format.grid.rows == 1) {
    for_rows([&](int64_t row, const float* values) { quantize_row(values, out, row); });
  } else {
    quantize_cells(context, x, out);
  }
}

ActivationWriter::ActivationWriter(const KernelContext& context, const char* op,
                                   const ops::Activation& out, int64_t rows, int64_t cols)
    : context_(context), out_(out), rows_(rows), cols_(cols) {
  if (!out.plain && !out.quant) unsupported(op, "the output has neither form", {});
  if (out.plain && (out.plain.rows() != rows || out.plain.cols() != cols ||
                    (out.plain.type != DType::f32 && out.plain.type != DType::bf16))) {
    unsupported(op, "the plain output must be f32 or bf16 and of the input's shape",
                {{"out", out.plain}});
  }
  if (!out.quant) return;
  check(op, out.quant, rows, cols);
  if (out.quant.format.grid.rows != 1) {
    whole_ = context.scratch.take<float>(2, static_cast<size_t>(rows * cols));
  }
}

void ActivationWriter::write(int64_t row, const float* values) const {
  if (out_.plain) store_floats(out_.plain.type, values, cols_, Rows(out_.plain)[row]);
  if (!out_.quant) return;
  if (!whole_) {
    quantize_row(values, out_.quant, row);
  } else if (float* const place = row_buffer(row); place != values) {
    std::copy(values, values + cols_, place);
  }
}

void ActivationWriter::finish() const {
  if (whole_) quantize_cells(context_, Tensor(whole_, DType::f32, {rows_, cols_}), out_.quant);
}

}  // namespace octet::cpu
