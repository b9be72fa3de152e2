// BF16 weights and inputs: the 16-bit path of the engine and its head.
#include "backends/cuda/kernels/linear_thin.cuh"

namespace octet::cuda {

ThinKernel thin_kernel_bf16(int64_t m) {
  constexpr ThinForm form = ThinForm::bf16;
  return m <= 4    ? thin::linear_kernel<form, false, 1, thin_warps(1)>
         : m <= 8  ? thin::linear_kernel<form, false, 1, thin_warps(8)>
         : m <= 16 ? thin::linear_kernel<form, false, 2, thin_warps(16)>
                   : thin::linear_kernel<form, false, 4, thin_warps(32)>;
}

}  // namespace octet::cuda
