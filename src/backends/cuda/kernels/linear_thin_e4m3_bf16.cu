// E4M3 weights, BF16 inputs.
#include "backends/cuda/kernels/linear_thin.cuh"

namespace octet::cuda {
namespace {

constexpr ThinForm kForm = ThinForm::e4m3_bf16;

template <bool Blocked>
ThinKernel kernel_for(int columns) {
  return columns == 1   ? thin::linear_kernel<kForm, Blocked, 1, thin_warps(1)>
         : columns == 2 ? thin::linear_kernel<kForm, Blocked, 2, thin_warps(2)>
                        : thin::linear_kernel<kForm, Blocked, 4, thin_warps(4)>;
}

}  // namespace

ThinKernel thin_kernel_e4m3_bf16(bool blocked, int columns) {
  return blocked ? kernel_for<true>(columns) : kernel_for<false>(columns);
}

}  // namespace octet::cuda
