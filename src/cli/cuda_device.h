// CUDA as the verbs see it. cuda_device.cpp alone knows whether this build has it: without,
// whatever opens a GPU is an Error that says how to build it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cli/device_probe.h"
#include "ops/backend.h"

namespace octet::cli {

struct CudaRequest {
  std::string device;  // "cuda" or "cuda:N"
  bool deterministic = false, fast_accumulation = false;
  bool graphs = true;
  std::map<std::string, std::string> pins;
};

bool built_with_cuda();
std::unique_ptr<ops::Backend> open_cuda(const CudaRequest& request);
// For a backend of open_cuda().
std::unique_ptr<DeviceProbe> make_cuda_probe(ops::Backend& backend);
// Bytes of the GPU that have gone since the backend was made, by the driver's count, its workspace
// included; 0 in a build without CUDA.
int64_t cuda_used_bytes(ops::Backend& backend);

}  // namespace octet::cli
