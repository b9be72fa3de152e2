// The reference rows of the tables for linear and the 16-bit head.
#include "backends/cpu/kernels/exact_gemm.h"

namespace octet::cpu {
namespace {

// About 8 GFLOP/s a thread, and a decoded weight every nanosecond.
double estimate_us(const ops::OpDesc& desc, const CpuCaps& caps) {
  const double weights = static_cast<double>(desc.n) * static_cast<double>(desc.k);
  return (weights * 2.0 * static_cast<double>(desc.m) / 8e3 + weights / 1e3) / caps.threads + 5.0;
}

void launch(const KernelContext& context, const ops::Activation& x,
            std::span<const ops::Linear* const> ws, std::span<const Tensor> outs) {
  for (size_t i = 0; i < ws.size(); ++i) exact_linear(context, x, *ws[i], outs[i]);
}

constexpr LinearRow kRows[] = {
    {"exact", "blocks128_lanes16", refuses_nothing, estimate_us, launch},
};

}  // namespace

std::span<const LinearRow> exact_linear_rows() {
  return kRows;
}

}  // namespace octet::cpu
