#include "backends/cpu/kernels/checks.h"

#include <fmt/format.h>

#include <string_view>

#include "numerics/attention_rule.h"

namespace octet::cpu {
namespace {

bool is_output(DType type) {
  return type == DType::f32 || type == DType::bf16;
}

const Tensor& weight_of(const ops::Linear& w) {
  return w.quant ? w.quant.codes : w.plain;
}

// The scales of a quantized matrix have the shape that its format says; one alone may be a scalar,
// and a column of them a vector.
bool scales_fit(const QuantTensor& q) {
  if (q.format.scale == ScaleType::unit) return true;
  return q.scales && q.scales.type == DType::f32 &&
         q.scales.count() == scale_shape(q.format.grid, q.codes.rows(), q.codes.cols()).count();
}

bool lse_fits(const Tensor& lse, const Tensor& q) {
  return !lse || (lse.type == DType::f32 && lse.rows() == q.shape[0] && lse.cols() == q.shape[1]);
}

bool batch_fits(const ops::Batch& batch) {
  return batch.block_table && batch.block_table.type == DType::i32 &&
         batch.block_table.shape.rank == 2 &&
         batch.block_table.shape[0] >= static_cast<int64_t>(batch.sequences.size());
}

}  // namespace

void check_linear(const char* op, const ops::Activation& x, const ops::Linear& w,
                  const Tensor& out) {
  const Tensor& given = w.input ? x.quant.codes : x.plain;
  const Tensor& weight = weight_of(w);
  const bool shapes = given && weight && out && given.cols() == w.in && weight.rows() == w.out &&
                      weight.cols() == w.in && out.cols() == w.out && out.rows() == given.rows() &&
                      (!w.bias || w.bias.count() == w.out) && (!w.quant || scales_fit(w.quant)) &&
                      (!w.input || scales_fit(x.quant));
  const bool types = shapes && is_output(out.type) &&
                     (w.input ? is_code(given.type) : is_float_type(given.type)) &&
                     (w.quant ? is_code(weight.type) : is_float_type(weight.type)) &&
                     (!w.bias || is_float_type(w.bias.type));
  if (types) return;
  unsupported(
      fmt::format("{} {}", op, w.name), shapes ? "unsupported types" : "shapes do not fit",
      {{"x", given}, {"w", weight}, {"scales", w.quant.scales}, {"bias", w.bias}, {"out", out}});
}

void check_attention(const Tensor& q, const ops::GqaCache& cache, const ops::Batch& batch,
                     const Tensor& out, const Tensor& lse) {
  const bool ranks = q.shape.rank == 3 && out.shape.rank == 3 && cache.k.shape.rank == 4 &&
                     cache.v.shape == cache.k.shape && cache.k.contiguous() &&
                     cache.v.contiguous() && cache.k.shape[2] > 0;
  const bool shapes = ranks && q.shape == out.shape && q.shape[0] == batch.rows &&
                      q.shape[2] == cache.k.shape[3] && q.shape[1] % cache.k.shape[2] == 0 &&
                      lse_fits(lse, q) && batch_fits(batch);
  const auto scale_fits = [&](const Tensor& scale) {
    const int64_t cells = cache.k.shape[0] * cache.k.shape[2];
    return scale && scale.type == DType::f32 && scale.contiguous() &&
           scale.count() == (cache.token_heads() ? cache.k.shape[1] * cells : cells);
  };
  const bool coded = is_code(cache.k.type);
  const bool types = shapes && is_float_type(q.type) && is_output(out.type) &&
                     cache.v.type == cache.k.type && (coded || is_float_type(cache.k.type)) &&
                     (!coded || (scale_fits(cache.k_scale) && scale_fits(cache.v_scale)));
  if (types) return;
  unsupported("attention", shapes ? "unsupported types or scales" : "shapes do not fit",
              {{"q", q},
               {"k", cache.k},
               {"v", cache.v},
               {"k_scale", cache.k_scale},
               {"v_scale", cache.v_scale},
               {"block_table", batch.block_table},
               {"out", out},
               {"lse", lse}});
}

void check_mla_attention(const Tensor& q_latent, const Tensor& q_pe, const ops::MlaCache& cache,
                         const ops::Batch& batch, const Tensor& out, const Tensor& lse) {
  const Tensor &latent = cache.latent, &rope = cache.rope;
  const bool ranks = q_latent.shape.rank == 3 && q_pe.shape.rank == 3 && out.shape.rank == 3 &&
                     latent.shape.rank == 3 && rope.shape.rank == 3 && latent.contiguous() &&
                     rope.contiguous();
  const bool shapes = ranks && q_latent.shape == out.shape && q_latent.shape[0] == batch.rows &&
                      q_latent.shape[2] == latent.shape[2] && q_pe.shape[0] == batch.rows &&
                      q_pe.shape[1] == q_latent.shape[1] && q_pe.shape[2] == rope.shape[2] &&
                      latent.shape[0] == rope.shape[0] && latent.shape[1] == rope.shape[1] &&
                      lse_fits(lse, q_latent) && batch_fits(batch);
  const bool coded = is_code(latent.type);
  const bool scaled = coded && cache.format.scale != ScaleType::unit;
  const int64_t group = attention_rule::kLatentGroup;
  const bool types =
      shapes && is_float_type(q_latent.type) && is_float_type(q_pe.type) &&
      is_float_type(rope.type) && is_output(out.type) && (coded || is_float_type(latent.type)) &&
      (!scaled || (cache.latent_scale && cache.latent_scale.contiguous() &&
                   cache.latent_scale.type == DType::f32 &&
                   cache.latent_scale.cols() == (latent.shape[2] + group - 1) / group));
  if (types) return;
  unsupported("mla_attention", shapes ? "unsupported types or scales" : "shapes do not fit",
              {{"q_latent", q_latent},
               {"q_pe", q_pe},
               {"latent", latent},
               {"latent_scale", cache.latent_scale},
               {"rope", rope},
               {"block_table", batch.block_table},
               {"out", out},
               {"lse", lse}});
}

void check_mla_product(const char* op, const Tensor& x, const ops::Linear& kv_b, int64_t nope,
                       const Tensor& out) {
  const bool absorb = std::string_view(op) == "mla_absorb";
  const Tensor& weight = weight_of(kv_b);
  bool shapes = x && out && weight && x.shape.rank == 3 && out.shape.rank == 3 &&
                x.shape[0] == out.shape[0] && x.shape[1] == out.shape[1] && out.shape[1] > 0 &&
                weight.rows() == kv_b.out && weight.cols() == kv_b.in &&
                kv_b.out % out.shape[1] == 0 && (!kv_b.quant || scales_fit(kv_b.quant));
  if (shapes) {
    const int64_t per_head = kv_b.out / out.shape[1];
    shapes = nope > 0 && per_head >= nope &&
             (absorb ? x.shape[2] >= nope && out.shape[2] == kv_b.in
                     : x.shape[2] == kv_b.in && out.shape[2] == per_head - nope);
  }
  const bool types = shapes && is_float_type(x.type) && is_output(out.type) &&
                     (kv_b.quant ? is_code(weight.type) : is_float_type(weight.type)) && !kv_b.bias;
  if (types) return;
  unsupported(op, shapes ? "unsupported types" : "shapes do not fit",
              {{"x", x}, {"kv_b", weight}, {"scales", kv_b.quant.scales}, {"out", out}});
}

void check_moe(const ops::Activation& x, const ops::Routing& routing,
               std::span<const ops::GatedMlp> experts, const Tensor& out) {
  const int64_t rows = x.rows();
  bool fits = !experts.empty() && out && routing.experts && routing.weights &&
              routing.experts.rows() == rows && out.rows() == rows &&
              routing.weights.rows() == rows && routing.weights.cols() == routing.experts.cols() &&
              routing.experts.type == DType::i32 && routing.weights.type == DType::f32 &&
              is_output(out.type);
  for (const ops::GatedMlp& mlp : experts) {
    fits = fits && mlp.gate.in == x.cols() && mlp.up.in == x.cols() &&
           mlp.gate.out == experts[0].gate.out && mlp.up.out == mlp.gate.out &&
           mlp.down.in == mlp.gate.out && mlp.down.out == out.cols();
  }
  if (fits) return;
  unsupported("moe_experts", "shapes or types do not fit",
              {{"x", x.plain ? x.plain : x.quant.codes},
               {"experts", routing.experts},
               {"weights", routing.weights},
               {"gate", experts.empty() ? Tensor{} : weight_of(experts[0].gate)},
               {"down", experts.empty() ? Tensor{} : weight_of(experts[0].down)},
               {"out", out}});
}

}  // namespace octet::cpu
