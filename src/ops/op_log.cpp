#include "ops/op_log.h"

#include <algorithm>

#include "ops/kernel_table.h"

namespace octet::ops {
namespace {

int64_t size(const Tensor& t) {
  return t ? t.bytes() : 0;
}
int64_t size(const QuantTensor& q) {
  return q ? q.codes.bytes() + q.scales.bytes() : 0;
}
int64_t size(const Activation& x) {
  return size(x.plain) + size(x.quant);
}
// The form that a linear reads; the other one, if there is one, is for somebody else.
int64_t read_by(const Activation& x, const Linear& w) {
  const bool coded = w.input && x.quant && x.quant.format == *w.input;
  return coded ? size(x.quant) : size(x.plain);
}

// Bytes that one token has in a cache of [blocks, block_tokens, ...].
int64_t token_bytes(std::initializer_list<Tensor> tensors) {
  int64_t bytes = 0;
  for (const Tensor& t : tensors) {
    if (t) bytes += t.bytes() / (t.shape[0] * t.shape[1]);
  }
  return bytes;
}
int64_t token_bytes(const GqaCache& cache) {
  const int64_t scales = cache.token_heads() ? token_bytes({cache.k_scale, cache.v_scale}) : 0;
  return token_bytes({cache.k, cache.v}) + scales;
}
int64_t token_bytes(const MlaCache& cache) {
  return token_bytes({cache.latent, cache.latent_scale, cache.rope});
}

int64_t row_bytes(const RopeTable& table) {
  return 2 * table.cos.bytes() / table.cos.rows();
}

DType activation_of(const Activation& x) {
  return x.plain ? x.plain.type : DType::bf16;
}

}  // namespace

LoggedOp& OpLog::log(std::string op, int64_t activation_bytes) {
  LoggedOp& logged = ops_.emplace_back();
  logged.op = std::move(op);
  logged.activation_bytes = activation_bytes;
  return logged;
}

void OpLog::embed(const Tensor& table, const Tensor& tokens, const Tensor& out) {
  const int64_t row = table.bytes() / table.rows();
  log("embed", size(tokens) + size(out)).weight_bytes = row * tokens.count();
}

void OpLog::take_tokens(const Tensor&, const Tensor& source, const Tensor& tokens) {
  log("take_tokens", size(source) + 2 * size(tokens));
}

void OpLog::add(const Tensor& x, const Tensor& y, const Tensor& out) {
  log("add", size(x) + size(y) + size(out));
}

void OpLog::gather_rows(const Tensor&, const Tensor& rows, const Tensor& out) {
  log("gather_rows", size(rows) + 2 * size(out));
}

void OpLog::rms_norm(const Tensor& x, const NormWeight& norm, const Activation& out) {
  log("rms_norm", size(x) + size(out)).weight_bytes = size(norm.weight);
}

void OpLog::add_rms_norm(const Tensor& residual, const Tensor& delta, const NormWeight& norm,
                         const Activation& out) {
  log("add_rms_norm", 2 * size(residual) + size(delta) + size(out)).weight_bytes =
      size(norm.weight);
}

void OpLog::quantize(const Tensor& x, const QuantTensor& out, const Tensor&) {
  log("quantize", size(x) + size(out));
}

void OpLog::silu_mul(const Tensor& gate, const Tensor& up, const Activation& out) {
  log("silu_mul", size(gate) + size(up) + size(out));
}

void OpLog::rope(const Tensor& x, const RopeTable& table, const Tensor& positions) {
  log("rope", 2 * size(x) + size(positions) + row_bytes(table) * positions.count());
}

void OpLog::scale_heads(const Tensor& x, const Tensor& factors) {
  log("scale_heads", 2 * size(x)).weight_bytes = size(factors);
}

void OpLog::linear(const Activation& x, const Linear& w, const Tensor& out) {
  const Linear* const one = &w;
  linear_group(x, {&one, 1}, {&out, 1});
}

void OpLog::linear_group(const Activation& x, std::span<const Linear* const> ws,
                         std::span<const Tensor> outs) {
  LoggedOp& logged = log("linear", read_by(x, *ws[0]));
  for (size_t i = 0; i < ws.size(); ++i) {
    logged.modules.push_back(ws[i]->name);
    logged.linears.push_back(describe("linear", *ws[i], x.rows(), activation_of(x)));
    logged.weight_bytes += ws[i]->bytes();
    logged.activation_bytes += size(outs[i]);
  }
}

void OpLog::head_linear(const Tensor& x, const Linear& w, const Tensor& out) {
  LoggedOp& logged = log("head_linear", size(x) + size(out));
  logged.modules.push_back(w.name);
  logged.linears.push_back(describe("head_linear", w, x.rows(), x.type));
  logged.weight_bytes = w.bytes();
}

void OpLog::kv_write(const Tensor& k, const Tensor& v, const GqaCache& cache, const Batch& batch) {
  log("kv_write", size(k) + size(v)).cache_bytes = batch.rows * token_bytes(cache);
}

void OpLog::rope_kv_write(const Tensor& q, const Tensor& k, const Tensor& v, const RopeTable& table,
                          const GqaCache& cache, const Batch& batch) {
  log("rope_kv_write", 2 * size(q) + 2 * size(k) + size(v) + row_bytes(table) * batch.rows)
      .cache_bytes = batch.rows * token_bytes(cache);
}

void OpLog::attention(const Tensor& q, const GqaCache& cache, const Batch& batch,
                      const AttentionSpec& spec, const Tensor& out, const Tensor& lse) {
  const int64_t seen = spec.window > 0 ? std::min(spec.window, context_) : context_;
  log("attention", size(q) + size(out) + size(lse)).cache_bytes =
      static_cast<int64_t>(batch.sequences.size()) * seen * token_bytes(cache);
}

void OpLog::mla_kv_write(const Tensor& latent, const Tensor& k_pe, const MlaCache& cache,
                         const Batch& batch) {
  log("mla_kv_write", size(latent) + size(k_pe)).cache_bytes = batch.rows * token_bytes(cache);
}

void OpLog::mla_absorb(const Tensor& q, const Linear& kv_b, int64_t, const Tensor& out) {
  LoggedOp& logged = log("mla_absorb", size(q) + size(out));
  logged.modules.push_back(kv_b.name);
  logged.weight_bytes = kv_b.bytes();
}

void OpLog::mla_attention(const Tensor& q_latent, const Tensor& q_pe, const MlaCache& cache,
                          const Batch& batch, const AttentionSpec&, const Tensor& out,
                          const Tensor& lse) {
  log("mla_attention", size(q_latent) + size(q_pe) + size(out) + size(lse)).cache_bytes =
      static_cast<int64_t>(batch.sequences.size()) * context_ * token_bytes(cache);
}

void OpLog::mla_expand(const Tensor& o_latent, const Linear& kv_b, int64_t, const Tensor& out) {
  LoggedOp& logged = log("mla_expand", size(o_latent) + size(out));
  logged.modules.push_back(kv_b.name);
  logged.weight_bytes = kv_b.bytes();
}

void OpLog::moe_route(const Tensor& logits, const Tensor& bias, const RouterSpec&,
                      const Routing& out) {
  log("moe_route", size(logits) + size(out.experts) + size(out.weights)).weight_bytes = size(bias);
}

void OpLog::moe_experts(const Activation& x, const Routing& routing,
                        std::span<const GatedMlp> experts, const Tensor& out) {
  LoggedOp& logged = log("moe_experts", size(routing.experts) + size(routing.weights) + size(out));
  if (experts.empty()) return;
  const GatedMlp& first = experts.front();
  logged.activation_bytes += read_by(x, first.gate);
  logged.modules = {first.gate.name, first.up.name, first.down.name};
  // As many experts as there are choices, if no two tokens choose the same one.
  const int64_t used =
      std::min<int64_t>(routing.experts.count(), static_cast<int64_t>(experts.size()));
  logged.weight_bytes = used * (first.gate.bytes() + first.up.bytes() + first.down.bytes());
}

void OpLog::sample(const Tensor& logits, const Tensor& rows, const LogitEdits& edits,
                   const SampleResult& out) {
  log("sample",
      size(logits) + size(rows) + size(edits.edits) + size(edits.masks) + size(out.tokens));
}

}  // namespace octet::ops
