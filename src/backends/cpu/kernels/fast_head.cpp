// The output head: a linear whose weights are 16-bit (or FP32) and whose logits stay FP32. It is
// the largest matrix of a step and the only one that is not FP8, so its bytes are what counts.
#include "backends/cpu/kernels/fast_linear.h"

namespace octet::cpu {
namespace fast {
namespace {

void launch_fma(const KernelContext& context, const ops::Activation& x, const ops::Linear& w,
                const Tensor& out) {
  run_linear(context, fma_kernels(), input_of(x, w), matrix_of(w), output_of(out, w.bias));
}

constexpr LinearRow rows[] = {
    {"fast_head_avx512_fma", "fma lanes k%64", refuses_avx512, estimate_fma, launch_fma},
};

}  // namespace
}  // namespace fast

std::span<const LinearRow> fast_head_rows() {
  return fast::rows;
}

}  // namespace octet::cpu
