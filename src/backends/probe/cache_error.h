// How far the codes of a KV cache are from what was written: an FP8 type, and the scales in force.
#pragma once

#include "backends/probe/forwarding_backend.h"

namespace octet::probe {

// Computes exactly what `inner` does, whose memory must be the host's. Reads back each value that a
// batch of one sequence writes, in whatever blocks it lies.
class CacheErrorBackend final : public ForwardingBackend {
 public:
  explicit CacheErrorBackend(ops::Backend& inner);

  // Of K and V, or of the latent, of all tokens and layers so far: root of the sum of squares of
  // the error, of that of the values. 0 where nothing was written.
  double relative_error() const;

  void kv_write(const Tensor& k, const Tensor& v, const ops::GqaCache& cache,
                const ops::Batch& batch) override;
  void mla_kv_write(const Tensor& latent, const Tensor& k_pe, const ops::MlaCache& cache,
                    const ops::Batch& batch) override;

 private:
  double error_ = 0, energy_ = 0;
};

}  // namespace octet::probe
