// The experts of a layer as kernels need them: one array of pointers on the device, and what all
// experts have in common.
#pragma once

#include <list>
#include <optional>
#include <span>
#include <vector>

#include "ops/backend.h"

namespace octet::cuda {

// One linear of one expert; what is absent is null.
struct ExpertLinear {
  const void* weight;  // codes or plain values
  const float* scales;
  const void* bias;
  const float* input_scale;  // of a calibrated input
  friend bool operator==(const ExpertLinear&, const ExpertLinear&) = default;
};
struct Expert {
  ExpertLinear gate, up, down;
  friend bool operator==(const Expert&, const Expert&) = default;
};

// What the gates (or ups, or downs) of all experts share.
struct ExpertForm {
  int64_t out = 0, in = 0;
  DType type = DType::f32;  // of `weight`
  int64_t stride = 0;       // of `weight`, in elements, from row to row
  // The scale of weight (r, c) is scales[r / grid.rows * scale_row + c / grid.cols * scale_col]; a
  // stride is 0 where the grid has one cell. No format: plain weights.
  std::optional<QuantFormat> format;
  int64_t scale_row = 0, scale_col = 0;
  DType bias = DType::f32;
  std::optional<QuantFormat> input;
  InputScale when = InputScale::dynamic;
  bool aligned = true;  // rows of `weight` begin at multiples of 16 bytes
};

struct ExpertTable {
  ExpertForm gate, up, down;
  std::vector<Expert> experts;  // as they are on the device
  Buffer device;
  int count() const { return static_cast<int>(experts.size()); }
  const Expert* data() const { return static_cast<const Expert*>(device.data()); }
};

// Keeps the tables of all layers.
class ExpertTables {
 public:
  // The table of `experts`: the one that was built before if every pointer is the same, else a new
  // one (which allocates, copies and waits: not during a capture). Fault if the experts differ in
  // shape or format.
  const ExpertTable& of(std::span<const ops::GatedMlp> experts);

 private:
  std::list<ExpertTable> tables_;
};

}  // namespace octet::cuda
