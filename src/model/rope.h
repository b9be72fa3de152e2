// Rotary position tables, built in float64 and rounded to FP32 once (models-numerics E.1, E.2).
#pragma once

#include <vector>

#include "model/config.h"
#include "ops/backend.h"

namespace octet::model {

// Angle per position of each pair: dim / 2 values. Formulas: HF modeling_rope_utils.py.
std::vector<double> rope_frequencies(const RopeConfig& rope);

// What cos and sin are multiplied by: 1 but for YaRN.
double rope_attention_factor(const RopeConfig& rope);

// YaRN's temperature, 0.1 · mscale · ln(factor) + 1 (1 if factor <= 1): the DeepSeek models
// multiply their softmax scale by the square of yarn_mscale(factor, mscale_all_dim).
double yarn_mscale(double factor, double mscale);

// cos and sin f32 [positions, dim / 2] on the backend's device, with the buffer that owns them.
struct RopeMemory {
  Buffer buffer;
  ops::RopeTable table;
};
RopeMemory build_rope_table(ops::Backend& backend, const RopeConfig& rope, int64_t positions);

}  // namespace octet::model
