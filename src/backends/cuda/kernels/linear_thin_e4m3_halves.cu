// E4M3 weights and inputs, for few rows of inputs.
#include "backends/cuda/kernels/linear_thin.cuh"

namespace octet::cuda {

ThinKernel thin_kernel_e4m3_halves(bool blocked) {
  constexpr ThinForm form = ThinForm::e4m3_halves;
  constexpr int warps = thin_warps(kThinHalvesRows);
  return blocked ? thin::linear_kernel<form, true, 1, warps>
                 : thin::linear_kernel<form, false, 1, warps>;
}

}  // namespace octet::cuda
