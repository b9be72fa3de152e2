// A backend that computes nothing and writes down what it is asked for: the ops of a step, with the
// bytes that each must move. For listings; device memory is never touched.
#pragma once

#include <string>
#include <vector>

#include "ops/null_backend.h"

namespace octet::ops {

// One call of the seam.
struct LoggedOp {
  std::string op;                    // "add_rms_norm"
  std::vector<std::string> modules;  // of its linears: "model.layers.0.mlp.gate_proj"
  std::vector<OpDesc> linears;       // what chooses the kernels, for those of `modules`
  int64_t weight_bytes = 0;          // weights and scales
  int64_t cache_bytes = 0;           // of the KV cache, read or written
  int64_t activation_bytes = 0;      // all else: each tensor once, read or written
  int64_t bytes() const { return weight_bytes + cache_bytes + activation_bytes; }
};

class OpLog final : public NullBackend {
 public:
  // `context`: tokens that a sequence of the step has in the cache.
  OpLog(Device device, int64_t context) : NullBackend(device), context_(context) {}

  const std::vector<LoggedOp>& ops() const { return ops_; }

  void embed(const Tensor& table, const Tensor& tokens, const Tensor& out) override;
  void take_tokens(const Tensor& sampled, const Tensor& source, const Tensor& tokens) override;
  void add(const Tensor& x, const Tensor& y, const Tensor& out) override;
  void gather_rows(const Tensor& x, const Tensor& rows, const Tensor& out) override;
  void rms_norm(const Tensor& x, const NormWeight& norm, const Activation& out) override;
  void add_rms_norm(const Tensor& residual, const Tensor& delta, const NormWeight& norm,
                    const Activation& out) override;
  void quantize(const Tensor& x, const QuantTensor& out, const Tensor& fixed_scale) override;
  void silu_mul(const Tensor& gate, const Tensor& up, const Activation& out) override;
  void rope(const Tensor& x, const RopeTable& table, const Tensor& positions) override;
  void scale_heads(const Tensor& x, const Tensor& factors) override;
  void linear(const Activation& x, const Linear& w, const Tensor& out) override;
  void linear_group(const Activation& x, std::span<const Linear* const> ws,
                    std::span<const Tensor> outs) override;
  void head_linear(const Tensor& x, const Linear& w, const Tensor& out) override;
  void kv_write(const Tensor& k, const Tensor& v, const GqaCache& cache,
                const Batch& batch) override;
  void rope_kv_write(const Tensor& q, const Tensor& k, const Tensor& v, const RopeTable& table,
                     const GqaCache& cache, const Batch& batch) override;
  void attention(const Tensor& q, const GqaCache& cache, const Batch& batch,
                 const AttentionSpec& spec, const Tensor& out, const Tensor& lse) override;
  void mla_kv_write(const Tensor& latent, const Tensor& k_pe, const MlaCache& cache,
                    const Batch& batch) override;
  void mla_absorb(const Tensor& q, const Linear& kv_b, int64_t nope, const Tensor& out) override;
  void mla_attention(const Tensor& q_latent, const Tensor& q_pe, const MlaCache& cache,
                     const Batch& batch, const AttentionSpec& spec, const Tensor& out,
                     const Tensor& lse) override;
  void mla_expand(const Tensor& o_latent, const Linear& kv_b, int64_t nope,
                  const Tensor& out) override;
  void moe_route(const Tensor& logits, const Tensor& bias, const RouterSpec& spec,
                 const Routing& out) override;
  void moe_experts(const Activation& x, const Routing& routing, std::span<const GatedMlp> experts,
                   const Tensor& out) override;
  void sample(const Tensor& logits, const Tensor& rows, const LogitEdits& edits,
              const SampleResult& out) override;

 private:
  LoggedOp& log(std::string op, int64_t activation_bytes);
  int64_t context_;
  std::vector<LoggedOp> ops_;
};

}  // namespace octet::ops
