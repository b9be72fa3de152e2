// E4M3 weights and inputs, where one of them has a scale for each 128 of k.
#include "backends/cuda/kernels/linear_thin.cuh"

namespace octet::cuda {

ThinKernel thin_kernel_e4m3_blocked(int64_t m) {
  constexpr ThinForm form = ThinForm::e4m3;
  return m <= 4    ? thin::linear_kernel<form, true, 1, thin_warps(1)>
         : m <= 8  ? thin::linear_kernel<form, true, 1, thin_warps(8)>
         : m <= 16 ? thin::linear_kernel<form, true, 2, thin_warps(16)>
                   : thin::linear_kernel<form, true, 4, thin_warps(32)>;
}

}  // namespace octet::cuda
