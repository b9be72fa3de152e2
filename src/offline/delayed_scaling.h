// Delayed scaling: a step is quantized by what the steps before it held, as Transformer Engine
// trains (its recipe DelayedScaling, whose names these are).
//
//   amax_t      the largest magnitude of step t
//   amax        algorithm max: the largest of the last `history` steps; most_recent: the last one's
//   range_t+1   amax · 2^margin; that of the step before where amax is zero
//
// A checkpoint's fixed scale is the one that the step after the calibration would have had.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace octet::offline {

enum class AmaxAlgorithm : uint8_t { max, most_recent };
AmaxAlgorithm parse_amax_algorithm(std::string_view text, const std::string& where);  // Error

struct DelayedScaling {
  int64_t history = 1024;  // steps, 1 or more
  AmaxAlgorithm algorithm = AmaxAlgorithm::max;
  int margin = 0;  // bits that are left free above the largest magnitude
};

// The range (a scale times the largest code) of the step after those whose largest magnitudes are
// `amax`, oldest first, all finite; 0 where none of them is above zero.
float delayed_range(std::span<const float> amax, const DelayedScaling& how);

}  // namespace octet::offline
