// Tensors of a checkpoint that the model does not use: the sign of a config.json that belongs to
// another checkpoint, whose model would load and compute something else.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/config.h"

namespace octet::model {

// Throws Error for tensors of the model's own layers, and biases and scales of its weights, that
// are not in `used`. Others are told in `notices`: layers beyond the config's, unknown names.
// Multi-token prediction layers that the config names, scales of caches and inputs that this
// arithmetic does without, zero points and stored rotary frequencies are nothing to tell.
void report_unused(const ModelConfig& config, const WeightSource& source,
                   const std::set<std::string, std::less<>>& used,
                   std::vector<std::string>& notices);

}  // namespace octet::model
