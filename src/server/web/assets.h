// The files of the console page, which cmake/EmbedFiles.cmake puts into the binary.
#pragma once

#include <span>
#include <string_view>

namespace octet::server {

struct Asset {
  std::string_view path;  // "/" or "/console/NAME"
  std::string_view type;  // Content-Type
  std::string_view etag;  // of its bytes, with its quotation marks
  std::string_view content;
};
std::span<const Asset> assets();

}  // namespace octet::server
