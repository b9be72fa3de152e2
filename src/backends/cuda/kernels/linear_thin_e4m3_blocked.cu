// E4M3 weights and inputs, where one of them has a scale for each 128 of k.
#include "backends/cuda/kernels/linear_thin.cuh"

namespace octet::cuda {

ThinKernel thin_kernel_e4m3_blocked(int columns) {
  constexpr ThinForm form = ThinForm::e4m3;
  return columns == 1   ? thin::linear_kernel<form, true, 1, thin_warps(1)>
         : columns == 2 ? thin::linear_kernel<form, true, 2, thin_warps(2)>
                        : thin::linear_kernel<form, true, 4, thin_warps(4)>;
}

}  // namespace octet::cuda
