// What linears of few rows do with a sum, whatever multiplied: the outputs of several weights lie
// in tiles, one weight's behind another's. `Args` has matrix[] with first_tile, n, scale and bias,
// and how they are stored (ThinArgs, WgmmaArgs).
#pragma once

#include "backends/cuda/kernels/device_math.cuh"

namespace octet::cuda {

// The weight that a tile belongs to.
template <typename Args>
__device__ __forceinline__ int matrix_of(const Args& a, int tile) {
  int i = 0;
  while (i + 1 < a.matrices && tile >= a.matrix[i + 1].first_tile) ++i;
  return i;
}

// What an output needs beside its sum: its scale and bias.
struct OutputConstants {
  float scale = 1.0f, bias = 0.0f;
};

// Those of output n of a weight; the defaults behind the last output.
template <typename Args>
__device__ __forceinline__ OutputConstants output_constants(const Args& a, int matrix, int n) {
  const auto& w = a.matrix[matrix];
  OutputConstants constants;
  if (n >= w.n) return constants;
  if (w.scale && !a.w_blocked) {
    constants.scale = w.scale[static_cast<uint32_t>(n) / a.w_cell_rows * a.w_scale_row];
  }
  if (w.bias) {
    constants.bias = a.bias_bf16  ? to_float(static_cast<const __nv_bfloat16*>(w.bias)[n])
                     : a.bias_f16 ? to_float(static_cast<const __half*>(w.bias)[n])
                                  : static_cast<const float*>(w.bias)[n];
  }
  return constants;
}

}  // namespace octet::cuda
