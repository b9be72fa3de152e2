// parse_weight_map on any text: an Error, or file names that stay in their directory.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "model/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    for (const auto& [tensor, file] : octet::model::parse_weight_map(text, "input")) {
      if (file.empty() || file == "." || file == "..") std::abort();
      if (file.find('/') != file.npos || file.find('\0') != file.npos) std::abort();
    }
  } catch (const octet::Error&) {
  }
  return 0;
}
