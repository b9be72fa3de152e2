// Memory that the system has promised becomes memory that is there, before its first use: so that
// what a process holds does not grow with what it does.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <thread>
#include <vector>

#include "tensor/tensor.h"

namespace octet {

// Nothing for memory of another device.
inline std::span<std::byte> host_bytes(const Tensor& tensor) {
  if (tensor.device.kind != DeviceKind::cpu) return {};
  return {static_cast<std::byte*>(tensor.data), static_cast<size_t>(tensor.bytes())};
}

// Works on a thread of its own, at a lower priority. What the parts hold stays what it is, whoever
// reads and writes them meanwhile.
class Populator {
 public:
  // Parts of mappings that begin at pages (host_buffer); they outlive this.
  explicit Populator(std::vector<std::span<std::byte>> parts);
  // Stops it where it is.
  ~Populator();
  Populator(const Populator&) = delete;
  Populator& operator=(const Populator&) = delete;

  // unsupported: by the kernel, which can do it since 5.14, or by the memory that others need.
  enum class State { working, done, unsupported };
  State state() const { return state_; }

 private:
  void run();

  const std::vector<std::span<std::byte>> parts_;
  std::atomic<bool> stop_{false};
  std::atomic<State> state_{State::working};
  std::thread thread_;
};

}  // namespace octet
