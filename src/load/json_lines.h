// Files of one JSON object a line.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/function_ref.h"
#include "base/json.h"

namespace octet::load {

// A line that is no JSON is an error, or was cut while it was written, and is passed over: a log's
// last one, and others where a writer that began again wrote on behind it.
enum class CutLines : uint8_t { refused, passed_over };

// Calls `take` for each line that is not blank, until it returns false. Throws Error naming file
// and line where one cannot be read, or is no JSON object. Returns how many were passed over.
int64_t for_each_json_line(const std::filesystem::path& path,
                           FunctionRef<bool(const JsonView& line)> take,
                           CutLines cut_lines = CutLines::refused);

}  // namespace octet::load
