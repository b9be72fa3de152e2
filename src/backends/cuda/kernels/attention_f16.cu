// GQA kernels for FP8 caches in FP8 mode: all operands are codes, as FP16.
#include "backends/cuda/kernels/attention_gqa_launch.cuh"

namespace octet::cuda {

template void launch_gqa_split<__half, 1>(const KernelContext&, const GqaParams&);
template void launch_gqa_chunk<__half, 1>(const KernelContext&, const GqaParams&);

}  // namespace octet::cuda
