// What `serve` measures before it takes requests: that the device computes what the reference does,
// and what an E5M2 cache costs.
#pragma once

#include <string>

#include "cli/open_model.h"

namespace octet::cli {

// Error unless a small model of this one's kind has the same logits on `backend` as with the exact
// kernels of the CPU (engine/self_test.h). A tenth of a second or so. Of a GPU nothing is checked:
// `octet doctor` does that.
void check_kernels(const OpenModel& open, const BackendOptions& options, ops::Backend& backend);

// A sentence with the error of K and V (or latents) in E5M2, and in E4M3, over the first tokens
// that the model itself writes. Without a measurement where the device's memory is not the host's.
std::string e5m2_warning(const OpenModel& open, ops::Backend& backend);

}  // namespace octet::cli
