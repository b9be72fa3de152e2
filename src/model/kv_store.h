// Owns the paged KV cache of all layers on one device.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "ops/backend.h"

namespace octet::model {

// --kv-cache-dtype. `automatic` follows the arithmetic: FP8 with --compute fp8, else its own type.
// With token_heads, E4M3 and INT8, each token and KV head has its own scale; with token_groups,
// INT8 of a latent (MLA), each token and 128 values, as E4M3's have anyway.
enum class KvType : uint8_t {
  automatic,
  fp32,
  bf16,
  fp8_e4m3,
  fp8_e5m2,
  fp8_token_heads,
  int8_token_heads,
  int8_token_groups,
};

// "auto", "fp32", "bf16" (or "bfloat16"), "fp8" (= e4m3), "fp8_e4m3", "fp8_e5m2",
// "fp8_per_token_head", "int8_per_token_head" (vLLM's names), "int8_per_token_group". Throws Error.
KvType parse_kv_type(std::string_view text);

bool is_fp8(KvType type);           // then attention can run in FP8 over it
bool has_token_heads(KvType type);  // KvScaling::token_heads

struct KvOptions {
  DType type = DType::bf16;        // of K and V or the latent: e4m3, e5m2, i8, bf16, f32
  DType activation = DType::bf16;  // the rope part of MLA keeps this
  int64_t block_tokens = 16;
  int64_t group_tokens = ops::kGroupTokens;         // of block groups
  bool unit_scale = false;                          // MLA FP8 without scales of tokens
  bool channels = false;                            // KvLayerFormat::channels
  ops::KvScaling scaling = ops::KvScaling::groups;  // GQA of codes
};

// What every layer's cache holds, for this model. Error if blocks do not fill its groups, for
// scales by KV head of a latent, which has no heads, and for INT8 whose scales are found earlier.
ops::KvLayout kv_layout(const ModelConfig& config, const KvOptions& options);

// Fixed scales of channels, and what undoes them: f32 [heads, dim] on the device, powers of two, so
// that neither product changes a mantissa.
struct ChannelScales {
  Tensor scale, inverse;
};
// Of a layer: K and V [kv_heads, head_dim]; or a latent [1, kv_lora], which is both.
struct KvChannels {
  ChannelScales k, v;
};

// By layer; each empty where the checkpoint has none.
struct KvScales {
  std::vector<Tensor> k, v;  // f32 [kv_heads] on the device
  std::vector<KvChannels> channels;
};

class KvStore {
 public:
  // `blocks` blocks in every layer. Error if the device has too little memory, or no kernels for
  // scales by token and head, or an INT8 latent.
  KvStore(ops::Backend& backend, const ops::KvLayout& layout, int64_t blocks,
          const KvScales& scales = {});

  const ops::GqaCache& gqa(int64_t layer) const { return gqa_[static_cast<size_t>(layer)]; }
  const ops::MlaCache& mla(int64_t layer) const { return mla_[static_cast<size_t>(layer)]; }
  // By which the layer divides what it writes and multiplies what it reads; null for none.
  const KvChannels* channels(int64_t layer) const {
    const auto i = static_cast<size_t>(layer);
    return layout_.layers[i].channels ? &channels_[i] : nullptr;
  }
  const ops::KvLayout& layout() const { return layout_; }
  int64_t blocks() const { return blocks_; }
  int64_t bytes() const { return blocks_ * layout_.bytes_per_block(); }

  // Fills every byte of the cache (0xFF is NaN in every format that it holds): tests prove with it
  // that nothing reads what was not written.
  void poison(ops::Backend& backend, uint8_t byte) const;

 private:
  ops::KvLayout layout_;
  int64_t blocks_;
  std::vector<Buffer> buffers_;
  std::vector<ops::GqaCache> gqa_;  // indexed by layer; unused entries are empty
  std::vector<ops::MlaCache> mla_;
  std::vector<KvChannels> channels_;
};

}  // namespace octet::model
