// The tables of linear kernels that select.cpp joins, each in its own file.
//
//   thin       linear_thin*.cu       few rows: as fast as the weights can be read
//   thin_codes linear_thin*.cu       the same for FP8 by FP8, codes multiplied as they are
//   wgmma      linear_wgmma*.cu      FP8 by FP8, up to 64 rows: the same by the FP8 tensor core
//   cublaslt   linear_cublaslt.cpp   many rows: the library's tensor-core kernels
//   generic    linear_generic.cu     every problem, slowly: so that the table is never empty
#pragma once

#include <span>

#include "backends/cuda/select.h"

namespace octet::cuda {

std::span<const LinearRow> thin_rows();
std::span<const LinearRow> thin_head_rows();
std::span<const LinearRow> wgmma_rows();
std::span<const LinearRow> cublaslt_rows();
std::span<const LinearRow> cublaslt_head_rows();
std::span<const LinearRow> generic_rows();
std::span<const LinearRow> generic_head_rows();

}  // namespace octet::cuda
