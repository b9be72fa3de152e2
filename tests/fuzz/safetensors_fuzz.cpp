// parse_safetensors on any bytes: an Error, or tensors that lie inside the bytes and fill them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "model/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    size_t total = 0;
    for (const auto& stored : octet::model::parse_safetensors(bytes, "input")) {
      const auto length = static_cast<size_t>(stored.tensor.bytes());
      if (stored.tensor.data != data + stored.file_offset) std::abort();
      if (stored.file_offset > size || length > size - stored.file_offset) std::abort();
      total += length;
    }
    if (total > size) std::abort();
  } catch (const octet::Error&) {
  }
  return 0;
}
