// The launches, one for each op of ops::Backend; see there for shapes and meaning. Files:
//
//   elementwise.cu  embed, take_tokens, add, gather_rows, silu_mul
//   norm.cu         rms_norm, add_rms_norm
//   quantize.cu     quantize
//   rope_kv.cu      rope, kv_write, rope_kv_write, mla_kv_write
//   attention*.cu   attention, mla_attention, and the MLA products
//   moe*.cu         moe_route, moe_experts
//   sample.cu       sample
//   linear*.cu      the rows of the table in select.h
#pragma once

#include "backends/cuda/kernels/context.h"

namespace octet::cuda {

void embed(const KernelContext&, const Tensor& table, const Tensor& tokens, const Tensor& out);
void take_tokens(const KernelContext&, const Tensor& sampled, const Tensor& source,
                 const Tensor& tokens);
void add(const KernelContext&, const Tensor& x, const Tensor& y, const Tensor& out);
void gather_rows(const KernelContext&, const Tensor& x, const Tensor& rows, const Tensor& out);
void silu_mul(const KernelContext&, const Tensor& gate, const Tensor& up,
              const ops::Activation& out);

void rms_norm(const KernelContext&, const Tensor& x, const ops::NormWeight& norm,
              const ops::Activation& out);
void add_rms_norm(const KernelContext&, const Tensor& residual, const Tensor& delta,
                  const ops::NormWeight& norm, const ops::Activation& out);

void quantize(const KernelContext&, const Tensor& x, const QuantTensor& out,
              const Tensor& fixed_scale);

void rope(const KernelContext&, const Tensor& x, const ops::RopeTable& table,
          const Tensor& positions);
void kv_write(const KernelContext&, const Tensor& k, const Tensor& v, const ops::GqaCache& cache,
              const ops::Batch& batch);
void rope_kv_write(const KernelContext&, const Tensor& q, const Tensor& k, const Tensor& v,
                   const ops::RopeTable& table, const ops::GqaCache& cache,
                   const ops::Batch& batch);
void mla_kv_write(const KernelContext&, const Tensor& latent, const Tensor& k_pe,
                  const ops::MlaCache& cache, const ops::Batch& batch);

void attention(const KernelContext&, const Tensor& q, const ops::GqaCache& cache,
               const ops::Batch& batch, const ops::AttentionSpec& spec, const Tensor& out,
               const Tensor& lse);
// All of Backend::rope_kv_attention in one launch; false, and nothing is done, where there is no
// kernel for it.
bool rope_kv_attention(const KernelContext&, const Tensor& q, const Tensor& k, const Tensor& v,
                       const ops::RopeTable& table, const ops::GqaCache& cache,
                       const ops::Batch& batch, const ops::AttentionSpec& spec, const Tensor& out,
                       const Tensor& lse);
void mla_absorb(const KernelContext&, const Tensor& q, const ops::Linear& kv_b, int64_t nope,
                const Tensor& out);
void mla_attention(const KernelContext&, const Tensor& q_latent, const Tensor& q_pe,
                   const ops::MlaCache& cache, const ops::Batch& batch,
                   const ops::AttentionSpec& spec, const Tensor& out, const Tensor& lse);
void mla_expand(const KernelContext&, const Tensor& o_latent, const ops::Linear& kv_b, int64_t nope,
                const Tensor& out);

void moe_route(const KernelContext&, const Tensor& logits, const Tensor& bias,
               const ops::RouterSpec& spec, const ops::Routing& out);
// `experts`: the table of expert_table.h, on the device.
struct ExpertTable;
void moe_experts(const KernelContext&, const ops::Activation& x, const ops::Routing& routing,
                 const ExpertTable& experts, const Tensor& out);

void sample(const KernelContext&, const Tensor& logits, const Tensor& rows,
            const ops::LogitEdits& edits, const ops::SampleResult& out);

}  // namespace octet::cuda
