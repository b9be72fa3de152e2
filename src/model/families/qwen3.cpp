// Qwen3: each head of q and k is normed before RoPE (HF qwen3/modeling_qwen3.py), and its mixture
// of experts (HF qwen3_moe/modeling_qwen3_moe.py), which has no shared expert.
#include <fmt/format.h>

#include <algorithm>

#include "model/config_read.h"
#include "model/families/families.h"
#include "model/families/parts.h"

namespace octet::model {
namespace {

void read_attention(const JsonView& config, ModelConfig& model) {
  // HF gives an absent key the width 128, whatever the heads and hidden_size are.
  if (!config.has("head_dim")) {
    config.refuse("head_dim", "a required field is missing", "the width of a head");
  }
  Gqa& attention = read_gqa(config, model);
  attention.qkv_bias = attention.o_bias = config.get<bool>("attention_bias", false);
  attention.qk_norm = true;
}

// Layer i is a mixture iff mlp_only_layers does not have it and decoder_sparse_step divides i + 1.
std::vector<bool> read_moe_layers(const JsonView& config, int64_t layers) {
  const auto dense = config.get<std::vector<int64_t>>("mlp_only_layers", {});
  for (const int64_t layer : dense) {
    if (layer >= 0 && layer < layers) continue;
    config.refuse("mlp_only_layers", "there is no such layer", fmt::format("0 to {}", layers - 1));
  }
  const int64_t step = config.integer("decoder_sparse_step", 1, kMostLayers, 1);
  std::vector<bool> mixture;
  for (int64_t i = 0; i < layers; ++i) {
    mixture.push_back((i + 1) % step == 0 && std::ranges::find(dense, i) == dense.end());
  }
  return mixture;
}

}  // namespace

void read_qwen3(const JsonView& config, ModelConfig& model) {
  read_attention(config, model);
  read_window_by_layer(config, model);
  model.ffn = DenseFfn{.intermediate = read_width(config, "intermediate_size")};
}

void read_qwen3_moe(const JsonView& config, ModelConfig& model) {
  read_attention(config, model);
  // Unlike Qwen3 without experts, all layers share the window, whatever max_window_layers says.
  read_window_if_used(config, model);
  MoeFfn moe;
  moe.layers = read_moe_layers(config, model.layers);
  // transformers 5 writes the name that Mixtral has.
  const bool renamed = !config.has("num_experts") && config.has("num_local_experts");
  moe.router = read_softmax_router(config, renamed ? "num_local_experts" : "num_experts");
  moe.router.normalize = config.get<bool>("norm_topk_prob");  // required: models differ
  moe.intermediate = read_width(config, "moe_intermediate_size");
  moe.dense_intermediate = read_width(config, "intermediate_size");
  model.ffn = moe;
}

DecoderWeights bind_qwen3(Binder& binder) {
  return bind_gqa_decoder(binder);
}

}  // namespace octet::model
