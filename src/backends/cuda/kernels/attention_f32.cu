// GQA kernels for FP32 activations or caches: plain FMAs.
#include "backends/cuda/kernels/attention_gqa_launch.cuh"

namespace octet::cuda {

template void launch_gqa_split<float, 0>(const KernelContext&, const GqaParams&);
template void launch_gqa_chunk<float, 0>(const KernelContext&, const GqaParams&);

}  // namespace octet::cuda
