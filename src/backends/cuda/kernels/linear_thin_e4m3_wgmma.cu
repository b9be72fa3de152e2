// E4M3 weights and inputs, multiplied as codes.
#include "backends/cuda/kernels/linear_thin.cuh"

namespace octet::cuda {

ThinKernel thin_kernel_e4m3_wgmma(int64_t m) {
  constexpr ThinForm form = ThinForm::e4m3_wgmma;
  return m <= 1   ? thin::linear_kernel<form, false, 1, kThinCodesWarps>
         : m <= 2 ? thin::linear_kernel<form, false, 2, kThinCodesWarps>
                  : thin::linear_kernel<form, false, kThinCodesRows, kThinCodesWarps>;
}

}  // namespace octet::cuda
