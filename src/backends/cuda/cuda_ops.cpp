// The ops: each hands its arguments to its launch.
#include <fmt/format.h>

#include <algorithm>

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/kernels/linear_thin.h"
#include "backends/cuda/kernels/ops.h"
#include "ops/kernel_table.h"

namespace octet::cuda {

void CudaBackend::embed(const Tensor& table, const Tensor& tokens, const Tensor& out) {
  cuda::embed(context_, table, tokens, out);
}

void CudaBackend::take_tokens(const Tensor& sampled, const Tensor& source, const Tensor& tokens) {
  cuda::take_tokens(context_, sampled, source, tokens);
}

void CudaBackend::add(const Tensor& x, const Tensor& y, const Tensor& out) {
  cuda::add(context_, x, y, out);
}

void CudaBackend::gather_rows(const Tensor& x, const Tensor& rows, const Tensor& out) {
  cuda::gather_rows(context_, x, rows, out);
}

void CudaBackend::rms_norm(const Tensor& x, const ops::NormWeight& norm,
                           const ops::Activation& out) {
  cuda::rms_norm(context_, x, norm, out);
}

void CudaBackend::add_rms_norm(const Tensor& residual, const Tensor& delta,
                               const ops::NormWeight& norm, const ops::Activation& out) {
  cuda::add_rms_norm(context_, residual, delta, norm, out);
}

void CudaBackend::quantize(const Tensor& x, const QuantTensor& out, const Tensor& fixed_scale) {
  cuda::quantize(context_, x, out, fixed_scale);
}

void CudaBackend::silu_mul(const Tensor& gate, const Tensor& up, const ops::Activation& out) {
  cuda::silu_mul(context_, gate, up, out);
}

void CudaBackend::rope(const Tensor& x, const ops::RopeTable& table, const Tensor& positions) {
  cuda::rope(context_, x, table, positions);
}
void CudaBackend::scale_heads(const Tensor& x, const Tensor& factors) {
  throw Fault(fmt::format("scale_heads: there is no kernel for it; x {}, factors {}", to_string(x),
                          to_string(factors)));
}

void CudaBackend::linear(const ops::Activation& x, const ops::Linear& w, const Tensor& out) {
  const ops::Linear* const one = &w;
  linear_group(x, {&one, 1}, {&out, 1});
}

void CudaBackend::linear_group(const ops::Activation& x, std::span<const ops::Linear* const> ws,
                               std::span<const Tensor> outs) {
  invariant(ws.size() == outs.size(), "linear_group needs one output for each weight");
  const DType activation = x.plain ? x.plain.type : DType::bf16;
  for (size_t begin = 0; begin < ws.size();) {
    const Launch launch = next_launch(x.rows(), activation, ws.subspan(begin), outs.subspan(begin));
    launch.row->launch(context_, x, ws.subspan(begin, launch.count),
                       outs.subspan(begin, launch.count));
    begin += launch.count;
  }
}

// Neighbours that the same row runs and that are alike but for their outputs go in one launch.
CudaBackend::Launch CudaBackend::next_launch(int64_t rows, DType activation,
                                             std::span<const ops::Linear* const> ws,
                                             std::span<const Tensor> outs) {
  const ops::OpDesc first = ops::describe("linear", *ws[0], rows, activation);
  Launch launch{&row_for(linear_rows(), first), 1};
  for (; launch.count < ws.size(); ++launch.count) {
    const ops::Linear& w = *ws[launch.count];
    const ops::OpDesc next = ops::describe("linear", w, rows, activation);
    const bool alike = &row_for(linear_rows(), next) == launch.row && next.k == first.k &&
                       next.weight == first.weight && next.weight_format == first.weight_format &&
                       next.input_format == first.input_format && w.when == ws[0]->when &&
                       w.input_scale.data == ws[0]->input_scale.data &&
                       outs[launch.count].type == outs[0].type;
    if (!alike) break;
  }
  return launch;
}

void CudaBackend::norm_linear_group(ops::ResidualStream& stream, const ops::NormWeight& norm,
                                    const ops::Activation& normed,
                                    std::span<const ops::Linear* const> ws,
                                    std::span<const Tensor> outs) {
  invariant(!ws.empty() && ws.size() == outs.size(), "a norm needs linears, each an output");
  if (takes_norm(context_, stream, norm, ws, outs)) {
    const Launch launch = next_launch(stream.sum.rows(), stream.sum.type, ws, outs);
    const auto products = thin_products(launch.row->name);
    if (products && launch.count == ws.size()) {
      return norm_linear_thin(context_, *products, stream, norm, ws, outs);
    }
  }
  Backend::norm_linear_group(stream, norm, normed, ws, outs);
}

void CudaBackend::linear_to_stream(const ops::Activation& x, const ops::Linear& w,
                                   ops::ResidualStream& stream, const ops::NormWeight& next) {
  const ops::OpDesc desc = ops::describe("linear", w, x.rows(), stream.sum.type);
  if (takes_stream(context_, w, stream, next)) {
    const auto products = thin_products(row_for(linear_rows(), desc).name);
    if (products) return linear_thin_to_stream(context_, *products, x, w, stream, next);
  }
  Backend::linear_to_stream(x, w, stream, next);
}

// Two launches, if both multiply codes: what lies between gate and up and down is made where the
// first has its sums, and the second finds its scale by the absmax that come with it.
void CudaBackend::norm_mlp_to_stream(ops::ResidualStream& stream, const ops::NormWeight& norm,
                                     const ops::GatedMlp& mlp, const ops::MlpRoom& room,
                                     const ops::NormWeight& next) {
  const ops::Linear* const ws[] = {&mlp.gate, &mlp.up};
  const Tensor outs[] = {room.gate, room.up};
  const int64_t rows = stream.sum.rows();
  const ThinHidden hidden{room.gate,
                          Tensor(room.up.data, DType::bf16, {rows, mlp.gate.out / kGatedColumns})};
  const auto by_codes = [](const Launch& launch) {
    return thin_products(launch.row->name) == ThinProducts::codes;
  };
  ops::ResidualStream after = stream;
  after.delta = {};
  if (takes_gated(context_, stream, norm, mlp.gate, mlp.up, hidden) &&
      takes_stream(context_, mlp.down, after, next)) {
    const DType type = stream.sum.type;
    const ops::Linear* const down = &mlp.down;
    const Launch first = next_launch(rows, type, ws, outs);
    if (first.count == 2 && by_codes(first) &&
        by_codes(next_launch(rows, type, {&down, 1}, {&stream.sum, 1}))) {
      norm_gated_thin(context_, stream, norm, mlp.gate, mlp.up, hidden);
      return linear_thin_to_stream(context_, ThinProducts::codes, hidden.rows, mlp.down, stream,
                                   next, hidden.peaks);
    }
  }
  Backend::norm_mlp_to_stream(stream, norm, mlp, room, next);
}

void CudaBackend::head_linear(const Tensor& x, const ops::Linear& w, const Tensor& out) {
  const ops::Linear* const one = &w;
  const LinearRow& row = row_for(head_rows(), ops::describe("head_linear", w, x.rows(), x.type));
  row.launch(context_, x, {&one, 1}, {&out, 1});
}

void CudaBackend::kv_write(const Tensor& k, const Tensor& v, const ops::GqaCache& cache,
                           const ops::Batch& batch) {
  cuda::kv_write(context_, k, v, cache, batch);
}

void CudaBackend::rope_kv_write(const Tensor& q, const Tensor& k, const Tensor& v,
                                const ops::RopeTable& table, const ops::GqaCache& cache,
                                const ops::Batch& batch) {
  cuda::rope_kv_write(context_, q, k, v, table, cache, batch);
}

void CudaBackend::attention(const Tensor& q, const ops::GqaCache& cache, const ops::Batch& batch,
                            const ops::AttentionSpec& spec, const Tensor& out, const Tensor& lse) {
  cuda::attention(context_, q, cache, batch, spec, out, lse);
}

void CudaBackend::rope_kv_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const ops::RopeTable& table, const ops::GqaCache& cache,
                                    const ops::Batch& batch, const ops::AttentionSpec& spec,
                                    const Tensor& out, const Tensor& lse) {
  if (!cuda::rope_kv_attention(context_, q, k, v, table, cache, batch, spec, out, lse)) {
    Backend::rope_kv_attention(q, k, v, table, cache, batch, spec, out, lse);
  }
}

void CudaBackend::mla_kv_write(const Tensor& latent, const Tensor& k_pe, const ops::MlaCache& cache,
                               const ops::Batch& batch) {
  cuda::mla_kv_write(context_, latent, k_pe, cache, batch);
}

void CudaBackend::mla_absorb(const Tensor& q, const ops::Linear& kv_b, int64_t nope,
                             const Tensor& out) {
  cuda::mla_absorb(context_, q, kv_b, nope, out);
}

void CudaBackend::mla_attention(const Tensor& q_latent, const Tensor& q_pe,
                                const ops::MlaCache& cache, const ops::Batch& batch,
                                const ops::AttentionSpec& spec, const Tensor& out,
                                const Tensor& lse) {
  cuda::mla_attention(context_, q_latent, q_pe, cache, batch, spec, out, lse);
}

void CudaBackend::mla_expand(const Tensor& o_latent, const ops::Linear& kv_b, int64_t nope,
                             const Tensor& out) {
  cuda::mla_expand(context_, o_latent, kv_b, nope, out);
}

void CudaBackend::moe_route(const Tensor& logits, const Tensor& bias, const ops::RouterSpec& spec,
                            const ops::Routing& out) {
  cuda::moe_route(context_, logits, bias, spec, out);
}

void CudaBackend::moe_experts(const ops::Activation& x, const ops::Routing& routing,
                              std::span<const ops::GatedMlp> experts, const Tensor& out) {
  cuda::moe_experts(context_, x, routing, expert_tables_.of(experts), out);
}

void CudaBackend::sample(const Tensor& logits, const Tensor& rows, const ops::LogitEdits& edits,
                         const ops::SampleResult& out) {
  cuda::sample(context_, logits, rows, edits, out);
}

}  // namespace octet::cuda
