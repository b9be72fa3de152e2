// MLA's two small products a head with the halves of kv_b, on AVX-512 and AMX: see
// Backend::mla_absorb and Backend::mla_expand.
#pragma once

#include <optional>
#include <string>

#include "backends/cpu/kernels/kernel.h"

namespace octet::cpu {

// One of the two: x of each head times the head's half of kv_b.
struct MlaProduct {
  const ops::Linear& kv_b;
  Tensor x, out;                   // [T, heads, inner or more], [T, heads, outputs]
  int64_t inner = 0, outputs = 0;  // terms of a sum, sums a head
  int64_t head_rows = 0;           // rows of kv_b a head: nope + v
  int64_t first_row = 0;           // of this half within a head's rows
  bool expands = false;            // expand multiplies by rows of kv_b, absorb by its columns
};

// Throw Fault where the shapes do not fit together.
MlaProduct absorb_product(const Tensor& q, const ops::Linear& kv_b, int64_t nope,
                          const Tensor& out);
MlaProduct expand_product(const Tensor& o_latent, const ops::Linear& kv_b, int64_t nope,
                          const Tensor& out);

// Why the two below cannot run on this processor with these types; nullopt if they can.
std::optional<std::string> fast_mla_absorb_refuses(const Tensor& activation,
                                                   const ops::Linear& kv_b, const CpuCaps& caps);

// All sums are one FP32 chain of fused multiply-adds an output, in ascending order of the inner
// dimension, over weights dequantized to FP32 (code times scale, rounded once) and activations as
// they are: a row's bits depend on that row alone.
void fast_mla_absorb(const KernelContext& context, const Tensor& q, const ops::Linear& kv_b,
                     int64_t nope, const Tensor& out);
void fast_mla_expand(const KernelContext& context, const Tensor& o_latent, const ops::Linear& kv_b,
                     int64_t nope, const Tensor& out);

// The same by AMX, for BF16 activations and weights that BF16 holds exactly. Sums grow over
// ascending pairs of the inner dimension, in the order of tdpbf16ps; scales multiply x (absorb) or
// the sums of a cell (expand). A row's bits depend on that row alone.
std::optional<std::string> amx_mla_absorb_refuses(const ops::OpDesc& desc, const CpuCaps& caps);
void amx_mla_absorb(const KernelContext& context, const Tensor& q, const ops::Linear& kv_b,
                    int64_t nope, const Tensor& out);
void amx_mla_expand(const KernelContext& context, const Tensor& o_latent, const ops::Linear& kv_b,
                    int64_t nope, const Tensor& out);

}  // namespace octet::cpu
