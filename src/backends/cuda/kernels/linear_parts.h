// What the linears of many rows share: checks, the form of the input, scales by position, and the
// small kernels before and after a product.
#pragma once

#include "backends/cuda/kernels/context.h"

namespace octet::cuda {

// Fault, naming op, shapes and types, unless they fit; x has the form that w wants.
void check_linear(const ops::Activation& x, const ops::Linear& w, const Tensor& out);

// x in the form that w wants: as given if it has it, else x.plain is quantized into the workspace
// at `offset`, which moves behind it. There is memory behind the last row, up to row `room`, then.
// Fault if the form that is needed is absent.
ops::Activation linear_input(const KernelContext& context, size_t& offset, const ops::Activation& x,
                             const ops::Linear& w, int64_t room);

// The scales of a [rows, cols] matrix by position, whatever their strides.
struct ScaleView {
  const float* data = nullptr;                // null: all are 1
  int64_t row_stride = 0, col_stride = 0;     // floats from a cell to the next
  uint32_t cell_rows = ~0u, cell_cols = ~0u;  // elements that share a scale
};
ScaleView scale_view(const QuantTensor& q);

// The first [rows, cols] cells of `from` into another order of memory: cell (r, c) goes to
// to[r * row_pitch + c * col_pitch].
void pack_scales(const KernelContext& context, const ScaleView& from, int64_t rows, int64_t cols,
                 float* to, int64_t row_pitch, int64_t col_pitch);

// out[r, c] = sums[r, c] · w_scale[c] · x_scale[r] (+ bias[c]), rounded once, for f32 sums
// [out.rows, out.cols], contiguous. Scales are one a row of their matrix, one in all, or absent.
void finish_linear(const KernelContext& context, const float* sums, const ScaleView& x_scale,
                   const ScaleView& w_scale, const Tensor& bias, const Tensor& out);

}  // namespace octet::cuda
