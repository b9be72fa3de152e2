// The only seam between what decides and what computes. A Backend is one object: a device, a stream
// and a workspace. No op takes a stream and nothing is ambient. Ops are enqueued in order; results
// may be read on the host after sync().
//
// Rules (docs/DESIGN.md, section 4):
//   * Ops exist at the grain at which a GPU wants to fuse. A fused op has a default body that calls
//     its parts: the body is the specification, and the oracle of the fused kernel.
//   * forward never reads device data on the host: routing stays on the device.
//   * Outputs never alias inputs unless the comment of the op says "may be in place".
//   * Shapes below are [rows, cols]; "T" is Batch::rows. Types: activations f32 or bf16 (all
//     activations of a model share one), norms compute in FP32 and round once at the end.
//   * A shape or type that an op cannot take is a Fault that prints op, shapes and types.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "ops/kernel_choice.h"
#include "ops/kv_layout.h"
#include "ops/op_types.h"
#include "tensor/buffer.h"

namespace octet::ops {

struct BackendInfo {
  std::string name;  // "cpu avx512_bf16, 2 threads"
  Device device;
  int launch_depth = 1;        // steps in flight that keep this device busy: 1 on a CPU, 2 on a GPU
  bool int8 = true;            // multiplies INT8 codes, not FP8 alone
  bool kv_token_heads = true;  // caches K and V with KvScaling::token_heads
  bool kv_channels = true;     // scale_heads, for KvLayerFormat::channels
  bool graphs = false;       // run_step replays, so that it pays to give steps one of a few shapes
  int64_t memory_bytes = 0;  // of the device, free at construction
  // Only of devices with memory of their own; else 0.
  int64_t total_bytes = 0;      // of the device
  int64_t workspace_bytes = 0;  // taken at construction
  int64_t reserve_bytes = 0;    // that the driver takes later, for kernels and graphs
};

class Backend {
 public:
  virtual ~Backend() = default;

  // --- services ---------------------------------------------------------------------------------
  virtual const BackendInfo& info() const = 0;
  // To call on a thread, other than the one that made the backend, before it uses the backend. One
  // thread at a time does.
  virtual void enter_thread() {}
  // Device memory. Error if there is not enough; `what` names the use ("KV cache") in its text.
  virtual Buffer alloc(size_t bytes, const std::string& what) = 0;
  // Host memory that the device copies from and to without waiting for the host: pinned, on a GPU.
  virtual Buffer alloc_host(size_t bytes, const std::string& what);
  // Copies between host and device or on the device, in stream order. Same type, shape, contiguous.
  // Host memory of alloc_host stays untouched until the copy is done; other host memory may be
  // changed at once.
  virtual void copy(const Tensor& from, const Tensor& to) = 0;
  virtual void fill(const Tensor& tensor, uint8_t byte) = 0;
  // Waits for all that was enqueued. Fault if the device failed.
  virtual void sync() = 0;
  // A point in the stream, and the wait for all that was enqueued before it (not after it). Fault
  // if the device failed.
  virtual uint64_t record();
  virtual void wait(uint64_t point);
  // Which kernel runs `desc`, and why not the others.
  virtual Choice choose(const OpDesc& desc) const = 0;
  // Runs a step. A backend with graphs captures `body` the second time that `key` comes, and from
  // then on replays it; others call it. Equal keys promise the same ops on tensors of the same
  // addresses and shapes. Key 0 is never captured.
  virtual void run_step(uint64_t key, FunctionRef<void()> body);

  // --- element-wise -----------------------------------------------------------------------------
  // out[t] = table[tokens[t]]; table bf16/f16/f32 [vocab, hidden]. Ids outside the vocabulary:
  // Fault.
  virtual void embed(const Tensor& table, const Tensor& tokens, const Tensor& out) = 0;
  // tokens[i] = max(0, sampled[source[i]]) where source[i] >= 0: ids that a step before left on the
  // device. That step reports a -1 (its logits were NaN), so this one need not fail as well. All
  // i32; tokens and source [n].
  virtual void take_tokens(const Tensor& sampled, const Tensor& source, const Tensor& tokens) = 0;
  // out = x + y, rounded once; may be in place.
  virtual void add(const Tensor& x, const Tensor& y, const Tensor& out) = 0;
  // out[i] = x[rows[i]]; rows i32 [n].
  virtual void gather_rows(const Tensor& x, const Tensor& rows, const Tensor& out) = 0;
  // out = x · rsqrt(mean(x²) + eps) · weight, in FP32, rounded once.
  virtual void rms_norm(const Tensor& x, const NormWeight& norm, const Activation& out) = 0;
  // residual += delta (in place, rounded to its type), then rms_norm of it.
  virtual void add_rms_norm(const Tensor& residual, const Tensor& delta, const NormWeight& norm,
                            const Activation& out);
  // Codes and scales of x in out.format: the rule is numerics/quantize.h, for every grid. If
  // `fixed_scale` (f32 [1]) is present, it is used and copied to out.scales instead.
  virtual void quantize(const Tensor& x, const QuantTensor& out,
                        const Tensor& fixed_scale = {}) = 0;
  // out = silu(gate) ⊙ up, in FP32, rounded once.
  virtual void silu_mul(const Tensor& gate, const Tensor& up, const Activation& out) = 0;
  // Rotates x [T, heads, dim] in place by the angles of positions i32 [T].
  virtual void rope(const Tensor& x, const RopeTable& table, const Tensor& positions) = 0;
  // x[t, h, i] *= factors[h / (heads / n), i] in place, rounded once to x's type: x [T, heads,
  // dim], factors f32 [n, dim], where n divides heads. Powers of two change no mantissa.
  virtual void scale_heads(const Tensor& x, const Tensor& factors) = 0;

  // --- linear -----------------------------------------------------------------------------------
  // out [T, w.out] = x · Wᵀ + bias, accumulated in FP32, rounded once to out.type (f32 or bf16).
  // If w.input is set and x.quant has that format, x.quant is used; else x.plain is quantized here.
  virtual void linear(const Activation& x, const Linear& w, const Tensor& out) = 0;
  // Several linears of one input; by default, one after another.
  virtual void linear_group(const Activation& x, std::span<const Linear* const> ws,
                            std::span<const Tensor> outs);
  // The linears of the RMS norm of a residual stream: sum += delta (if delta is present), then
  // rms_norm into `normed`, then linear_group. `stream` has no delta then, and its sum may lie in
  // what was `spare`. What `normed` and `spare` hold afterwards is nobody's to read.
  virtual void norm_linear_group(ResidualStream& stream, const NormWeight& norm,
                                 const Activation& normed, std::span<const Linear* const> ws,
                                 std::span<const Tensor> outs);
  // A linear whose result, rounded to the stream's type, is added to a stream without a delta: by
  // default it becomes the delta. A backend that adds it at once may leave the moments of the norm
  // that reads the stream next, `next`.
  virtual void linear_to_stream(const Activation& x, const Linear& w, ResidualStream& stream,
                                const NormWeight& next);
  // A gated MLP of the norm of a residual stream, added to the stream: norm_linear_group of gate
  // and up, silu_mul, and linear_to_stream of down, by default. What `room` holds afterwards is
  // nobody's to read.
  virtual void norm_mlp_to_stream(ResidualStream& stream, const NormWeight& norm,
                                  const GatedMlp& mlp, const MlpRoom& room, const NormWeight& next);
  // Logits: out f32 [n, vocab] = x [n, hidden] · Wᵀ, weights 16-bit, accumulated in FP32.
  virtual void head_linear(const Tensor& x, const Linear& w, const Tensor& out) = 0;

  // --- attention --------------------------------------------------------------------------------
  // Writes K and V [T, kv_heads, dim] (K rotated already) of this step into the cache, and chooses
  // the scales of blocks that start here (kv_layout.h). Sequences and positions come from `batch`.
  virtual void kv_write(const Tensor& k, const Tensor& v, const GqaCache& cache,
                        const Batch& batch) = 0;
  // rope of q and of k (in place), then kv_write.
  virtual void rope_kv_write(const Tensor& q, const Tensor& k, const Tensor& v,
                             const RopeTable& table, const GqaCache& cache, const Batch& batch);
  // Causal attention over the cache, this step's tokens included: q [T, heads, dim] ->
  // out [T, heads, dim]. Head h reads KV head h / (heads / kv_heads). FP32 softmax. If `lse` is
  // present (f32 [T, heads]) it receives the natural log-sum-exp of the scaled scores.
  virtual void attention(const Tensor& q, const GqaCache& cache, const Batch& batch,
                         const AttentionSpec& spec, const Tensor& out, const Tensor& lse = {}) = 0;
  // rope_kv_write, then attention. What q, k and v hold afterwards is nobody's to read.
  virtual void rope_kv_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const RopeTable& table, const GqaCache& cache, const Batch& batch,
                                 const AttentionSpec& spec, const Tensor& out,
                                 const Tensor& lse = {});

  // MLA. The latent c [T, kv_lora] (normed) and k_pe [T, rope_dim] (rotated) go into the cache.
  virtual void mla_kv_write(const Tensor& latent, const Tensor& k_pe, const MlaCache& cache,
                            const Batch& batch) = 0;
  // Absorption, q̃ = W_UKᵀ q_nope per head: q [T, heads, nope + rope] (only its first nope columns
  // are read) and kv_b [heads * (nope + v), kv_lora] -> out [T, heads, kv_lora].
  virtual void mla_absorb(const Tensor& q, const Linear& kv_b, int64_t nope, const Tensor& out) = 0;
  // score = (q̃ · c + q_pe · k_pe) · scale; out [T, heads, kv_lora] = Σ softmax(score) c.
  // q_pe [T, heads, rope_dim] is rotated already.
  virtual void mla_attention(const Tensor& q_latent, const Tensor& q_pe, const MlaCache& cache,
                             const Batch& batch, const AttentionSpec& spec, const Tensor& out,
                             const Tensor& lse = {}) = 0;
  // out [T, heads, v] = W_UV õ per head, for õ [T, heads, kv_lora]: the rows nope.. of each head of
  // kv_b.
  virtual void mla_expand(const Tensor& o_latent, const Linear& kv_b, int64_t nope,
                          const Tensor& out) = 0;

  // --- mixture of experts -----------------------------------------------------------------------
  // logits f32 [T, experts]; bias f32 [experts] or absent.
  virtual void moe_route(const Tensor& logits, const Tensor& bias, const RouterSpec& spec,
                         const Routing& out) = 0;
  // out [T, hidden] = Σ weight · expert(x), summed in FP32 in ascending order of the expert.
  virtual void moe_experts(const Activation& x, const Routing& routing,
                           std::span<const GatedMlp> experts, const Tensor& out) = 0;

  // --- sampling ---------------------------------------------------------------------------------
  // logits f32 [n, vocab]; rows u8 [n, sizeof(SampleRow)], one SampleRow each. The order of filters
  // is vLLM's: temperature, min_p, top_k, top_p (models-numerics F.1). A row that holds a
  // NaN, wherever it stands, or nothing but -Inf has no token: -1, with a log-probability of NaN,
  // rank 0, and best tokens of -1. Masks come before edits, and both before the filters; a row that
  // they leave no token has the token -1, a log-probability of -Inf, rank 0, and its best tokens.
  virtual void sample(const Tensor& logits, const Tensor& rows, const LogitEdits& edits,
                      const SampleResult& out) = 0;
};

}  // namespace octet::ops
