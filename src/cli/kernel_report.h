// Which kernel runs each shape of a model, and why not another: what `octet kernels` prints and the
// server shows at /debug/kernels.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/json.h"
#include "cli/open_model.h"
#include "ops/backend.h"

namespace octet::cli {

struct KernelReport {
  std::string text;
  // {"backend", "kernels": [{"modules", "problem", "kernel", "reduction_id", "estimate_us",
  // "bytes", "rejected": [{"kernel", "reason"}, ..]}, ..]}
  OrderedJson json;
};

// For steps of each of so many rows. On the thread that may use the backend.
KernelReport report_kernels(const OpenModel& open, const ops::Backend& backend,
                            std::span<const int64_t> batches);

}  // namespace octet::cli
