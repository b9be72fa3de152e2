// BF16 weights and inputs: the 16-bit path of the engine and its head.
#include "backends/cuda/kernels/linear_thin.cuh"

namespace octet::cuda {

ThinKernel thin_kernel_bf16(int columns) {
  constexpr ThinForm form = ThinForm::bf16;
  return columns == 1   ? thin::linear_kernel<form, false, 1, thin_warps(1)>
         : columns == 2 ? thin::linear_kernel<form, false, 2, thin_warps(2)>
                        : thin::linear_kernel<form, false, 4, thin_warps(4)>;
}

}  // namespace octet::cuda
