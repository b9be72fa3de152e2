// What every kernel of an op may take for granted. The backend checks it before a kernel is chosen,
// so that a mismatch is a Fault naming op, shapes and types, whichever kernel would have run.
#pragma once

#include "backends/cpu/kernels/load.h"
#include "ops/kv_layout.h"
#include "ops/op_types.h"

namespace octet::cpu {

// x has the form that w wants.
void check_linear(const char* op, const ops::Activation& x, const ops::Linear& w,
                  const Tensor& out);
void check_attention(const Tensor& q, const ops::GqaCache& cache, const ops::Batch& batch,
                     const Tensor& out, const Tensor& lse);
void check_mla_attention(const Tensor& q_latent, const Tensor& q_pe, const ops::MlaCache& cache,
                         const ops::Batch& batch, const Tensor& out, const Tensor& lse);
// mla_absorb or mla_expand, as `op` says.
void check_mla_product(const char* op, const Tensor& x, const ops::Linear& kv_b, int64_t nope,
                       const Tensor& out);
void check_moe(const ops::Activation& x, const ops::Routing& routing,
               std::span<const ops::GatedMlp> experts, const Tensor& out);

}  // namespace octet::cpu
