// E4M3 weights and inputs, without scales inside the sum.
#include "backends/cuda/kernels/linear_thin.cuh"

namespace octet::cuda {

ThinKernel thin_kernel_e4m3_blocked(int64_t m);  // linear_thin_e4m3_blocked.cu

ThinKernel thin_kernel_e4m3(bool blocked, int64_t m) {
  constexpr ThinForm form = ThinForm::e4m3;
  if (blocked) return thin_kernel_e4m3_blocked(m);
  return m <= 4    ? thin::linear_kernel<form, false, 1, thin_warps(1)>
         : m <= 8  ? thin::linear_kernel<form, false, 1, thin_warps(8)>
         : m <= 16 ? thin::linear_kernel<form, false, 2, thin_warps(16)>
                   : thin::linear_kernel<form, false, 4, thin_warps(32)>;
}

}  // namespace octet::cuda
