// MLA kernels for all else, by plain FMAs.
#include "backends/cuda/kernels/attention_mla.cuh"

namespace octet::cuda {

template void launch_mla_split<float, float, 0>(const KernelContext&, const MlaParams&);
template void launch_mla_chunk<float, float, 0>(const KernelContext&, const MlaParams&);

}  // namespace octet::cuda
