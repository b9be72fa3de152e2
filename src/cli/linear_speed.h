// Measured: what each shape of a model's quantized linears takes, beside the same linear in BF16.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/json.h"
#include "cli/open_model.h"

namespace octet::cli {

struct LinearSpeeds {
  std::string text;
  OrderedJson json;  // a list of {"modules", "batch", "us", "bf16_us", "slower"}
};

// Times one linear of each shape and format that the model has (experts by themselves are not
// linears of a step and are left out), for each number of rows: the least of some runs, its input's
// quantization included, as in a step. Weights are made up, one shape at a time. A weight that
// fits the caches is read from them here, and in a step it is not. Error if there is no memory.
LinearSpeeds measure_linears(const OpenModel& open, ops::Backend& backend,
                             std::span<const int64_t> batches);

}  // namespace octet::cli
