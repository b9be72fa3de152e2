// The scales that a calibration gives to a checkpoint: of the KV cache, and of inputs that are
// quantized by a fixed scale.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "offline/calibration.h"

namespace octet::offline {

// What of a cache shares a scale.
enum class KvGranularity : uint8_t {
  tensor,   // K of a layer, and V
  head,     // K of a KV head, and V
  channel,  // a dimension of K of a KV head, and of V; a dimension of a latent
  group,    // 128 dimensions of a latent
};

struct ScaleChoice {
  RangeMethod kv = RangeMethod::max;
  RangeMethod input = RangeMethod::max;
  DelayedScaling delayed;  // of RangeMethod::delayed
  KvGranularity granularity = KvGranularity::tensor;
  bool any_model = false;  // take a calibration of another model
};

// Error if the calibration was interrupted, or is of another model than that at `path` and the
// choice does not allow it.
void require_calibration_of(const Calibration& calibration, const std::string& path,
                            const ScaleChoice& choice);

// By tensor name, "model.layers.0.self_attn.k_scale" (conventions of compressed-tensors and
// AutoFP8), one value or one a head. By channel there is beside it "k_channel_scale", 2^-n for a
// channel whose largest value is at most 2^-n of its head's: the head's scale, which the method
// chose, times this is the channel's. For a model with a latent (MLA), whose scales are else chosen
// token by token, "latent_channel_scale": a group's scale as the next power of two, or that times
// 2^-n. Error if a layer is missing or has another number of heads, for a granularity that the
// model's cache does not have, and for a calibration of an earlier version, without channels.
std::map<std::string, std::vector<float>> kv_scales(const Calibration& calibration,
                                                    const model::ModelConfig& config,
                                                    const ScaleChoice& choice);

// The scale of a linear's input in codes of `code`. Error if it was never seen.
float input_scale(const Calibration& calibration, const std::string& module, Code code,
                  const ScaleChoice& choice);

}  // namespace octet::offline
