// One scale for a row of W and a row of x, or one for all.
#include "backends/cuda/kernels/linear_wgmma.cuh"

namespace octet::cuda {

WgmmaKernel wgmma_kernel(int columns, int halves) {
  return halves == 1 ? wgmma::kernel_for<1, false>(columns) : wgmma::kernel_for<2, false>(columns);
}

}  // namespace octet::cuda
