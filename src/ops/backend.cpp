// The default bodies: what a fused op means, in terms of its parts.
#include "ops/backend.h"

namespace octet::ops {

void Backend::run_step(uint64_t, FunctionRef<void()> body) {
  body();
}

Buffer Backend::alloc_host(size_t bytes, const std::string&) {
  return host_buffer(bytes);
}

uint64_t Backend::record() {
  return 0;
}

void Backend::wait(uint64_t) {
  sync();
}

void Backend::rope_kv_write(const Tensor& q, const Tensor& k, const Tensor& v,
                            const RopeTable& table, const GqaCache& cache, const Batch& batch) {
  rope(q, table, batch.positions);
  rope(k, table, batch.positions);
  kv_write(k, v, cache, batch);
}

void Backend::rope_kv_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                const RopeTable& table, const GqaCache& cache, const Batch& batch,
                                const AttentionSpec& spec, const Tensor& out, const Tensor& lse) {
  rope_kv_write(q, k, v, table, cache, batch);
  attention(q, cache, batch, spec, out, lse);
}

void Backend::add_rms_norm(const Tensor& residual, const Tensor& delta, const NormWeight& norm,
                           const Activation& out) {
  add(residual, delta, residual);
  rms_norm(residual, norm, out);
}

void Backend::linear_group(const Activation& x, std::span<const Linear* const> ws,
                           std::span<const Tensor> outs) {
  invariant(ws.size() == outs.size(), "linear_group needs one output for each weight");
  for (size_t i = 0; i < ws.size(); ++i) linear(x, *ws[i], outs[i]);
}

void Backend::norm_linear_group(ResidualStream& stream, const NormWeight& norm,
                                const Activation& normed, std::span<const Linear* const> ws,
                                std::span<const Tensor> outs) {
  if (stream.delta) {
    add_rms_norm(stream.sum, stream.delta, norm, normed);
    stream.delta = {};
  } else {
    rms_norm(stream.sum, norm, normed);
  }
  stream.measured = nullptr;
  linear_group(normed, ws, outs);
}

void Backend::linear_to_stream(const Activation& x, const Linear& w, ResidualStream& stream,
                               const NormWeight&) {
  invariant(!stream.delta, "a stream has one delta at a time");
  linear(x, w, stream.room);
  stream.delta = stream.room;
}

void Backend::norm_mlp_to_stream(ResidualStream& stream, const NormWeight& norm,
                                 const GatedMlp& mlp, const MlpRoom& room, const NormWeight& next) {
  const Linear* const weights[] = {&mlp.gate, &mlp.up};
  const Tensor results[] = {room.gate, room.up};
  norm_linear_group(stream, norm, room.normed, weights, results);
  silu_mul(room.gate, room.up, room.hidden);
  linear_to_stream(room.hidden, mlp.down, stream, next);
}

}  // namespace octet::ops
