// Owners of memory: Buffer, and Arena, which hands out scratch tensors of one step.
#pragma once

#include <cstddef>
#include <functional>

#include "tensor/tensor.h"

namespace octet {

// Tensors that share an allocation begin at multiples of this: a GPU's wish, and four cache lines.
inline constexpr size_t kTensorAlignment = 256;

constexpr size_t aligned(size_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

// Owns one allocation on one device. Move-only.
class Buffer {
 public:
  using Free = void (*)(void* data, size_t bytes, Device device);

  Buffer() = default;
  Buffer(void* data, size_t bytes, Device device, Free free)
      : data_(data), bytes_(bytes), device_(device), free_(free) {}
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  // A tensor at `offset` bytes. Fault if it does not fit.
  Tensor tensor(DType type, Shape shape, size_t offset = 0) const;

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Device device_;
  Free free_ = nullptr;
};

// Bytes that the system can still give without swapping; the largest number if it does not say.
// Linux promises more than it has and kills a process that uses the promise, so host_buffer
// compares with this first.
size_t available_host_memory();

// Host memory, 64-byte aligned, zeroed lazily by the kernel. Error if there is not enough.
Buffer host_buffer(size_t bytes);

// A bump allocator over one Buffer, for the activations of a step.
//
//   base        mark               used                        bytes
//    |  kept     |  this layer's    |        free               |
//
// A Scope returns to its mark when it ends, so layers reuse each other's memory. A measuring arena
// (constructed without a buffer) hands out addresses that must not be touched and only remembers
// the peak: run a step on a backend that computes nothing to size the real arena exactly.
class Arena {
 public:
  Arena() = default;  // measuring
  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)), measuring_(false) {}

  // A contiguous tensor, aligned to kTensorAlignment. Fault when the arena is full: it was sized by
  // arithmetic, so that is a bug.
  Tensor take(DType type, Shape shape);
  // Codes and scales for a [rows, cols] matrix in `format`.
  QuantTensor take(const QuantFormat& format, int64_t rows, int64_t cols);

  size_t used() const { return used_; }
  size_t peak() const { return peak_; }
  bool measuring() const { return measuring_; }

  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Scope() { arena_.used_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t mark_;
  };

 private:
  Buffer buffer_;
  bool measuring_ = true;
  size_t used_ = 0, peak_ = 0;
};

}  // namespace octet
