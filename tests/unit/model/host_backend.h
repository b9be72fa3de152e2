// A backend whose memory is the host's and whose operations do nothing: enough to bind weights.
#pragma once

#include <cstring>

#include "ops/backend.h"

namespace octet::test {

class HostBackend : public ops::Backend {
 public:
  // With another device, as if the weights had to be copied to it.
  explicit HostBackend(Device device = {}) {
    info_.name = "host";
    info_.device = device;
  }

  const ops::BackendInfo& info() const override { return info_; }
  Buffer alloc(size_t bytes, const std::string&) override { return host_buffer(bytes); }
  void copy(const Tensor& from, const Tensor& to) override {
    invariant(from.type == to.type && from.shape == to.shape, "copy: unlike tensors");
    std::memcpy(to.data, from.data, static_cast<size_t>(from.bytes()));
    copied_ += from.bytes();
  }
  void fill(const Tensor& tensor, uint8_t byte) override {
    std::memset(tensor.data, byte, static_cast<size_t>(tensor.bytes()));
  }
  void sync() override {}
  ops::Choice choose(const ops::OpDesc&) const override { return {}; }

  void embed(const Tensor&, const Tensor&, const Tensor&) override {}
  void add(const Tensor&, const Tensor&, const Tensor&) override {}
  void gather_rows(const Tensor&, const Tensor&, const Tensor&) override {}
  void rms_norm(const Tensor&, const ops::NormWeight&, const ops::Activation&) override {}
  void quantize(const Tensor&, const QuantTensor&, const Tensor&) override {}
  void silu_mul(const Tensor&, const Tensor&, const ops::Activation&) override {}
  void rope(const Tensor&, const ops::RopeTable&, const Tensor&) override {}
  void linear(const ops::Activation&, const ops::Linear&, const Tensor&) override {}
  void head_linear(const Tensor&, const ops::Linear&, const Tensor&) override {}
  void kv_write(const Tensor&, const Tensor&, const ops::GqaCache&, const ops::Batch&) override {}
  void attention(const Tensor&, const ops::GqaCache&, const ops::Batch&, const ops::AttentionSpec&,
                 const Tensor&, const Tensor&) override {}
  void mla_kv_write(const Tensor&, const Tensor&, const ops::MlaCache&,
                    const ops::Batch&) override {}
  void mla_absorb(const Tensor&, const ops::Linear&, int64_t, const Tensor&) override {}
  void mla_attention(const Tensor&, const Tensor&, const ops::MlaCache&, const ops::Batch&,
                     const ops::AttentionSpec&, const Tensor&, const Tensor&) override {}
  void mla_expand(const Tensor&, const ops::Linear&, int64_t, const Tensor&) override {}
  void moe_route(const Tensor&, const Tensor&, const ops::RouterSpec&,
                 const ops::Routing&) override {}
  void moe_experts(const ops::Activation&, const ops::Routing&, std::span<const ops::GatedMlp>,
                   const Tensor&) override {}
  void sample(const Tensor&, std::span<const ops::SampleRow>, const ops::SampleResult&) override {}

  int64_t copied() const { return copied_; }

 private:
  ops::BackendInfo info_;
  int64_t copied_ = 0;
};

}  // namespace octet::test
