// Changes that a user makes to config.json for one run (--hf-overrides, --rope-scaling,
// --rope-theta).
#pragma once

#include <string>

#include "base/json.h"

namespace octet::model {

// One JSON object of the three flags; "" if none is given. Throws Error, naming the flag, for text
// that is no JSON object, for a key that two flags set, and for a theta that is not positive.
// `rope_theta` is 0 where it is not given.
std::string merge_overrides(const std::string& hf_overrides, const std::string& rope_scaling,
                            double rope_theta);

// Replaces members of `config` by those of `overrides`, a JSON object: whole members, as vLLM does,
// so that a new dictionary does not keep keys of the old. The dialects of RoPE may be mixed: an
// override in one of them replaces what the file says in the other, but for a rope_theta that it
// does not name. Error for a key that neither config.json nor Octet knows: it would change nothing.
void override_config(Json& config, const std::string& overrides);

}  // namespace octet::model
