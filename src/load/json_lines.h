// Files of one JSON object a line.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/function_ref.h"
#include "base/json.h"

namespace octet::load {

// What is read of a file whose last line has no line feed and is no JSON: it is an error, or was
// cut while it was written, and is passed over.
enum class LastLine : uint8_t { whole, may_be_cut };

// Calls `take` for each line that is not blank, until it returns false. Throws Error naming file
// and line where one cannot be read, or is no JSON object. True if a last line was passed over.
bool for_each_json_line(const std::filesystem::path& path,
                        FunctionRef<bool(const JsonView& line)> take,
                        LastLine last = LastLine::whole);

}  // namespace octet::load
