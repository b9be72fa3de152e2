// MLA kernels for FP8 caches in FP8 mode with a BF16 rope part: latents and P are codes, as FP16.
#include "backends/cuda/kernels/attention_mla.cuh"

namespace octet::cuda {

template void launch_mla_split<__half, __nv_bfloat16, 1>(const KernelContext&, const MlaParams&);
template void launch_mla_chunk<__half, __nv_bfloat16, 1>(const KernelContext&, const MlaParams&);

}  // namespace octet::cuda
