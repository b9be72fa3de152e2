// A backend that computes nothing. A step that runs on it with a measuring arena tells how much
// memory the step needs, to the byte, without a device and without touching memory. Tests derive
// from it the backends that compute only what they look at.
#pragma once

#include "ops/backend.h"

namespace octet::ops {

// A tensor at an address that nobody may touch: inputs of a step that is only looked at.
inline Tensor nowhere(DType type, Shape shape, Device device = {}) {
  constexpr uintptr_t address = 4096;
  return Tensor(reinterpret_cast<void*>(address), type, shape, device);
}

class NullBackend : public Backend {
 public:
  explicit NullBackend(Device device = {}) {
    info_.name = "null";
    info_.device = device;
  }

  const BackendInfo& info() const override { return info_; }
  Buffer alloc(size_t bytes, const std::string&) override {
    return Buffer(nowhere(DType::u8, {0}).data, bytes, info_.device, nullptr);
  }
  void copy(const Tensor&, const Tensor&) override {}
  void fill(const Tensor&, uint8_t) override {}
  void sync() override {}
  Choice choose(const OpDesc&) const override { return {}; }

  void embed(const Tensor&, const Tensor&, const Tensor&) override {}
  void take_tokens(const Tensor&, const Tensor&, const Tensor&) override {}
  void add(const Tensor&, const Tensor&, const Tensor&) override {}
  void gather_rows(const Tensor&, const Tensor&, const Tensor&) override {}
  void rms_norm(const Tensor&, const NormWeight&, const Activation&) override {}
  void quantize(const Tensor&, const QuantTensor&, const Tensor&) override {}
  void silu_mul(const Tensor&, const Tensor&, const Activation&) override {}
  void rope(const Tensor&, const RopeTable&, const Tensor&) override {}
  void scale_heads(const Tensor&, const Tensor&) override {}
  void linear(const Activation&, const Linear&, const Tensor&) override {}
  void head_linear(const Tensor&, const Linear&, const Tensor&) override {}
  void kv_write(const Tensor&, const Tensor&, const GqaCache&, const Batch&) override {}
  void attention(const Tensor&, const GqaCache&, const Batch&, const AttentionSpec&, const Tensor&,
                 const Tensor&) override {}
  void mla_kv_write(const Tensor&, const Tensor&, const MlaCache&, const Batch&) override {}
  void mla_absorb(const Tensor&, const Linear&, int64_t, const Tensor&) override {}
  void mla_attention(const Tensor&, const Tensor&, const MlaCache&, const Batch&,
                     const AttentionSpec&, const Tensor&, const Tensor&) override {}
  void mla_expand(const Tensor&, const Linear&, int64_t, const Tensor&) override {}
  void moe_route(const Tensor&, const Tensor&, const RouterSpec&, const Routing&) override {}
  void moe_experts(const Activation&, const Routing&, std::span<const GatedMlp>,
                   const Tensor&) override {}
  void sample(const Tensor&, const Tensor&, const LogitEdits&, const SampleResult&) override {}

 private:
  BackendInfo info_;
};

}  // namespace octet::ops
