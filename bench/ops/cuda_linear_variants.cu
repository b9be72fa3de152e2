#include "backends/cuda/kernels/linear_thin.cuh"
#include "cuda_linear_variants.h"

namespace octet::cuda {
namespace {

template <int Warps>
ThinKernel kernel_for(int columns) {
  constexpr ThinForm form = ThinForm::e4m3;
  return columns == 1   ? thin::linear_kernel<form, false, 1, Warps>
         : columns == 2 ? thin::linear_kernel<form, false, 2, Warps>
                        : thin::linear_kernel<form, false, 4, Warps>;
}

}  // namespace

ThinKernel thin_variant(int warps, int columns) {
  return warps == 4   ? kernel_for<4>(columns)
         : warps == 8 ? kernel_for<8>(columns)
                      : kernel_for<16>(columns);
}

}  // namespace octet::cuda
