// The rotary part of config.json, in both of its dialects.
#pragma once

#include <string_view>

#include "base/json.h"
#include "model/config.h"

namespace octet::model {

// The name of a scaling, as config.json has it: "yarn".
std::string_view name_of(RopeConfig::Kind kind);

// Reads `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before). `dim` is
// what a head rotates, `max_positions` the model's context (max_position_embeddings). Throws Error
// for a missing rope_theta, for a scaling that Octet does not compute and for a part of one that it
// does not know.
RopeConfig read_rope(const JsonView& config, int64_t dim, int64_t max_positions);

// The members of config.json from which read_rope() and its caller read a model's positions, as
// they are written there: for a record of them elsewhere.
OrderedJson position_members(const OrderedJson& config);

}  // namespace octet::model
