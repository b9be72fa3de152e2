// The ops that have one CPU implementation each, shared by all kernel sets. See ops/backend.h for
// what they compute.
#pragma once

#include "backends/cpu/kernels/kernel.h"

namespace octet::cpu {

// kernels/exact_elementwise.cpp
void embed(const KernelContext&, const Tensor& table, const Tensor& tokens, const Tensor& out);
void add(const KernelContext&, const Tensor& x, const Tensor& y, const Tensor& out);
void gather_rows(const KernelContext&, const Tensor& x, const Tensor& rows, const Tensor& out);
void rms_norm(const KernelContext&, const Tensor& x, const ops::NormWeight& norm,
              const ops::Activation& out);
void silu_mul(const KernelContext&, const Tensor& gate, const Tensor& up,
              const ops::Activation& out);
void rope(const KernelContext&, const Tensor& x, const ops::RopeTable& table,
          const Tensor& positions);
void scale_heads(const KernelContext&, const Tensor& x, const Tensor& factors);

// kernels/exact_kv.cpp
void kv_write(const KernelContext&, const Tensor& k, const Tensor& v, const ops::GqaCache& cache,
              const ops::Batch& batch);
void mla_kv_write(const KernelContext&, const Tensor& latent, const Tensor& k_pe,
                  const ops::MlaCache& cache, const ops::Batch& batch);

// kernels/exact_mla_linear.cpp
void mla_absorb(const KernelContext&, const Tensor& q, const ops::Linear& kv_b, int64_t nope,
                const Tensor& out);
void mla_expand(const KernelContext&, const Tensor& o_latent, const ops::Linear& kv_b, int64_t nope,
                const Tensor& out);

// kernels/exact_router.cpp
void moe_route(const KernelContext&, const Tensor& logits, const Tensor& bias,
               const ops::RouterSpec& spec, const ops::Routing& out);

// kernels/exact_sample.cpp
void sample(const KernelContext&, const Tensor& logits, const Tensor& rows,
            const ops::LogitEdits& edits, const ops::SampleResult& out);

}  // namespace octet::cpu
