// The output head: a linear whose weights are 16-bit (or FP32) and whose logits stay FP32. It is
// the largest matrix of a step and the only one that is not FP8, so its bytes are what counts.
#include "backends/cpu/kernels/fast_linear.h"

namespace octet::cpu {
namespace fast {
namespace {

constexpr LinearRow rows[] = {
    {"fast_head_amx", "amx k%32", refuses_amx, estimate_amx, launch_amx},
    {"fast_head_avx512_dot", "dot lanes k%64", refuses_dot, estimate_dot, launch_dot},
    {"fast_head_avx512_fma", "fma lanes k%64", refuses_fma, estimate_fma, launch_fma},
    {"fast_head_portable", "8 lanes", refuses_portable, estimate_portable, launch_portable},
};

}  // namespace
}  // namespace fast

std::span<const LinearRow> fast_head_rows() {
  return fast::rows;
}

}  // namespace octet::cpu
