// Where a model's numbers first stop being finite.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/kv_store.h"
#include "model/model.h"
#include "ops/backend.h"

namespace octet::engine {

// At most so many tokens of a sequence are looked at.
inline constexpr size_t kSearchedTokens = 512;

// Computes the beginning of a sequence once more, by itself, and looks at the residual stream layer
// by layer: "the first in what model.layers.3.mlp adds, at token 17". Says so, too, if all is
// finite up to the head. Takes the memory and the time of a prompt of so many tokens. Throws Error
// if there is no such memory.
std::string first_not_finite(const model::Model& model, ops::Backend& backend,
                             std::span<const int32_t> tokens, model::KvType kv);

}  // namespace octet::engine
