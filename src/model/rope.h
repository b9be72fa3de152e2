// Rotary position tables, built in float64 and rounded to FP32 once (models-numerics E.1, E.2).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "ops/backend.h"

namespace octet::model {

// Angle per position of each pair: dim / 2 values. Formulas: HF modeling_rope_utils.py.
std::vector<double> rope_frequencies(const RopeConfig& rope);

// What cos and sin are multiplied by: 1 but for YaRN and LongRoPE.
double rope_attention_factor(const RopeConfig& rope);

// The positions that a model is good for: max_position_embeddings, or the original length times the
// factor where the scaling is defined by that and this is more (a YaRN put on by hand, say, with
// max_position_embeddings left as it was). A length that is scaled already is never scaled again.
int64_t rope_reach(const RopeConfig& rope, int64_t max_positions);

// Whether positions turn and scale alike: equal angles of every pair and equal factors, however the
// two are written.
bool same_rotation(const RopeConfig& a, const RopeConfig& b);

// "yarn x 4, base 1e+06, 32768 positions before the scaling".
std::string to_string(const RopeConfig& rope);

// What a user should know of frequencies that depend on the length of sequences.
std::optional<std::string> rope_notice(const RopeConfig& rope);

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
