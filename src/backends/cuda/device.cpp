#include "backends/cuda/device.h"

#include <fmt/format.h>

#include <charconv>

namespace octet::cuda {
namespace {

// What every refusal ends with.
constexpr const char* kInstead = "run with --device cpu; octet doctor shows what it finds";

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

int device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess) return count;
  cudaGetLastError();  // it is answered here, and must not surface in a later call
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (status == cudaErrorInsufficientDriver) {
    throw Error({.what = driver == 0 ? "there is no NVIDIA driver on this machine"
                                     : "the NVIDIA driver is too old",
                 .where = "--device cuda",
                 .value = driver == 0 ? "no driver"
                                      : fmt::format("it supports CUDA {}", version_text(driver)),
                 .accepted = fmt::format("a driver for CUDA {} or later",
                                         version_text(CUDART_VERSION / 1000 * 1000)),
                 .fix = kInstead});
  }
  if (status == cudaErrorNoDevice) return 0;
  throw Error({.what = "the GPU cannot be used",
               .where = "--device cuda",
               .value = fmt::format("{}: {}", cudaGetErrorName(status), cudaGetErrorString(status)),
               .fix = kInstead});
}

}  // namespace

DeviceCaps open_device(int index) {
  const int count = device_count();
  if (index >= count) {
    throw Error({.what = count == 0 ? "there is no NVIDIA GPU on this machine" : "no such GPU",
                 .where = "--device cuda",
                 .value = fmt::format("GPU {}", index),
                 .accepted = count == 0 ? "" : fmt::format("0 to {}", count - 1),
                 .fix = kInstead});
  }
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  DeviceCaps caps;
  caps.index = index;
  caps.name = properties.name;
  caps.major = properties.major;
  caps.minor = properties.minor;
  caps.sms = properties.multiProcessorCount;
  caps.l2_bytes = properties.l2CacheSize;
  caps.shared_bytes_per_block = static_cast<int>(properties.sharedMemPerBlockOptin);
  if (caps.major != 9) {
    throw Error(
        {.what = "the kernels of this build are for Hopper GPUs",
         .where = "--device cuda",
         .value = fmt::format("{}, compute capability {}.{}", caps.name, caps.major, caps.minor),
         .accepted = "compute capability 9.0 (H100, H200, GH200)",
         .fix = kInstead});
  }
  check(cudaSetDevice(index), "cudaSetDevice");
  size_t free = 0, total = 0;
  const cudaError_t status = cudaMemGetInfo(&free, &total);
  if (status != cudaSuccess) {
    throw Error(
        {.what = "the GPU cannot be opened",
         .where = "--device cuda",
         .value = fmt::format("GPU {}, {}: {}", index, caps.name, cudaGetErrorString(status)),
         .fix = kInstead});
  }
  caps.free_bytes = static_cast<int64_t>(free);
  caps.total_bytes = static_cast<int64_t>(total);
  return caps;
}

int parse_device_index(const std::string& text) {
  const std::string prefix = "cuda:";
  int index = 0;
  if (text == "cuda") return 0;
  const bool shaped = text.starts_with(prefix) && text.size() > prefix.size();
  const char* const end = text.data() + text.size();
  if (shaped) {
    const auto [rest, problem] = std::from_chars(text.data() + prefix.size(), end, index);
    if (problem == std::errc() && rest == end && index >= 0) return index;
  }
  throw Error({.what = "unknown device",
               .where = "--device",
               .value = text,
               .accepted = "cpu, cuda, cuda:N"});
}

}  // namespace octet::cuda
