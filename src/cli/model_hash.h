// Which model it is, as far as its files say.
#pragma once

#include <string>

#include "cli/open_model.h"

namespace octet::cli {

// Of the names and sizes of its weight files, of 64 samples of each, and of its config.json: some
// milliseconds, whatever the size. Equal for copies; another quantization has another one. Of
// random weights, of the shape and the seed.
std::string model_hash(const ModelOptions& options);

}  // namespace octet::cli
