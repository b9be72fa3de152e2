// Kernels of linear_thin.cuh with another number of warps than the engine uses, to compare.
#pragma once

#include "backends/cuda/kernels/linear_thin.h"

namespace octet::cuda {

// E4M3 by channel and token; warps 4, 8 or 16, columns 1, 2 or 4.
ThinKernel thin_variant(int warps, int columns);

}  // namespace octet::cuda
