// Products with a weight matrix, in any mix of plain and quantized operands: what linear, the
// experts and MLA's per-head matrices share.
#pragma once

#include "backends/cpu/kernels/exact_loops.h"
#include "backends/cpu/kernels/kernel.h"
#include "backends/cpu/kernels/load.h"

namespace octet::cpu {

// Turns rows of a plain or quantized matrix into segments of floats. Codes become their exact
// values; scales stay apart, so that products of codes are summed before they are scaled.
class RowDecoder {
 public:
  // Exactly one of the two is present.
  RowDecoder(const Tensor& plain, const QuantTensor& quant);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  // Columns that share a scale; 0 if a row has one scale, or none.
  int64_t scale_step() const { return step_; }

  // Writes `count` rows from `first`: values [count, segments.stride()], padded with zeros; scales
  // [count, segments.count] unless null (it may be null iff scale_step() is 0); and the scale of
  // the whole row, 1 where segments have their own.
  void decode(const Segments& segments, int64_t first, int64_t count, float* values, float* scales,
              float* row_scales) const;
  // One row, dequantized: each value rounded once to FP32.
  void dequantize(int64_t row, float* values) const;

 private:
  Tensor matrix_;  // codes or plain values
  std::optional<ScaleView> scales_;
  int64_t rows_, cols_, step_ = 0, row_bytes_;
};

// Activations in decoded form.
struct DecodedRows {
  const float* values;
  const float* scales;  // or null
  const float* row_scales;
  int64_t rows;
};

// Floats of scratch that multiply_range wants for `columns` outputs at a time.
int64_t multiply_scratch(const Segments& segments, int64_t columns);

// out[:, j] = ((x · w_jᵀ) * row scale of w_j) * row scale of x (+ bias[j]) for j in [begin, end),
// as columns [begin - origin, end - origin) of `out`, rounded once. On the calling thread.
void multiply_range(const Segments& segments, const DecodedRows& x, const RowDecoder& w,
                    const Tensor& bias, int64_t begin, int64_t end, int64_t origin, int64_t columns,
                    float* scratch, const Tensor& out);

// The exact kernel of a linear; x is in the form that w wants. Uses scratch slots 0 and 1.
void exact_linear(const KernelContext& context, const ops::Activation& x, const ops::Linear& w,
                  const Tensor& out);

}  // namespace octet::cpu
