// What the tests of src/model share: error texts, tiny files, paths of the repository's models.
#pragma once

#include <cstring>
#include <filesystem>
#include <span>
#include <string>

#include "unit/base/error_of.h"
#include "unit/base/temp_dir.h"

namespace octet::test {

inline std::filesystem::path source(const std::string& path) {
  return std::filesystem::path(OCTET_SOURCE_DIR) / path;
}

// A safetensors file: length, header and `data` bytes.
inline std::string safetensors_file(const std::string& header, const std::string& data = "") {
  std::string text(8, '\0');
  const uint64_t length = header.size();
  for (size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(length >> (8 * i) & 0xFF);
  return text + header + data;
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace octet::test
