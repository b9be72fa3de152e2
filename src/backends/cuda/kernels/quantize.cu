// Quantizing activations by numerics/quantize.h, for every grid of scales.
//
//   grid                          how                                             reads of x
//   [1x*], [1x32..256]            a block a row, in registers (row_output.cuh)    1
//   a scale that is given, unit   any blocks                                      1
//   [*x*], [128x128], others      a block a cell, or a slice of its rows          2
#include "backends/cuda/kernels/ops.h"
#include "backends/cuda/kernels/row_output.cuh"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostSlices = kThreads;    // of a cell: a thread reads the absmax of each
constexpr int64_t kCellElements = 32 << 10;  // a cell up to this size is not sliced

// --- scales within rows --------------------------------------------------------------------------

// Block (row, part) holds `Items` * blockDim parts of columns: the whole row if one scale spans it.
template <typename T, int Items>
__global__ void __launch_bounds__(kMostThreads)
    quantize_rows_kernel(Matrix<const T> x, int cols, RowOutput<float> out) {
  __shared__ uint32_t maxima[kWarp];
  allow_next();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int first_col = static_cast<int>(blockIdx.y * blockDim.x) * Items * kPart;
  Vector<T, kPart> loaded[Items];
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    const int col = first_col + static_cast<int>(i * blockDim.x + threadIdx.x) * kPart;
    loaded[i] = load_part(x.row(row), col, cols, out.aligned);
  }
  float values[Items][kPart];
#pragma unroll
  for (int i = 0; i < Items; ++i) {
#pragma unroll
    for (int j = 0; j < kPart; ++j) values[i][j] = to_float(loaded[i].v[j]);
  }
  write_row<Items>(out, row, first_col, cols, values,
                   [&](uint32_t absmax) { return block_max_once(absmax, maxima); });
}

// --- a scale that is given -----------------------------------------------------------------------

// Codes of x under one scale (1 if `given` is null), which goes into every cell of out.scales
// [scale_rows, scale_cols]. Block (row, part of the columns), a part of 8 columns a thread.
template <typename T>
__global__ void quantize_given_kernel(Matrix<const T> x, int64_t rows, int cols, const float* given,
                                      int64_t scale_rows, int64_t scale_cols,
                                      RowOutput<float> out) {
  allow_next();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int col = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kPart;
  const Vector<T, kPart> loaded = load_part(x.row(row), col, cols, out.aligned);
  const float scale = given ? *given : 1.0f;
  float values[kPart];
#pragma unroll
  for (int i = 0; i < kPart; ++i) values[i] = to_float(loaded.v[i]);
  store_part(out.codes.row(row), col, cols, out.aligned,
             quantize_part(values, out.format.code, inverse_scale(scale)));
  // All threads share the cells out among them.
  const int64_t threads = int64_t{gridDim.y} * blockDim.x * rows;
  const int64_t own = (row * gridDim.y + blockIdx.y) * blockDim.x + threadIdx.x;
  for (int64_t cell = own; cell < scale_rows * scale_cols; cell += threads) {
    out.scales[cell / scale_cols * out.scale_row + cell % scale_cols * out.scale_col] = scale;
  }
}

// --- cells of any shape --------------------------------------------------------------------------

// How a matrix is cut: cells of cell_rows x cell_cols (fewer at ragged edges), each in `slices` of
// slice_rows rows. Block (column of cells, row of cells * slices + slice).
struct Cells {
  int64_t rows, cols, cell_rows, cell_cols, slices, slice_rows;
};

// Calls use(row, col, end of the cell's columns) for each part of this block's slice.
template <typename Use>
__device__ __forceinline__ void for_parts(const Cells& cells, Use use) {
  const int64_t cell_row = blockIdx.y / cells.slices, slice = blockIdx.y % cells.slices;
  const int64_t first = cell_row * cells.cell_rows + slice * cells.slice_rows;
  const int64_t cell_end = min(cells.rows, (cell_row + 1) * cells.cell_rows);
  const int64_t end = min(cell_end, first + cells.slice_rows);
  const int64_t first_col = blockIdx.x * cells.cell_cols;
  const int64_t end_col = min(cells.cols, first_col + cells.cell_cols);
  const int width = static_cast<int>((end_col - first_col + kPart - 1) / kPart);
  const int count = static_cast<int>(end - first) * width;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    use(first + i / width, static_cast<int>(first_col) + i % width * kPart,
        static_cast<int>(end_col));
  }
}

template <typename T>
__device__ __forceinline__ void load_values(const Matrix<const T>& x, int64_t row, int col, int end,
                                            bool aligned, float (&values)[kPart]) {
  const Vector<T, kPart> loaded = load_part(x.row(row), col, end, aligned);
#pragma unroll
  for (int i = 0; i < kPart; ++i) values[i] = to_float(loaded.v[i]);
}

// The absmax of this block's slice, in every thread.
template <typename T>
__device__ uint32_t slice_absmax(const Matrix<const T>& x, const Cells& cells, bool aligned) {
  __shared__ uint32_t shared[kWarp];
  uint32_t absmax = 0;
  for_parts(cells, [&](int64_t row, int col, int end) {
    float values[kPart];
    load_values(x, row, col, end, aligned, values);
    absmax = max(absmax, part_absmax(values));
  });
  return block_max<kThreads>(absmax, shared);
}

// maxima[cell, slice] = the absmax of a slice, as bits.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    absmax_kernel(Matrix<const T> x, Cells cells, bool aligned, uint32_t* maxima) {
  allow_next();
  wait_for_previous();
  const uint32_t absmax = slice_absmax(x, cells, aligned);
  const int64_t cell = blockIdx.y / cells.slices * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) maxima[cell * cells.slices + blockIdx.y % cells.slices] = absmax;
}

// The scale of a cell, from `maxima` if cells are sliced, and the codes of a slice.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    quantize_cells_kernel(Matrix<const T> x, Cells cells, const uint32_t* maxima,
                          RowOutput<float> out) {
  __shared__ uint32_t shared[kWarp];
  allow_next();
  wait_for_previous();
  const int64_t cell_row = blockIdx.y / cells.slices;
  uint32_t absmax = 0;
  if (cells.slices == 1) {
    absmax = slice_absmax(x, cells, out.aligned);
  } else {
    const int64_t cell = cell_row * gridDim.x + blockIdx.x;
    if (threadIdx.x < cells.slices) absmax = maxima[cell * cells.slices + threadIdx.x];
    absmax = block_max<kThreads>(absmax, shared);
  }
  const float scale = choose_scale(__uint_as_float(absmax), out.format);
  const float inv = inverse_scale(scale);
  if (threadIdx.x == 0 && blockIdx.y % cells.slices == 0) {
    out.scales[cell_row * out.scale_row + blockIdx.x * out.scale_col] = scale;
  }
  for_parts(cells, [&](int64_t row, int col, int end) {
    float values[kPart];
    load_values(x, row, col, end, out.aligned, values);
    store_part(out.codes.row(row), col, end, out.aligned,
               quantize_part(values, out.format.code, inv));
  });
}

// Vectors may be used where every part of every cell starts at a multiple of one.
bool parts_aligned(const Tensor& x, const QuantTensor& out) {
  return x.cols() % kPart == 0 && rows_aligned(x, 16) && rows_aligned(out.codes, kPart);
}

void quantize_given(const KernelContext& context, const Tensor& x, const QuantTensor& out,
                    const Tensor& scale) {
  const int64_t rows = x.rows(), cols = x.cols();
  const ScaleShape shape = scale_shape(out.format.grid, rows, cols);
  RowOutput<float> output;
  set_quant(output, out, cols);
  output.aligned = parts_aligned(x, out);
  const int64_t span = int64_t{kThreads} * kPart;
  visit_float_type(x.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(context, quantize_given_kernel<T>,
           dim3(static_cast<unsigned>(rows), static_cast<unsigned>((cols + span - 1) / span)),
           dim3(threads_for(cols, 1, kThreads)), 0, matrix<const T>(x), rows,
           static_cast<int>(cols), scale ? scale.as<const float>() : nullptr, shape.rows,
           shape.cols, output);
  });
}

void quantize_rows(const KernelContext& context, const Tensor& x, const QuantTensor& out) {
  const int64_t rows = x.rows(), cols = x.cols();
  RowOutput<float> output;
  set_quant(output, out, cols);
  output.aligned = parts_aligned(x, out);
  visit_float_type(x.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto start = [&](auto kernel, int64_t blocks, unsigned threads) {
      launch(context, kernel, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(blocks)),
             dim3(threads), 0, matrix<const T>(x), static_cast<int>(cols), output);
    };
    if (output.group != 0) {
      const unsigned threads = threads_for(cols, 1, kThreads);
      const int64_t span = int64_t{threads} * kPart;
      start(quantize_rows_kernel<T, 1>, (cols + span - 1) / span, threads);
    } else if (cols <= kMostThreads * kPart) {
      start(quantize_rows_kernel<T, 1>, 1, threads_for(cols, 1));
    } else if (cols <= kMostThreads * kPart * 2) {
      start(quantize_rows_kernel<T, 2>, 1, threads_for(cols, 2));
    } else {
      start(quantize_rows_kernel<T, 4>, 1, threads_for(cols, 4));
    }
  });
}

}  // namespace

void check_quant(const char* op, const QuantTensor& out, int64_t rows, int64_t cols) {
  const ScaleShape cells = scale_shape(out.format.grid, rows, cols);
  if (!out.scales || out.codes.rows() != rows || out.codes.cols() != cols ||
      out.codes.type != dtype_of(out.format.code) || !is_fp8(out.codes.type) ||
      out.scales.type != DType::f32 || out.scales.count() != cells.count() ||
      out.scales.shape.rank > 2) {
    unsupported(op, "codes and scales do not fit " + to_string(out.format),
                {{"codes", out.codes}, {"scales", out.scales}});
  }
}

void quantize_cells(const KernelContext& context, const Tensor& x, const QuantTensor& out,
                    size_t offset) {
  const int64_t rows = x.rows(), cols = x.cols();
  if (rows == 0 || cols == 0) return;
  if (out.format.scale == ScaleType::unit) return quantize_given(context, x, out, {});
  const ScaleGrid grid = out.format.grid;
  const ScaleShape shape = scale_shape(grid, rows, cols);
  Cells cells{rows, cols, grid.rows == 0 ? rows : grid.rows, grid.cols == 0 ? cols : grid.cols,
              1,    0};
  cells.cell_rows = std::min(cells.cell_rows, rows);
  cells.cell_cols = std::min(cells.cell_cols, cols);
  cells.slice_rows = cells.cell_rows;
  if (cells.cell_rows * cells.cell_cols > kCellElements) {
    cells.slice_rows = std::max<int64_t>((cells.cell_rows + kMostSlices - 1) / kMostSlices,
                                         kCellElements / 4 / cells.cell_cols);
    cells.slices = (cells.cell_rows + cells.slice_rows - 1) / cells.slice_rows;
  }
  RowOutput<float> output;
  set_quant(output, out, cols);
  output.aligned = parts_aligned(x, out) && cells.cell_cols % kPart == 0;
  const dim3 blocks(static_cast<unsigned>(shape.cols),
                    static_cast<unsigned>(shape.rows * cells.slices));
  if (blocks.y > 65535) {
    unsupported("quantize", "too many cells for " + to_string(out.format), {{"x", x}});
  }
  visit_float_type(x.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    uint32_t* maxima = nullptr;
    if (cells.slices > 1) {
      maxima = context.workspace.take<uint32_t>(offset, shape.count() * cells.slices);
      launch(context, absmax_kernel<T>, blocks, dim3(kThreads), 0, matrix<const T>(x), cells,
             output.aligned, maxima);
    }
    launch(context, quantize_cells_kernel<T>, blocks, dim3(kThreads), 0, matrix<const T>(x), cells,
           maxima, output);
  });
}

void quantize(const KernelContext& context, const Tensor& x, const QuantTensor& out,
              const Tensor& fixed_scale) {
  if (!x || !is_float_type(x.type)) {
    unsupported("quantize", "x must be f32, bf16 or f16", {{"x", x}});
  }
  const int64_t rows = x.rows(), cols = x.cols();
  check_quant("quantize", out, rows, cols);
  if (fixed_scale && fixed_scale.type != DType::f32) {
    unsupported("quantize", "the scale must be f32", {{"scale", fixed_scale}});
  }
  if (rows == 0 || cols == 0) return;
  // A row under one scale is held by one block.
  const int64_t group = out.format.grid.cols;
  const bool fits_block = (group != 0 && group < cols) || cols <= kMostThreads * kPart * 4;
  if (fixed_scale) {
    quantize_given(context, x, out, fixed_scale);
  } else if (scales_within_rows(out.format, cols) && fits_block) {
    quantize_rows(context, x, out);
  } else {
    quantize_cells(context, x, out, 0);
  }
}

}  // namespace octet::cuda
