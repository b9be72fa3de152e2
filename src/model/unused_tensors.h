// Tensors of a checkpoint that the model does not use: the sign of a config.json that belongs to
// another checkpoint, whose model would load and compute something else.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/config.h"

namespace octet::model {

// Layers of the checkpoint that the config does not count.
struct LayersBeyond {
  int64_t last = 0;  // from 0, as in names
  int64_t tensors = 0;
  std::string example;  // the first of them
};
// Those among `names` from layer num_hidden_layers on; nullopt if there is none. Without its last
// layers a model loads, answers, and answers badly. Layers that predict several tokens are none of
// them: the config counts them (num_nextn_predict_layers), or their tensors show it (eh_proj).
std::optional<LayersBeyond> layers_beyond(const ModelConfig& config,
                                          const std::vector<std::string>& names);

// Throws Error for tensors of the model's own layers, and biases and scales of its weights, that
// are not in `used`. Others are told in `notices`: layers_beyond(), unknown names.
// Multi-token prediction layers that the config names, scales of caches and inputs that this
// arithmetic does without, zero points and stored rotary frequencies are nothing to tell.
void report_unused(const ModelConfig& config, const WeightSource& source,
                   const std::set<std::string, std::less<>>& used,
                   std::vector<std::string>& notices);

}  // namespace octet::model
