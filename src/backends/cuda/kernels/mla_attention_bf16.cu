// MLA kernels for BF16 activations and rope parts: over FP8 caches (codes are BF16 values) and over
// BF16 caches.
#include "backends/cuda/kernels/attention_mla.cuh"

namespace octet::cuda {

using bf16 = __nv_bfloat16;
template void launch_mla_split<bf16, bf16, 1>(const KernelContext&, const MlaParams&);
template void launch_mla_chunk<bf16, bf16, 1>(const KernelContext&, const MlaParams&);
template void launch_mla_split<bf16, bf16, 2>(const KernelContext&, const MlaParams&);
template void launch_mla_chunk<bf16, bf16, 2>(const KernelContext&, const MlaParams&);

}  // namespace octet::cuda
