// GQA kernels for BF16 activations: over FP8 caches (codes are BF16 values) and over BF16 caches.
#include "backends/cuda/kernels/attention_gqa_launch.cuh"

namespace octet::cuda {

template void launch_gqa_split<__nv_bfloat16, 1>(const KernelContext&, const GqaParams&);
template void launch_gqa_chunk<__nv_bfloat16, 1>(const KernelContext&, const GqaParams&);
template void launch_gqa_split<__nv_bfloat16, 2>(const KernelContext&, const GqaParams&);
template void launch_gqa_chunk<__nv_bfloat16, 2>(const KernelContext&, const GqaParams&);

}  // namespace octet::cuda
