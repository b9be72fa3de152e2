// The CPU as a Backend: the default device, and the numerics reference.
//
// Ops run at once, on the calling thread and the pool. Ops of which several kernels exist (linear,
// head_linear, moe_experts, attention, mla_attention) go through the tables of select.h; the others
// have one implementation, whose bits are the reference.
#pragma once

#include <string>
#include <vector>

#include "backends/cpu/select.h"
#include "ops/backend.h"

namespace octet::cpu {

class CpuBackend final : public ops::Backend {
 public:
  // Error if the options ask for kernels that this processor or this build does not have.
  explicit CpuBackend(CpuOptions options = {});

  const ops::BackendInfo& info() const override { return info_; }
  Buffer alloc(size_t bytes, const std::string& what) override;
  void copy(const Tensor& from, const Tensor& to) override;
  void fill(const Tensor& tensor, uint8_t byte) override;
  void sync() override {}
  ops::Choice choose(const ops::OpDesc& desc) const override;

  void embed(const Tensor& table, const Tensor& tokens, const Tensor& out) override;
  void take_tokens(const Tensor& sampled, const Tensor& source, const Tensor& tokens) override;
  void add(const Tensor& x, const Tensor& y, const Tensor& out) override;
  void gather_rows(const Tensor& x, const Tensor& rows, const Tensor& out) override;
  void rms_norm(const Tensor& x, const ops::NormWeight& norm, const ops::Activation& out) override;
  void quantize(const Tensor& x, const QuantTensor& out, const Tensor& fixed_scale) override;
  void silu_mul(const Tensor& gate, const Tensor& up, const ops::Activation& out) override;
  void rope(const Tensor& x, const ops::RopeTable& table, const Tensor& positions) override;
  void scale_heads(const Tensor& x, const Tensor& factors) override;
  void linear(const ops::Activation& x, const ops::Linear& w, const Tensor& out) override;
  void linear_group(const ops::Activation& x, std::span<const ops::Linear* const> ws,
                    std::span<const Tensor> outs) override;
  void head_linear(const Tensor& x, const ops::Linear& w, const Tensor& out) override;
  void kv_write(const Tensor& k, const Tensor& v, const ops::GqaCache& cache,
                const ops::Batch& batch) override;
  void attention(const Tensor& q, const ops::GqaCache& cache, const ops::Batch& batch,
                 const ops::AttentionSpec& spec, const Tensor& out, const Tensor& lse) override;
  void mla_kv_write(const Tensor& latent, const Tensor& k_pe, const ops::MlaCache& cache,
                    const ops::Batch& batch) override;
  void mla_absorb(const Tensor& q, const ops::Linear& kv_b, int64_t nope,
                  const Tensor& out) override;
  void mla_attention(const Tensor& q_latent, const Tensor& q_pe, const ops::MlaCache& cache,
                     const ops::Batch& batch, const ops::AttentionSpec& spec, const Tensor& out,
                     const Tensor& lse) override;
  void mla_expand(const Tensor& o_latent, const ops::Linear& kv_b, int64_t nope,
                  const Tensor& out) override;
  void moe_route(const Tensor& logits, const Tensor& bias, const ops::RouterSpec& spec,
                 const ops::Routing& out) override;
  void moe_experts(const ops::Activation& x, const ops::Routing& routing,
                   std::span<const ops::GatedMlp> experts, const Tensor& out) override;
  void sample(const Tensor& logits, const Tensor& rows, const ops::LogitEdits& edits,
              const ops::SampleResult& out) override;

  // The names of the rows that accept `desc`, in the order of the table: what can be pinned.
  std::vector<std::string> kernels_for(const ops::OpDesc& desc) const;

 private:
  const std::string& pin(const std::string& op) const;
  const LinearRow& row_of(const ops::Activation& x, const ops::Linear& w);

  CpuOptions options_;
  CpuCaps caps_;
  ThreadPool threads_;
  KernelContext context_;
  Tables tables_;
  PickCache<LinearRow> linear_, head_linear_;
  PickCache<MoeRow> moe_;
  PickCache<AttentionRow> attention_;
  PickCache<MlaAttentionRow> mla_attention_;
  PickCache<MlaProductRow> mla_absorb_, mla_expand_;
  ops::BackendInfo info_;
};

}  // namespace octet::cpu
