// Text that a model writes itself, to be calibrated on: what it thinks likely is close to what it
// was trained on, and needs no data of anybody's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "model/model.h"
#include "ops/backend.h"

namespace octet::offline {

struct SelfTextOptions {
  int64_t samples = 64;
  int64_t window = 512;        // tokens of each, its first one included
  std::optional<int32_t> bos;  // the first token of each; without it any token of the vocabulary
  float temperature = 1.0f;
  uint64_t seed = 0;
};

// Texts drawn from the model's own distribution, in which end tokens are tokens like others: the
// same for a seed, whatever the number of threads. `progress(done, total)` counts tokens; what it
// throws ends the work. Error if the model's logits are not finite.
std::vector<std::vector<int32_t>> write_own_text(
    const model::Model& model, ops::Backend& backend, const SelfTextOptions& options,
    const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace octet::offline
