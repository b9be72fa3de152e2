// What is said of a model that computes NaN or infinities. It is bad input, not our own failure: no
// finite weight that any kernel has been held to gives them.
#pragma once

#include <string>

#include "base/error.h"

namespace octet::engine {

inline Error not_finite(std::string what, std::string where, std::string value) {
  return Error({.what = std::move(what),
                .where = std::move(where),
                .value = std::move(value),
                .accepted = "finite logits",
                .fix = "`octet inspect MODEL --scan` lists weights that are NaN or infinite; if "
                       "there are none, activations overflow: try --compute bf16 or fp32"});
}

}  // namespace octet::engine
