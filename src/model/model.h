// A model that is loaded and can compute: the one class that the engine and the evaluators see.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/config.h"
#include "model/kv_store.h"
#include "ops/backend.h"
#include "tensor/buffer.h"

namespace octet::model {

// The arithmetic of a run (--compute).
enum class Compute : uint8_t {
  fp32,  // activations FP32, no activation is quantized: the yardstick
  bf16,  // activations BF16, no activation is quantized
  fp8,   // activations BF16, quantized before every quantized linear
};
std::string_view name_of(Compute compute);
Compute parse_compute(std::string_view text);  // throws Error

struct LoadOptions {
  Compute compute = Compute::fp8;
  // What fp8 does to a 16-bit checkpoint, linear by linear, at load. An FP8 checkpoint brings its
  // own formats.
  LinearFormat online;
  std::vector<PolicyRow> policy;  // rows of --policy FILE, above all others
  bool fp8_attention = true;      // with Compute::fp8 only (--attention fp8|bf16)
  // Tokens that share a scale of an FP8 cache without fixed ones (--kv-group-tokens).
  int64_t kv_group_tokens = ops::kGroupTokens;
  int64_t max_positions = 0;  // of the RoPE table; 0 = the model's own limit
  // False: names, types and shapes are checked and weights are left unread, for a plan that
  // computes nothing.
  bool read_weights = true;
};

// Everything that forward needs, beside the weights.
struct Exec {
  ops::Backend& ops;
  Arena& arena;
  const KvStore& kv;
  const ops::Batch& batch;
};

// Told, on the host, the residual stream [rows, hidden] that enters each layer and what the layer's
// attention adds to it; and with layer = config().layers what enters the final norm (in steps that
// want logits), and an absent tensor. The device has finished when it is called. For measurements
// and tests: an ordinary step has none.
using LayerObserver =
    std::function<void(int64_t layer, const Tensor& residual, const Tensor& attention)>;

// A linear of the model and how often a token uses it: for ledgers and reports.
struct LinearUse {
  const ops::Linear* linear = nullptr;
  int64_t layer = -1;    // -1: the head
  double per_token = 1;  // top_k / experts for a routed expert
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual DType activation() const = 0;  // f32 or bf16
  virtual bool fp8_attention() const = 0;
  virtual int64_t kv_group_tokens() const = 0;
  virtual const KvScales& kv_scales() const = 0;
  virtual std::vector<LinearUse> linears() const = 0;
  // The precision of each linear and why, in the order of linears().
  virtual const std::vector<PolicyRow>& precisions() const = 0;
  // What a user should know: "1 multi-token-prediction layer is skipped".
  virtual const std::vector<std::string>& notices() const = 0;
  virtual int64_t owned_bytes() const = 0;  // memory beside the mapped checkpoint

  // Enqueues one step and returns its logits, f32 [batch.logits_rows, vocab], in exec.arena: valid
  // until the caller rewinds it. Absent if batch.logits_rows is empty.
  virtual Tensor forward(const Exec& exec, const LayerObserver& observer) const = 0;
  Tensor forward(const Exec& exec) const { return forward(exec, {}); }

  // Weight bytes that decoding one token reads, scales included, head included.
  double bytes_per_token() const;
  // Numbers that were trained: weights of all kinds, biases and norms; scales are not.
  virtual int64_t parameters() const = 0;
};

// Binds the weights of `config` from `source` for `backend`: finds the family, resolves every
// tensor's precision, quantizes what the policy says. Throws Error naming the tensor, its file,
// what was expected and found.
std::unique_ptr<Model> load_model(const ModelConfig& config,
                                  std::shared_ptr<const WeightSource> source, ops::Backend& backend,
                                  const LoadOptions& options);

}  // namespace octet::model
