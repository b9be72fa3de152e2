// E4M3 weights, BF16 inputs.
#include "backends/cuda/kernels/linear_thin.cuh"

namespace octet::cuda {
namespace {

constexpr ThinForm kForm = ThinForm::e4m3_bf16;

template <bool Blocked>
ThinKernel kernel_for(int64_t m) {
  return m <= 4    ? thin::linear_kernel<kForm, Blocked, 1, thin_warps(1)>
         : m <= 8  ? thin::linear_kernel<kForm, Blocked, 1, thin_warps(8)>
         : m <= 16 ? thin::linear_kernel<kForm, Blocked, 2, thin_warps(16)>
                   : thin::linear_kernel<kForm, Blocked, 4, thin_warps(32)>;
}

}  // namespace

ThinKernel thin_kernel_e4m3_bf16(bool blocked, int64_t m) {
  return blocked ? kernel_for<true>(m) : kernel_for<false>(m);
}

}  // namespace octet::cuda
