#include <algorithm>

#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/linear_parts.cuh"
#include "backends/cuda/kernels/linear_parts.h"
#include "backends/cuda/kernels/ops.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 4;  // neighbouring outputs of a thread
constexpr int64_t kMostGridY = 65535;

// One thread a cell, rows fastest: writes are coalesced where row_pitch is 1.
__global__ void __launch_bounds__(kThreads)
    pack_kernel(ScaleView from, int64_t rows, int64_t cols, float* to, int64_t row_pitch,
                int64_t col_pitch) {
  allow_next();
  wait_for_previous();
  const int64_t r = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (r >= rows) return;
  for (int64_t c = blockIdx.y; c < cols; c += gridDim.y) {
    to[r * row_pitch + c * col_pitch] =
        from.data ? from.data[r * from.row_stride + c * from.col_stride] : 1.0f;
  }
}

// A block does kThreads * kWidth columns of every gridDim.y-th row. `whole` says that rows of sums
// and out are aligned to kWidth elements.
template <typename Out>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(const float* __restrict__ sums, int64_t rows, int64_t cols, ScaleView x_scale,
                  ScaleView w_scale, BiasView bias, Matrix<Out> out, bool whole) {
  allow_next();
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
  const int count = static_cast<int>(cols - first < kWidth ? cols - first : kWidth);
  float scale[kWidth] = {}, shift[kWidth] = {};
  for (int j = 0; j < kWidth; ++j) {
    if (j >= count) break;
    scale[j] = scale_at(w_scale, static_cast<uint32_t>(first + j), 0);
    shift[j] = bias.at(first + j);
  }
  wait_for_previous();
  if (count <= 0) return;
  const bool vector = whole && count == kWidth;
  for (int64_t r = blockIdx.y; r < rows; r += gridDim.y) {
    const float factor = scale_at(x_scale, static_cast<uint32_t>(r), 0);
    const float* const from = sums + r * cols + first;
    Out* const to = out.row(r) + first;
    float y[kWidth] = {};
    if (vector) {
      load_floats(from, y);
    } else {
      for (int j = 0; j < count; ++j) y[j] = from[j];
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) y[j] = __fadd_rn(__fmul_rn(y[j] * scale[j], factor), shift[j]);
    if (vector) {
      store_floats(to, y);
    } else {
      for (int j = 0; j < count; ++j) to[j] = from_float<Out>(y[j]);
    }
  }
}

// One scale alone may be a scalar, and a column of them a vector.
bool scales_fit(const QuantTensor& q) {
  if (q.format.scale == ScaleType::unit) return true;
  return q.scales && q.scales.type == DType::f32 &&
         q.scales.count() == scale_shape(q.format.grid, q.codes.rows(), q.codes.cols()).count();
}

bool is_output(DType type) {
  return type == DType::f32 || type == DType::bf16;
}

}  // namespace

void check_linear(const ops::Activation& x, const ops::Linear& w, const Tensor& out) {
  const Tensor& given = w.input ? x.quant.codes : x.plain;
  const Tensor& weight = w.quant ? w.quant.codes : w.plain;
  const bool shapes = given && weight && out && given.cols() == w.in && weight.rows() == w.out &&
                      weight.cols() == w.in && out.cols() == w.out && out.rows() == given.rows() &&
                      (!w.bias || w.bias.count() == w.out) && (!w.quant || scales_fit(w.quant)) &&
                      (!w.input || scales_fit(x.quant));
  const bool types = shapes && is_output(out.type) &&
                     (w.input ? is_fp8(given.type) : is_output(given.type)) &&
                     (w.quant ? is_fp8(weight.type) : is_float_type(weight.type)) &&
                     (!w.bias || is_float_type(w.bias.type));
  if (types) return;
  unsupported(
      "linear " + w.name, shapes ? "unsupported types" : "shapes do not fit",
      {{"x", given}, {"w", weight}, {"scales", w.quant.scales}, {"bias", w.bias}, {"out", out}});
}

ops::Activation linear_input(const KernelContext& context, size_t& offset, const ops::Activation& x,
                             const ops::Linear& w, int64_t room) {
  if (!w.input) {
    if (!x.plain) unsupported("linear " + w.name, "needs a plain input", {{"x", x.quant.codes}});
    return ops::Activation(x.plain);
  }
  if (x.quant && x.quant.format == *w.input) return ops::Activation(x.quant);
  if (!x.plain) {
    unsupported("linear " + w.name, "needs an input in " + to_string(*w.input) + " or a plain one",
                {{"x", x.quant.codes}});
  }
  const int64_t rows = x.plain.rows(), cols = x.plain.cols();
  const ScaleShape cells = scale_shape(w.input->grid, rows, cols);
  QuantTensor quant;
  quant.format = *w.input;
  quant.codes = Tensor(context.workspace.take<uint8_t>(offset, std::max(rows, room) * cols),
                       dtype_of(w.input->code), {rows, cols}, x.plain.device);
  quant.scales = Tensor(context.workspace.take<float>(offset, cells.count()), DType::f32,
                        {cells.rows, cells.cols}, x.plain.device);
  // The quantizer has the rest of the workspace for itself.
  KernelContext rest = context;
  rest.workspace = {static_cast<char*>(context.workspace.data) + offset,
                    context.workspace.bytes - offset};
  quantize(rest, x.plain, quant, w.when == InputScale::calibrated ? w.input_scale : Tensor{});
  return ops::Activation(quant);
}

ScaleView scale_view(const QuantTensor& q) {
  ScaleView view;
  if (!q || q.format.scale == ScaleType::unit) return view;
  const Tensor& s = q.scales;
  view.data = s.as<const float>();
  if (s.shape.rank >= 1) view.row_stride = s.strides[0];
  if (s.shape.rank >= 2) view.col_stride = s.strides[1];
  if (q.format.grid.rows > 0) view.cell_rows = static_cast<uint32_t>(q.format.grid.rows);
  if (q.format.grid.cols > 0) view.cell_cols = static_cast<uint32_t>(q.format.grid.cols);
  return view;
}

void pack_scales(const KernelContext& context, const ScaleView& from, int64_t rows, int64_t cols,
                 float* to, int64_t row_pitch, int64_t col_pitch) {
  if (rows == 0 || cols == 0) return;
  const dim3 grid(static_cast<unsigned>((rows + kThreads - 1) / kThreads),
                  static_cast<unsigned>(std::min(cols, kMostGridY)));
  launch(context, pack_kernel, grid, dim3(kThreads), 0, from, rows, cols, to, row_pitch, col_pitch);
}

void finish_linear(const KernelContext& context, const float* sums, const ScaleView& x_scale,
                   const ScaleView& w_scale, const Tensor& bias, const Tensor& out) {
  const int64_t rows = out.rows(), cols = out.cols();
  if (rows == 0 || cols == 0) return;
  constexpr int64_t columns = int64_t{kThreads} * kWidth;
  const int64_t across = (cols + columns - 1) / columns;
  // Enough blocks for the device; rows beyond that share a block's scales and bias.
  const int64_t down = std::min({rows, kMostGridY, (8 * context.caps.sms + across - 1) / across});
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(down));
  visit_activation_type(out.type, [&](auto tag) {
    using Out = typename decltype(tag)::type;
    const bool whole = cols % kWidth == 0 && rows_aligned(out, kWidth * sizeof(Out));
    launch(context, finish_kernel<Out>, grid, dim3(kThreads), 0, sums, rows, cols, x_scale, w_scale,
           BiasView{bias.data, bias.type}, Matrix<Out>{out.as<Out>(), out.row_stride()}, whole);
  });
}

}  // namespace octet::cuda
