// A backend whose memory is the host's and whose operations do nothing: enough to bind weights.
#pragma once

#include <cstring>

#include "ops/null_backend.h"

namespace octet::test {

class HostBackend : public ops::NullBackend {
 public:
  // With another device, as if the weights had to be copied to it.
  using NullBackend::NullBackend;

  Buffer alloc(size_t bytes, const std::string&) override { return host_buffer(bytes); }
  void copy(const Tensor& from, const Tensor& to) override {
    invariant(from.type == to.type && from.shape == to.shape, "copy: unlike tensors");
    std::memcpy(to.data, from.data, static_cast<size_t>(from.bytes()));
    copied_ += from.bytes();
  }
  void fill(const Tensor& tensor, uint8_t byte) override {
    std::memset(tensor.data, byte, static_cast<size_t>(tensor.bytes()));
  }

  int64_t copied() const { return copied_; }

 private:
  int64_t copied_ = 0;
};

}  // namespace octet::test
