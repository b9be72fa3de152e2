// Device code that the kernels of linear_parts.cu and linear_generic.cu share.
#pragma once

#include "backends/cuda/kernels/device_math.cuh"
#include "backends/cuda/kernels/linear_parts.h"

namespace octet::cuda {

// The scale of element (r, c).
__device__ __forceinline__ float scale_at(const ScaleView& view, uint32_t r, uint32_t c) {
  if (!view.data) return 1.0f;
  return view.data[r / view.cell_rows * view.row_stride + c / view.cell_cols * view.col_stride];
}

// An optional vector of any float type.
struct BiasView {
  const void* data;
  DType type;
  __device__ __forceinline__ float at(int64_t i) const {
    if (!data) return 0.0f;
    if (type == DType::f32) return static_cast<const float*>(data)[i];
    if (type == DType::bf16) return to_float(static_cast<const __nv_bfloat16*>(data)[i]);
    return to_float(static_cast<const __half*>(data)[i]);
  }
};

}  // namespace octet::cuda
