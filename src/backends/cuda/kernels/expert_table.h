// The experts of a layer as a kernel needs them: pointers on the device.
#pragma once

#include <span>

#include "ops/backend.h"

namespace octet::cuda {

struct ExpertTable {};

// Keeps the tables of all layers.
class ExpertTables {
 public:
  const ExpertTable& of(std::span<const ops::GatedMlp> experts);
};

}  // namespace octet::cuda
