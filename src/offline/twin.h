// A quantized checkpoint against the 16-bit one that it was made from, weight by weight: a layout,
// a scale or a zero point that was read or written wrongly shows here, whatever the logits do.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint.h"
#include "model/model.h"

namespace octet::offline {

struct TwinError {
  std::string module;
  double relative_rms = 0;  // sqrt(sum (ours - twin)^2 / sum twin^2); 0 where both are zero
  double norm_ratio = 1;    // sqrt(sum ours^2 / sum twin^2)
};

// Of every quantized linear of `model`, in their order. The model's weights must lie in host
// memory. Throws Error for a weight that the twin lacks, or has in another shape or in no float
// type.
std::vector<TwinError> compare_with_twin(const model::Model& model,
                                         const model::WeightSource& twin);

// The error that a sound quantization stays below: twice and more what its format costs on Gaussian
// weights (models' own lie near it).
double most_error(const model::ModelConfig& config, std::string_view module);

}  // namespace octet::offline
