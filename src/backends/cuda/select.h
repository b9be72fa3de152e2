// Which CUDA kernel runs a linear: a pure table, filtered by what a row refuses, then the least
// estimate, ties by order.
//
// How the backend describes its problems: as backends/cpu/select.h, with n the outputs of one
// linear. Under --deterministic the order of summation is chosen for m = 1, of those orders in
// which any m can be computed, and kept for every m, so that a row's bits do not depend on how many
// rows are computed with it; otherwise the fastest row for this m runs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/kernels/context.h"

namespace octet::cuda {

struct CudaOptions {
  int device = 0;
  bool deterministic = false;
  bool fast_accumulation = false;           // see KernelContext
  bool graphs = true;                       // false: --enforce-eager
  std::map<std::string, std::string> pins;  // op -> name of the row that runs what it can
};

// A kernel for linears. `launch` computes outs[i] = x · ws[i]ᵀ (+ bias) for all i; all ws have one
// shape of input, one weight format and one input format.
struct LinearRow {
  std::string_view name, reduction_id;
  // Why it cannot run a problem; nullopt if it can.
  std::optional<std::string> (*refuses)(const ops::OpDesc&, const DeviceCaps&);
  double (*estimate_us)(const ops::OpDesc&, const DeviceCaps&);
  void (*launch)(const KernelContext&, const ops::Activation& x,
                 std::span<const ops::Linear* const> ws, std::span<const Tensor> outs);
};

// The rows of op "linear" and of op "head_linear", fastest kinds first.
const std::vector<LinearRow>& linear_rows();
const std::vector<LinearRow>& head_rows();

struct PickedLinear {
  const LinearRow* row = nullptr;
  double estimate_us = 0;
  std::vector<ops::Rejected> rejected;
};
// Fault, with the reason of every row, if none can run `desc`. `pin` is empty or a row's name.
PickedLinear pick_linear(const std::vector<LinearRow>& rows, const ops::OpDesc& desc,
                         const DeviceCaps& caps, bool deterministic, const std::string& pin);

}  // namespace octet::cuda
