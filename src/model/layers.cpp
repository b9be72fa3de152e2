#include "model/layers.h"

#include <algorithm>

namespace octet::model {
namespace {

// Each head of x [T, heads, dim] normed on its own.
Tensor norm_heads(const LayerContext& c, const Tensor& x, const ops::NormWeight& norm) {
  const Tensor out = c.exec.arena.take(c.activation, x.shape);
  const int64_t dim = x.shape[2];
  const Shape rows{x.count() / dim, dim};
  c.exec.ops.rms_norm(x.reshape(rows), norm, out.reshape(rows));
  return out;
}

void run_gqa(const LayerContext& c, const GqaLayer& layer, int64_t index, const ops::Activation& x,
             const Tensor& out) {
  const auto& [ops, arena, kv, batch] = c.exec;
  const Gqa& shape = layer.shape;
  const int64_t heads = shape.heads, kv_heads = shape.kv_heads, dim = shape.head_dim;
  Tensor q = arena.take(c.activation, {batch.rows, heads, dim});
  Tensor k = arena.take(c.activation, {batch.rows, kv_heads, dim});
  const Tensor v = arena.take(c.activation, {batch.rows, kv_heads, dim});
  const ops::Linear* const weights[] = {&layer.q, &layer.k, &layer.v};
  const Tensor results[] = {q.reshape({batch.rows, heads * dim}),
                            k.reshape({batch.rows, kv_heads * dim}),
                            v.reshape({batch.rows, kv_heads * dim})};
  ops.linear_group(x, weights, results);
  if (shape.qk_norm) {
    q = norm_heads(c, q, layer.q_norm);
    k = norm_heads(c, k, layer.k_norm);
  }
  ops.rope_kv_write(q, k, v, c.rope, kv.gqa(index), batch);

  ops::AttentionSpec spec = c.attention;
  spec.window = layer.window;
  const Tensor mixed = arena.take(c.activation, {batch.rows, heads, dim});
  ops.attention(q, kv.gqa(index), batch, spec, mixed);
  ops.linear(mixed.reshape({batch.rows, heads * dim}), layer.o, out);
}

// q [T, heads, nope + rope] from x, through the low-rank pair if the model has one.
void project_mla(const LayerContext& c, const MlaLayer& layer, const ops::Activation& x,
                 const Tensor& q, const Tensor& kv_a) {
  const auto& [ops, arena, kv, batch] = c.exec;
  const Tensor q_rows = q.reshape({batch.rows, q.count() / batch.rows});
  if (layer.q) {
    const ops::Linear* const weights[] = {&layer.q, &layer.kv_a};
    const Tensor results[] = {q_rows, kv_a};
    ops.linear_group(x, weights, results);
    return;
  }
  const Tensor q_a = arena.take(c.activation, {batch.rows, layer.shape.q_lora});
  const ops::Linear* const weights[] = {&layer.q_a, &layer.kv_a};
  const Tensor results[] = {q_a, kv_a};
  ops.linear_group(x, weights, results);
  const ops::Linear* const consumers[] = {&layer.q_b};
  const ops::Activation normed = take_activation(c, batch.rows, layer.shape.q_lora, consumers);
  ops.rms_norm(q_a, layer.q_a_norm, normed);
  ops.linear(normed, layer.q_b, q_rows);
}

void run_mla(const LayerContext& c, const MlaLayer& layer, int64_t index, const ops::Activation& x,
             const Tensor& out) {
  const auto& [ops, arena, kv, batch] = c.exec;
  const Mla& s = layer.shape;
  const int64_t rows = batch.rows;
  const Tensor q = arena.take(c.activation, {rows, s.heads, s.nope + s.rope});
  const Tensor kv_a = arena.take(c.activation, {rows, s.kv_lora + s.rope});
  project_mla(c, layer, x, q, kv_a);

  // kv_a's columns: | latent, kv_lora | k_pe, rope |. Only the latent is normed.
  const Tensor latent = arena.take(c.activation, {rows, s.kv_lora});
  ops.rms_norm(kv_a.columns(0, s.kv_lora), layer.kv_a_norm, latent);
  const Tensor k_pe = kv_a.columns(s.kv_lora, s.rope);
  const Tensor q_pe = q.columns(s.nope, s.rope);
  ops.rope(q_pe, c.rope, batch.positions);
  ops.rope(k_pe.split_last(1, s.rope), c.rope, batch.positions);
  ops.mla_kv_write(latent, k_pe, kv.mla(index), batch);

  const Tensor q_latent = arena.take(c.activation, {rows, s.heads, s.kv_lora});
  ops.mla_absorb(q, layer.kv_b, s.nope, q_latent);
  const Tensor o_latent = arena.take(c.activation, {rows, s.heads, s.kv_lora});
  ops.mla_attention(q_latent, q_pe, kv.mla(index), batch, c.attention, o_latent);
  const Tensor mixed = arena.take(c.activation, {rows, s.heads, s.v});
  ops.mla_expand(o_latent, layer.kv_b, s.nope, mixed);
  ops.linear(mixed.reshape({rows, s.heads * s.v}), layer.o, out);
}

void run_gated_mlp(const LayerContext& c, const ops::GatedMlp& mlp, const ops::Activation& x,
                   const Tensor& out) {
  const auto& [ops, arena, kv, batch] = c.exec;
  const Tensor gate = arena.take(c.activation, {batch.rows, mlp.gate.out});
  const Tensor up = arena.take(c.activation, {batch.rows, mlp.up.out});
  const ops::Linear* const weights[] = {&mlp.gate, &mlp.up};
  const Tensor results[] = {gate, up};
  ops.linear_group(x, weights, results);
  const ops::Linear* const consumers[] = {&mlp.down};
  const ops::Activation hidden = take_activation(c, batch.rows, mlp.gate.out, consumers);
  ops.silu_mul(gate, up, hidden);
  ops.linear(hidden, mlp.down, out);
}

void run_moe(const LayerContext& c, const MoeLayer& layer, const ops::Activation& x,
             const Tensor& out) {
  const auto& [ops, arena, kv, batch] = c.exec;
  const Tensor logits = arena.take(DType::f32, {batch.rows, layer.spec.experts});
  ops.linear(x, layer.router, logits);
  const ops::Routing routing{arena.take(DType::i32, {batch.rows, layer.spec.top_k}),
                             arena.take(DType::f32, {batch.rows, layer.spec.top_k})};
  ops.moe_route(logits, layer.router_bias, layer.spec, routing);
  ops.moe_experts(x, routing, layer.experts, out);
  if (!layer.shared) return;
  const Tensor shared = arena.take(c.activation, {batch.rows, out.cols()});
  run_gated_mlp(c, *layer.shared, x, shared);
  ops.add(out, shared, out);
}

}  // namespace

ops::Activation take_activation(const LayerContext& c, int64_t rows, int64_t cols,
                                std::span<const ops::Linear* const> consumers) {
  std::optional<QuantFormat> format;
  for (const ops::Linear* consumer : consumers) {
    if (consumer->input && consumer->when == InputScale::dynamic) {
      format = consumer->input;
      break;
    }
  }
  const bool all_quantized = std::ranges::all_of(consumers, [&](const ops::Linear* consumer) {
    return format && consumer->when == InputScale::dynamic && consumer->input == format;
  });
  ops::Activation out;
  if (!all_quantized) out.plain = c.exec.arena.take(c.activation, {rows, cols});
  if (format) out.quant = c.exec.arena.take(*format, rows, cols);
  return out;
}

std::vector<const ops::Linear*> input_consumers(const std::variant<GqaLayer, MlaLayer>& attention) {
  if (const auto* gqa = std::get_if<GqaLayer>(&attention)) return {&gqa->q, &gqa->k, &gqa->v};
  const auto& mla = std::get<MlaLayer>(attention);
  return {mla.q ? &mla.q : &mla.q_a, &mla.kv_a};
}

std::vector<const ops::Linear*> input_consumers(const std::variant<ops::GatedMlp, MoeLayer>& ffn) {
  if (const auto* dense = std::get_if<ops::GatedMlp>(&ffn)) return {&dense->gate, &dense->up};
  const auto& moe = std::get<MoeLayer>(ffn);
  std::vector<const ops::Linear*> consumers{&moe.router};
  for (const ops::GatedMlp& expert : moe.experts) {
    consumers.push_back(&expert.gate);
    consumers.push_back(&expert.up);
  }
  if (moe.shared) {
    consumers.push_back(&moe.shared->gate);
    consumers.push_back(&moe.shared->up);
  }
  return consumers;
}

void run_attention(const LayerContext& c, const std::variant<GqaLayer, MlaLayer>& layer,
                   int64_t index, const ops::Activation& x, const Tensor& out) {
  const Arena::Scope scratch(c.exec.arena);
  if (const auto* gqa = std::get_if<GqaLayer>(&layer)) {
    run_gqa(c, *gqa, index, x, out);
  } else {
    run_mla(c, std::get<MlaLayer>(layer), index, x, out);
  }
}

void run_ffn(const LayerContext& c, const std::variant<ops::GatedMlp, MoeLayer>& layer,
             const ops::Activation& x, const Tensor& out) {
  const Arena::Scope scratch(c.exec.arena);
  if (const auto* dense = std::get_if<ops::GatedMlp>(&layer)) {
    run_gated_mlp(c, *dense, x, out);
  } else {
    run_moe(c, std::get<MoeLayer>(layer), x, out);
  }
}

}  // namespace octet::model
