// The rotary part of config.json, in both of its dialects.
#pragma once

#include "base/json.h"
#include "model/config.h"

namespace octet::model {

// Reads `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before). `dim` is
// what a head rotates, `max_positions` the model's context. Throws Error for a missing rope_theta
// and for a scaling that Octet does not compute.
RopeConfig read_rope(const JsonView& config, int64_t dim, int64_t max_positions);

}  // namespace octet::model
