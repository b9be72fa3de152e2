// A pre-norm decoder: what every family so far is. A family's file says where the weights are; this
// class runs them.
#pragma once

#include <memory>
#include <vector>

#include "model/binder.h"
#include "model/layers.h"
#include "model/model.h"
#include "model/rope.h"

namespace octet::model {

// What a family binds.
struct DecoderWeights {
  Tensor embedding;  // [vocab, hidden]
  std::vector<DecoderLayer> layers;
  ops::NormWeight final_norm;
  ops::Linear head;  // [vocab, hidden], 16-bit
  float attention_scale = 1.0f;
  KvScales kv_scales;
  std::vector<std::string> notices;
};

class Decoder final : public Model {
 public:
  // `binder` has bound `weights`; its memory moves here.
  Decoder(Binder& binder, DecoderWeights weights);

  const ModelConfig& config() const override { return config_; }
  DType activation() const override { return activation_; }
  bool fp8_attention() const override { return fp8_attention_; }
  int64_t kv_group_tokens() const override { return kv_group_tokens_; }
  const KvScales& kv_scales() const override { return weights_.kv_scales; }
  std::vector<LinearUse> linears() const override;
  const std::vector<PolicyRow>& precisions() const override { return precisions_; }
  const std::vector<std::string>& notices() const override { return weights_.notices; }
  int64_t parameters() const override;
  int64_t owned_bytes() const override { return memory_.bytes(); }
  using Model::forward;
  Tensor forward(const Exec& exec, const LayerObserver& observer) const override;

 private:
  ModelConfig config_;
  DType activation_;
  bool fp8_attention_;
  int64_t kv_group_tokens_;
  WeightMemory memory_;
  DecoderWeights weights_;
  RopeMemory rope_;
  std::vector<PolicyRow> precisions_;
};

// Embedding, final norm and head, which all families name alike.
void bind_ends(Binder& binder, DecoderWeights& weights);

}  // namespace octet::model
