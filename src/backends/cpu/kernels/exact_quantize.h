// Quantizing activations: the rule of numerics/quantize.h, in loops that vectorize, for every grid.
#pragma once

#include "backends/cpu/kernels/kernel.h"
#include "backends/cpu/kernels/load.h"

namespace octet::cpu {

// The absmax over the finite ones of n values, at least `so_far`.
float row_absmax(const float* x, int64_t n, float so_far = 0.0f);
// codes[i] = quantize_value(x[i], inv).
void encode_row(Code type, const float* x, int64_t n, float inv, uint8_t* codes);

// One row of a matrix whose scales do not reach beyond a row (grid.rows == 1).
void quantize_row(const float* x, const QuantTensor& out, int64_t row);

// Backend::quantize.
void quantize(const KernelContext& context, const Tensor& x, const QuantTensor& out,
              const Tensor& fixed_scale);

// Where an op that produces activations puts its FP32 results: in every form that `out` has. Codes
// are rounded from the FP32 values, not from the plain form: once. Rows may be written by several
// threads at once. Uses scratch slot 2 when scales reach over several rows.
class ActivationWriter {
 public:
  // `op` names the op in Faults.
  ActivationWriter(const KernelContext& context, const char* op, const ops::Activation& out,
                   int64_t rows, int64_t cols);
  // The row's place to compute in, when there is one that must be used; else null.
  float* row_buffer(int64_t row) const { return whole_ ? whole_ + row * cols_ : nullptr; }
  void write(int64_t row, const float* values) const;
  void finish() const;  // after all rows

 private:
  const KernelContext& context_;
  const ops::Activation& out_;
  int64_t rows_, cols_;
  float* whole_ = nullptr;  // f32 [rows, cols], only if scales reach over several rows
};

}  // namespace octet::cpu
