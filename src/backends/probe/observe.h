// Looks at what enters the linears of a model while it computes: how calibration sees activations.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "backends/probe/forwarding_backend.h"

namespace octet::probe {

// Computes exactly what `inner` does, whose memory must be the host's. The model's arithmetic must
// leave inputs unquantized (--compute bf16 or fp32); Fault otherwise.
class ObservingBackend : public ForwardingBackend {
 public:
  // Told once for all linears that share an input: x [rows, in], f32 or bf16, valid during the
  // call.
  using Observer = std::function<void(std::span<const ops::Linear* const> ws, const Tensor& x)>;

  // Told what goes into the cache at this address: K (after RoPE) and V [rows, heads, dim] into an
  // ops::GqaCache, a latent [rows, width] and nothing into an ops::MlaCache.
  using CacheObserver = std::function<void(const void* cache, const Tensor& k, const Tensor& v)>;

  ObservingBackend(ops::Backend& inner, Observer observer);
  // From now on; an empty one ends it.
  void observe_cache(CacheObserver observer) { cache_observer_ = std::move(observer); }

  void linear(const ops::Activation& x, const ops::Linear& w, const Tensor& out) override;
  void linear_group(const ops::Activation& x, std::span<const ops::Linear* const> ws,
                    std::span<const Tensor> outs) override;
  // An expert sees the rows that are routed to it; what enters its down projection is computed for
  // the observer alone.
  void moe_experts(const ops::Activation& x, const ops::Routing& routing,
                   std::span<const ops::GatedMlp> experts, const Tensor& out) override;
  void kv_write(const Tensor& k, const Tensor& v, const ops::GqaCache& cache,
                const ops::Batch& batch) override;
  // kv_b makes K and V of the latent, whichever way attention is computed.
  void mla_kv_write(const Tensor& latent, const Tensor& k_pe, const ops::MlaCache& cache,
                    const ops::Batch& batch) override;
  void mla_absorb(const Tensor& q, const ops::Linear& kv_b, int64_t nope,
                  const Tensor& out) override;

 private:
  void observe(std::span<const ops::Linear* const> ws, const ops::Activation& x);

  Observer observer_;
  CacheObserver cache_observer_;
  std::vector<std::byte> latent_;  // of the last mla_kv_write: kv_b's input, told by mla_absorb
  Tensor latent_shape_;
};

}  // namespace octet::probe
