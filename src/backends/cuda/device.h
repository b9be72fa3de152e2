// One GPU: what it is, whether Octet can run on it, and the check of every CUDA call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "base/error.h"

namespace octet::cuda {

// Fault, with the call and CUDA's own words, unless `status` is a success. A device error is
// sticky: every later call fails too, so nothing is computed with what a failed kernel left behind.
inline void check(cudaError_t status, const char* call,
                  SourceLocation at = SourceLocation::current()) {
  if (status == cudaSuccess) [[likely]]
    return;
  throw Fault(
      std::string(call) + ": " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status), at);
}

// What kernels and tables need to know of the device.
struct DeviceCaps {
  int index = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int sms = 0;
  int64_t l2_bytes = 0;
  int shared_bytes_per_block = 0;  // opt-in limit
  int64_t total_bytes = 0, free_bytes = 0;
};

// Makes GPU `index` current on this thread and looks at it. Error, which names what is missing and
// what would work: no driver, a driver that is too old, no such GPU, a GPU without FP8.
DeviceCaps open_device(int index);

// "cuda" or "cuda:1" -> 0 or 1. Error if it is neither.
int parse_device_index(const std::string& text);

}  // namespace octet::cuda
