// E4M3 weights and inputs, multiplied as codes.
#include "backends/cuda/kernels/linear_thin.cuh"

namespace octet::cuda {
namespace {

template <ThinTask Task>
ThinKernel kernel_for(int64_t m) {
  constexpr ThinForm form = ThinForm::e4m3_wgmma;
  return m <= 1   ? thin::linear_kernel<form, false, 1, kThinCodesWarps, Task>
         : m <= 2 ? thin::linear_kernel<form, false, 2, kThinCodesWarps, Task>
                  : thin::linear_kernel<form, false, kThinCodesRows, kThinCodesWarps, Task>;
}

}  // namespace

ThinKernel thin_kernel_e4m3_wgmma(ThinTask task, int64_t m) {
  switch (task) {
    case ThinTask::norm:
      return kernel_for<ThinTask::norm>(m);
    case ThinTask::norm_gated:
      return kernel_for<ThinTask::norm_gated>(m);
    case ThinTask::held:
      return kernel_for<ThinTask::held>(m);
    case ThinTask::hidden:
      return kernel_for<ThinTask::hidden>(m);
    default:
      return kernel_for<ThinTask::any>(m);
  }
}

}  // namespace octet::cuda
