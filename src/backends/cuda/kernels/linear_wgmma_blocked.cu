// W or x has a scale for each 128 of k.
#include "backends/cuda/kernels/linear_wgmma.cuh"

namespace octet::cuda {

WgmmaKernel wgmma_kernel_blocked(int columns, int halves) {
  return halves == 1 ? wgmma::kernel_for<1, true>(columns) : wgmma::kernel_for<2, true>(columns);
}

}  // namespace octet::cuda
