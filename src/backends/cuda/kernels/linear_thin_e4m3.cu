// E4M3 weights and inputs, without scales inside the sum.
#include "backends/cuda/kernels/linear_thin.cuh"

namespace octet::cuda {

ThinKernel thin_kernel_e4m3_blocked(int columns);  // linear_thin_e4m3_blocked.cu

ThinKernel thin_kernel_e4m3(bool blocked, int columns) {
  constexpr ThinForm form = ThinForm::e4m3;
  if (blocked) return thin_kernel_e4m3_blocked(columns);
  return columns == 1   ? thin::linear_kernel<form, false, 1, thin_warps(1)>
         : columns == 2 ? thin::linear_kernel<form, false, 2, thin_warps(2)>
                        : thin::linear_kernel<form, false, 4, thin_warps(4)>;
}

}  // namespace octet::cuda
