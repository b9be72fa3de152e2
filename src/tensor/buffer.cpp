#include "tensor/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

namespace octet {
namespace {

void unmap(void* data, size_t bytes, Device) {
  munmap(data, bytes);
}

}  // namespace

Buffer::Buffer(Buffer&& other) noexcept {
  *this = std::move(other);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  std::swap(free_, other.free_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ && free_) free_(data_, bytes_, device_);
}

Tensor Buffer::tensor(DType type, Shape shape, size_t offset) const {
  invariant(offset + static_cast<size_t>(shape.count()) * size_of(type) <= bytes_,
            "the tensor does not fit its buffer");
  return Tensor(static_cast<char*>(data_) + offset, type, shape, device_);
}

size_t available_host_memory() {
  std::ifstream meminfo("/proc/meminfo");
  std::string line;
  while (std::getline(meminfo, line)) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) return kib * 1024;
  }
  return std::numeric_limits<size_t>::max();
}

Buffer host_buffer(size_t bytes) {
  const size_t size = std::max<size_t>(bytes, 1);
  constexpr size_t small = size_t{1} << 20;  // not worth the look
  void* data = MAP_FAILED;
  if (size < small || size < available_host_memory()) {
    data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (data == MAP_FAILED) {
    throw Error({.what = "not enough host memory",
                 .value = fmt::format("{:.1f} MiB asked for", static_cast<double>(bytes) / 1048576),
                 .fix = "lower --max-model-len, --max-num-seqs or --kv-cache-memory, take a "
                        "smaller model, or free memory"});
  }
  return Buffer(data, size, Device{}, unmap);
}

Tensor Arena::take(DType type, Shape shape) {
  const size_t bytes = aligned(static_cast<size_t>(shape.count()) * size_of(type));
  if (measuring_) {
    // A real-looking address that no one may touch: kTensorAlignment keeps it distinct from
    // "absent".
    Tensor tensor(reinterpret_cast<void*>(kTensorAlignment + used_), type, shape);
    used_ += bytes;
    peak_ = std::max(peak_, used_);
    return tensor;
  }
  invariant(used_ + bytes <= buffer_.bytes(), "the arena is full: it was sized for less");
  Tensor tensor = buffer_.tensor(type, shape, used_);
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return tensor;
}

QuantTensor Arena::take(const QuantFormat& format, int64_t rows, int64_t cols) {
  const ScaleShape scales = scale_shape(format.grid, rows, cols);
  Tensor codes = take(dtype_of(format.code), {rows, cols});
  return QuantTensor{codes, take(DType::f32, {scales.rows, scales.cols}), format};
}

}  // namespace octet
