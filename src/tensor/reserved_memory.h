// Addresses without memory: for tensors whose place must be known before anyone asks for their
// values. A part is made memory when it is needed and given back when it is not.
#pragma once

#include <cstddef>

namespace octet {

class ReservedMemory {
 public:
  ReservedMemory() = default;
  // Throws Error if the system has no such range of addresses. 0 bytes reserve nothing.
  explicit ReservedMemory(size_t bytes);
  ReservedMemory(ReservedMemory&& other) noexcept;
  ReservedMemory& operator=(ReservedMemory&& other) noexcept;
  ~ReservedMemory();

  // Parts begin at multiples of this.
  static size_t page();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // The part becomes memory, zeroed unless it is memory already. Error if there is not enough.
  void commit(size_t offset, size_t bytes);
  // The part becomes addresses again: to touch them ends the process.
  void release(size_t offset, size_t bytes);

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace octet
