// Scratch memory of the kernels: buffers that grow and are then kept, so that a step allocates
// nothing. A Workspace belongs to one backend object, as its thread pool does.
#pragma once

#include <cstddef>
#include <vector>

#include "tensor/buffer.h"

namespace octet::cpu {

struct Workspace {
  // At least `bytes`, 64-byte aligned, contents undefined; valid until the same slot is asked for
  // more. Call from the thread that enters the kernel only, never from inside a parallel loop.
  std::byte* take(size_t slot, size_t bytes) {
    if (slot >= slots.size()) slots.resize(slot + 1);
    Buffer& buffer = slots[slot];
    if (buffer.bytes() < bytes) {
      buffer = Buffer();  // first give back: the old contents are not wanted
      buffer = host_buffer(bytes + bytes / 8);
    }
    return static_cast<std::byte*>(buffer.data());
  }
  template <typename T>
  T* take(size_t slot, size_t count) {
    return reinterpret_cast<T*>(take(slot, count * sizeof(T)));
  }

  std::vector<Buffer> slots;
};

}  // namespace octet::cpu
