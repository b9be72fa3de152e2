// SHA-256 of a file (FIPS 180-4), as 64 small hexadecimal digits. Throws Error if it cannot be
// read.
#pragma once

#include <filesystem>
#include <string>

namespace octet::hub {

std::string sha256_of(const std::filesystem::path& file);

}  // namespace octet::hub
