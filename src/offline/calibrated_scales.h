// The scales that a calibration gives to a checkpoint: of the KV cache, and of inputs that are
// quantized by a fixed scale.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "offline/calibration.h"

namespace octet::offline {

struct ScaleChoice {
  RangeMethod kv = RangeMethod::max;
  RangeMethod input = RangeMethod::max;
  DelayedScaling delayed;    // of RangeMethod::delayed
  bool kv_per_head = false;  // else one for each of K and V of a layer
  bool any_model = false;    // take a calibration of another model
};

// Error if the calibration was interrupted, or is of another model than that at `path` and the
// choice does not allow it.
void require_calibration_of(const Calibration& calibration, const std::string& path,
                            const ScaleChoice& choice);

// By tensor name, "model.layers.0.self_attn.k_scale" (conventions of compressed-tensors and
// AutoFP8), one value or one a head. Empty for a model with a latent (MLA), whose scales are chosen
// token by token. Error if a layer is missing or has another number of heads.
std::map<std::string, std::vector<float>> kv_scales(const Calibration& calibration,
                                                    const model::ModelConfig& config,
                                                    const ScaleChoice& choice);

// The scale of a linear's input in codes of `code`. Error if it was never seen.
float input_scale(const Calibration& calibration, const std::string& module, Code code,
                  const ScaleChoice& choice);

}  // namespace octet::offline
