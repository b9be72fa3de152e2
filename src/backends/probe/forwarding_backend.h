// A backend that passes every call on to another: the base of those that look at calls.
#pragma once

#include "ops/backend.h"

namespace octet::probe {

class ForwardingBackend : public ops::Backend {
 public:
  explicit ForwardingBackend(ops::Backend& inner) : inner_(inner) {}

  const ops::BackendInfo& info() const override { return inner_.info(); }
  void enter_thread() override { inner_.enter_thread(); }
  Buffer alloc(size_t bytes, const std::string& what) override { return inner_.alloc(bytes, what); }
  void copy(const Tensor& from, const Tensor& to) override { inner_.copy(from, to); }
  void fill(const Tensor& tensor, uint8_t byte) override { inner_.fill(tensor, byte); }
  Buffer alloc_host(size_t bytes, const std::string& what) override {
    return inner_.alloc_host(bytes, what);
  }
  void sync() override { inner_.sync(); }
  uint64_t record() override { return inner_.record(); }
  void wait(uint64_t point) override { inner_.wait(point); }
  ops::Choice choose(const ops::OpDesc& desc) const override { return inner_.choose(desc); }
  void run_step(uint64_t key, FunctionRef<void()> body) override { inner_.run_step(key, body); }

  void embed(const Tensor& table, const Tensor& tokens, const Tensor& out) override {
    inner_.embed(table, tokens, out);
  }
  void take_tokens(const Tensor& sampled, const Tensor& source, const Tensor& tokens) override {
    inner_.take_tokens(sampled, source, tokens);
  }
  void add(const Tensor& x, const Tensor& y, const Tensor& out) override { inner_.add(x, y, out); }
  void gather_rows(const Tensor& x, const Tensor& rows, const Tensor& out) override {
    inner_.gather_rows(x, rows, out);
  }
  void rms_norm(const Tensor& x, const ops::NormWeight& norm, const ops::Activation& out) override {
    inner_.rms_norm(x, norm, out);
  }
  void add_rms_norm(const Tensor& residual, const Tensor& delta, const ops::NormWeight& norm,
                    const ops::Activation& out) override {
    inner_.add_rms_norm(residual, delta, norm, out);
  }
  void quantize(const Tensor& x, const QuantTensor& out, const Tensor& fixed_scale) override {
    inner_.quantize(x, out, fixed_scale);
  }
  void silu_mul(const Tensor& gate, const Tensor& up, const ops::Activation& out) override {
    inner_.silu_mul(gate, up, out);
  }
  void rope(const Tensor& x, const ops::RopeTable& table, const Tensor& positions) override {
    inner_.rope(x, table, positions);
  }
  void scale_heads(const Tensor& x, const Tensor& factors) override {
    inner_.scale_heads(x, factors);
  }
  void linear(const ops::Activation& x, const ops::Linear& w, const Tensor& out) override {
    inner_.linear(x, w, out);
  }
  void linear_group(const ops::Activation& x, std::span<const ops::Linear* const> ws,
                    std::span<const Tensor> outs) override {
    inner_.linear_group(x, ws, outs);
  }
  void head_linear(const Tensor& x, const ops::Linear& w, const Tensor& out) override {
    inner_.head_linear(x, w, out);
  }
  void kv_write(const Tensor& k, const Tensor& v, const ops::GqaCache& cache,
                const ops::Batch& batch) override {
    inner_.kv_write(k, v, cache, batch);
  }
  void attention(const Tensor& q, const ops::GqaCache& cache, const ops::Batch& batch,
                 const ops::AttentionSpec& spec, const Tensor& out, const Tensor& lse) override {
    inner_.attention(q, cache, batch, spec, out, lse);
  }
  void mla_kv_write(const Tensor& latent, const Tensor& k_pe, const ops::MlaCache& cache,
                    const ops::Batch& batch) override {
    inner_.mla_kv_write(latent, k_pe, cache, batch);
  }
  void mla_absorb(const Tensor& q, const ops::Linear& kv_b, int64_t nope,
                  const Tensor& out) override {
    inner_.mla_absorb(q, kv_b, nope, out);
  }
  void mla_attention(const Tensor& q_latent, const Tensor& q_pe, const ops::MlaCache& cache,
                     const ops::Batch& batch, const ops::AttentionSpec& spec, const Tensor& out,
                     const Tensor& lse) override {
    inner_.mla_attention(q_latent, q_pe, cache, batch, spec, out, lse);
  }
  void mla_expand(const Tensor& o_latent, const ops::Linear& kv_b, int64_t nope,
                  const Tensor& out) override {
    inner_.mla_expand(o_latent, kv_b, nope, out);
  }
  void moe_route(const Tensor& logits, const Tensor& bias, const ops::RouterSpec& spec,
                 const ops::Routing& out) override {
    inner_.moe_route(logits, bias, spec, out);
  }
  void moe_experts(const ops::Activation& x, const ops::Routing& routing,
                   std::span<const ops::GatedMlp> experts, const Tensor& out) override {
    inner_.moe_experts(x, routing, experts, out);
  }
  void sample(const Tensor& logits, const Tensor& rows, const ops::LogitEdits& edits,
              const ops::SampleResult& out) override {
    inner_.sample(logits, rows, edits, out);
  }

 protected:
  ops::Backend& inner() const { return inner_; }

 private:
  ops::Backend& inner_;
};

}  // namespace octet::probe
