// Owns the paged KV cache of all layers on one device.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "ops/backend.h"

namespace octet::model {

// --kv-cache-dtype. `automatic` follows the arithmetic: FP8 with --compute fp8, else its own type.
// Of the last two, E4M3 and INT8, each token and KV head has its own scale.
enum class KvType : uint8_t {
  automatic,
  fp32,
  bf16,
  fp8_e4m3,
  fp8_e5m2,
  fp8_token_heads,
  int8_token_heads,
};

// "auto", "fp32", "bf16" (or "bfloat16"), "fp8" (= e4m3), "fp8_e4m3", "fp8_e5m2",
// "fp8_per_token_head", "int8_per_token_head" (vLLM's names). Throws Error.
KvType parse_kv_type(std::string_view text);

bool is_fp8(KvType type);           // then attention can run in FP8 over it
bool has_token_heads(KvType type);  // KvScaling::token_heads

struct KvOptions {
  DType type = DType::bf16;        // of K and V or the latent: e4m3, e5m2, bf16, f32; of K, V: i8
  DType activation = DType::bf16;  // the rope part of MLA keeps this
  int64_t block_tokens = 16;
  int64_t group_tokens = ops::kGroupTokens;         // of block groups
  bool unit_scale = false;                          // MLA FP8 without scales, for comparison
  ops::KvScaling scaling = ops::KvScaling::groups;  // GQA of codes
};

// What every layer's cache holds, for this model. Error if blocks do not fill its groups, and for
// scales by KV head of a latent, which has no heads.
ops::KvLayout kv_layout(const ModelConfig& config, const KvOptions& options);

// Per layer and KV head, f32 [kv_heads] on the device; empty where the checkpoint has none.
struct KvScales {
  std::vector<Tensor> k, v;
};

class KvStore {
 public:
  // `blocks` blocks in every layer. Error if the device has too little memory, or no kernels for
  // scales by token and head.
  KvStore(ops::Backend& backend, const ops::KvLayout& layout, int64_t blocks,
          const KvScales& scales = {});

  const ops::GqaCache& gqa(int64_t layer) const { return gqa_[static_cast<size_t>(layer)]; }
  const ops::MlaCache& mla(int64_t layer) const { return mla_[static_cast<size_t>(layer)]; }
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
};

}  // namespace octet::model
