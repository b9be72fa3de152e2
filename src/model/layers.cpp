#include "model/layers.h"

#include <algorithm>
#include <utility>

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

// An activation [rows, cols] for these consumers: quantized if one of them wants FP8 with scales
// found at run time, and plain as well if one does not (or wants another format).
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

// The linears of the stream's norm.
void run_norm_linears(const LayerContext& c, const ops::NormWeight& norm,
                      ops::ResidualStream& stream, std::span<const ops::Linear* const> weights,
                      std::span<const Tensor> results) {
  const ops::Activation normed = take_activation(c, stream.sum.rows(), stream.sum.cols(), weights);
  c.exec.ops.norm_linear_group(stream, norm, normed, weights, results);
}

void run_gqa(const LayerContext& c, const GqaLayer& layer, int64_t index, const LayerNorms& norms,
             ops::ResidualStream& stream) {
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
  run_norm_linears(c, norms.own, stream, weights, results);
  if (shape.qk_norm) {
    q = norm_heads(c, q, layer.q_norm);
    k = norm_heads(c, k, layer.k_norm);
  }
  ops::AttentionSpec spec = c.attention;
  spec.window = layer.window;
  const Tensor mixed = arena.take(c.activation, {batch.rows, heads, dim});
  if (const KvChannels* const channels = kv.channels(index)) {
    // What the cache holds is k / s and v / s; (q s)(k / s) is the score, and s is V's, too, once
    // the sum over tokens is done.
    ops.rope(q, c.rope, batch.positions);
    ops.rope(k, c.rope, batch.positions);
    ops.scale_heads(q, channels->k.scale);
    ops.scale_heads(k, channels->k.inverse);
    ops.scale_heads(v, channels->v.inverse);
    ops.kv_write(k, v, kv.gqa(index), batch);
    ops.attention(q, kv.gqa(index), batch, spec, mixed);
    ops.scale_heads(mixed, channels->v.scale);
  } else {
    ops.rope_kv_attention(q, k, v, c.rope, kv.gqa(index), batch, spec, mixed);
  }
  ops.linear_to_stream(mixed.reshape({batch.rows, heads * dim}), layer.o, stream, norms.next);
}

// q [T, heads, nope + rope], through the low-rank pair if the model has one, and kv_a.
void project_mla(const LayerContext& c, const MlaLayer& layer, const ops::NormWeight& norm,
                 ops::ResidualStream& stream, const Tensor& q, const Tensor& kv_a) {
  const auto& [ops, arena, kv, batch] = c.exec;
  const Tensor q_rows = q.reshape({batch.rows, q.count() / batch.rows});
  if (layer.q) {
    const ops::Linear* const weights[] = {&layer.q, &layer.kv_a};
    const Tensor results[] = {q_rows, kv_a};
    run_norm_linears(c, norm, stream, weights, results);
    return;
  }
  const Tensor q_a = arena.take(c.activation, {batch.rows, layer.shape.q_lora});
  const ops::Linear* const weights[] = {&layer.q_a, &layer.kv_a};
  const Tensor results[] = {q_a, kv_a};
  run_norm_linears(c, norm, stream, weights, results);
  const ops::Linear* const consumers[] = {&layer.q_b};
  const ops::Activation normed = take_activation(c, batch.rows, layer.shape.q_lora, consumers);
  ops.rms_norm(q_a, layer.q_a_norm, normed);
  ops.linear(normed, layer.q_b, q_rows);
}

void run_mla(const LayerContext& c, const MlaLayer& layer, int64_t index, const LayerNorms& norms,
             ops::ResidualStream& stream) {
  const auto& [ops, arena, kv, batch] = c.exec;
  const Mla& s = layer.shape;
  const int64_t rows = batch.rows;
  const Tensor q = arena.take(c.activation, {rows, s.heads, s.nope + s.rope});
  const Tensor kv_a = arena.take(c.activation, {rows, s.kv_lora + s.rope});
  project_mla(c, layer, norms.own, stream, q, kv_a);

  // kv_a's columns: | latent, kv_lora | k_pe, rope |. Only the latent is normed.
  const Tensor latent = arena.take(c.activation, {rows, s.kv_lora});
  ops.rms_norm(kv_a.columns(0, s.kv_lora), layer.kv_a_norm, latent);
  const Tensor k_pe = kv_a.columns(s.kv_lora, s.rope);
  const Tensor q_pe = q.columns(s.nope, s.rope);
  ops.rope(q_pe, c.rope, batch.positions);
  ops.rope(k_pe.split_last(1, s.rope), c.rope, batch.positions);
  const KvChannels* const channels = kv.channels(index);
  if (channels) ops.scale_heads(latent.split_last(1, s.kv_lora), channels->k.inverse);
  ops.mla_kv_write(latent, k_pe, kv.mla(index), batch);

  const Tensor q_latent = arena.take(c.activation, {rows, s.heads, s.kv_lora});
  ops.mla_absorb(q, layer.kv_b, s.nope, q_latent);
  if (channels) ops.scale_heads(q_latent, channels->k.scale);
  const Tensor o_latent = arena.take(c.activation, {rows, s.heads, s.kv_lora});
  ops.mla_attention(q_latent, q_pe, kv.mla(index), batch, c.attention, o_latent);
  if (channels) ops.scale_heads(o_latent, channels->k.scale);
  const Tensor mixed = arena.take(c.activation, {rows, s.heads, s.v});
  ops.mla_expand(o_latent, layer.kv_b, s.nope, mixed);
  ops.linear_to_stream(mixed.reshape({rows, s.heads * s.v}), layer.o, stream, norms.next);
}

struct GateUp {
  Tensor gate, up;  // [rows, intermediate]
};
GateUp take_gate_up(const LayerContext& c, const ops::GatedMlp& mlp, int64_t rows) {
  return {c.exec.arena.take(c.activation, {rows, mlp.gate.out}),
          c.exec.arena.take(c.activation, {rows, mlp.up.out})};
}

// silu(gate) * up, as down wants it.
ops::Activation run_silu(const LayerContext& c, const ops::GatedMlp& mlp, const GateUp& both) {
  const ops::Linear* const consumers[] = {&mlp.down};
  const ops::Activation hidden = take_activation(c, both.gate.rows(), mlp.gate.out, consumers);
  c.exec.ops.silu_mul(both.gate, both.up, hidden);
  return hidden;
}

void run_dense(const LayerContext& c, const ops::GatedMlp& mlp, const LayerNorms& norms,
               ops::ResidualStream& stream) {
  const int64_t rows = stream.sum.rows();
  const ops::Linear* const first[] = {&mlp.gate, &mlp.up};
  const ops::Linear* const second[] = {&mlp.down};
  const GateUp both = take_gate_up(c, mlp, rows);
  const ops::MlpRoom room{take_activation(c, rows, stream.sum.cols(), first), both.gate, both.up,
                          take_activation(c, rows, mlp.gate.out, second)};
  c.exec.ops.norm_mlp_to_stream(stream, norms.own, mlp, room, norms.next);
}

// The experts that every token goes to.
void run_shared(const LayerContext& c, const ops::GatedMlp& mlp, const ops::Activation& x,
                const Tensor& out) {
  const GateUp both = take_gate_up(c, mlp, x.rows());
  const ops::Linear* const weights[] = {&mlp.gate, &mlp.up};
  const Tensor results[] = {both.gate, both.up};
  c.exec.ops.linear_group(x, weights, results);
  c.exec.ops.linear(run_silu(c, mlp, both), mlp.down, out);
}

// Router, experts and shared experts: all that read the input of a mixture.
std::vector<const ops::Linear*> input_consumers(const MoeLayer& layer) {
  std::vector<const ops::Linear*> consumers{&layer.router};
  for (const ops::GatedMlp& expert : layer.experts) {
    consumers.push_back(&expert.gate);
    consumers.push_back(&expert.up);
  }
  if (layer.shared) {
    consumers.push_back(&layer.shared->gate);
    consumers.push_back(&layer.shared->up);
  }
  return consumers;
}

void run_moe(const LayerContext& c, const MoeLayer& layer, const ops::NormWeight& norm,
             ops::ResidualStream& stream) {
  const auto& [ops, arena, kv, batch] = c.exec;
  const ops::Activation x =
      take_activation(c, batch.rows, stream.sum.cols(), input_consumers(layer));
  if (stream.delta) {
    ops.add_rms_norm(stream.sum, stream.delta, norm, x);
  } else {
    ops.rms_norm(stream.sum, norm, x);
  }
  stream.delta = stream.room;
  const Tensor& out = stream.room;
  const Tensor logits = arena.take(DType::f32, {batch.rows, layer.spec.experts});
  ops.linear(x, layer.router, logits);
  const ops::Routing routing{arena.take(DType::i32, {batch.rows, layer.spec.top_k}),
                             arena.take(DType::f32, {batch.rows, layer.spec.top_k})};
  ops.moe_route(logits, layer.router_bias, layer.spec, routing);
  ops.moe_experts(x, routing, layer.experts, out);
  if (!layer.shared) return;
  const Tensor shared = arena.take(c.activation, {batch.rows, out.cols()});
  run_shared(c, *layer.shared, x, shared);
  ops.add(out, shared, out);
}

}  // namespace

void run_attention(const LayerContext& c, const std::variant<GqaLayer, MlaLayer>& layer,
                   int64_t index, const LayerNorms& norms, ops::ResidualStream& stream) {
  const Arena::Scope scratch(c.exec.arena);
  if (const auto* gqa = std::get_if<GqaLayer>(&layer)) {
    run_gqa(c, *gqa, index, norms, stream);
  } else {
    run_mla(c, std::get<MlaLayer>(layer), index, norms, stream);
  }
}

void run_ffn(const LayerContext& c, const std::variant<ops::GatedMlp, MoeLayer>& layer,
             const LayerNorms& norms, ops::ResidualStream& stream) {
  const Arena::Scope scratch(c.exec.arena);
  if (const auto* dense = std::get_if<ops::GatedMlp>(&layer)) {
    run_dense(c, *dense, norms, stream);
  } else {
    run_moe(c, std::get<MoeLayer>(layer), norms.own, stream);
  }
}

}  // namespace octet::model
