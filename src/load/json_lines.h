// Files of one JSON object a line.
#pragma once

#include <filesystem>

#include "base/function_ref.h"
#include "base/json.h"

namespace octet::load {

// Calls `take` for each line that is not blank, until it returns false. Throws Error naming file
// and line where one cannot be read, or is no JSON object.
void for_each_json_line(const std::filesystem::path& path,
                        FunctionRef<bool(const JsonView& line)> take);

}  // namespace octet::load
