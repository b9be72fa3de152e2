// The calibrated scales of a KV cache, under the names that writers gave them. For K (and V alike),
// the first that is there holds:
//
//   self_attn.kv_scale            of both (AutoFP8, before July 2024)
//   self_attn.k_proj.k_scale      ModelOpt
//   self_attn.k_scale             compressed-tensors, AutoFP8
//   self_attn.attn.k_scale        exports from inside an engine
//   self_attn.k_proj.output_scale compressed-tensors, older
//
// One value, or one a KV head in any shape ([heads, 1, 1]). Negative values mean "not loaded", as
// engines that write their own state leave them. Where one side is missing, the other's scale holds
// for both: it is the larger that is there.
//
// Beside them, scales of channels, which the values are divided by before the others count, powers
// of two, [kv_heads * head_dim] or [kv_lora] in any shape:
//
//   self_attn.k_channel_scale, .v_channel_scale   octet quantize --kv-scale-granularity channel
//   self_attn.latent_channel_scale                of a latent (MLA), for E4M3 without other scales
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/binder.h"

namespace octet::model {

class KvScaleBinder {
 public:
  explicit KvScaleBinder(Binder& binder) : binder_(binder) {}
  // The next layer's attention module, "model.layers.0.self_attn". Error for a scale that is zero,
  // not finite, or of another count than 1 or kv_heads.
  void bind(const std::string& attention, int64_t kv_heads, int64_t head_dim);
  // The same of a latent. Error for a scale of a channel that is no power of two.
  void bind_latent(const std::string& attention, int64_t kv_lora);
  // After the last layer: all scales, or none where some layer has none (a wrong scale is silent:
  // block groups are better). Adds what a user should know.
  KvScales finish(std::vector<std::string>& notices);

 private:
  struct Side {
    std::string name;  // empty: none
    std::vector<float> values;
    explicit operator bool() const { return !name.empty(); }
  };
  Side find_side(const std::string& attention, char side, int64_t kv_heads);
  ChannelScales channels(const std::string& name, int64_t heads, int64_t dim);

  Binder& binder_;
  KvScales scales_;
  int64_t layers_ = 0;
  std::string one_sided_, not_loaded_;  // the first of each
  bool all_ones_ = true;
};

// `source` with these scales in the place of all that it has: by tensor name,
// "model.layers.0.self_attn.k_scale", one value a KV head, and those of channels. `origin` says in
// errors where they come from.
std::shared_ptr<const WeightSource> with_kv_scales(std::shared_ptr<const WeightSource> source,
                                                   std::map<std::string, std::vector<float>> scales,
                                                   std::string origin);

}  // namespace octet::model
