#include "load/json_lines.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "base/error.h"

namespace octet::load {

bool for_each_json_line(const std::filesystem::path& path,
                        FunctionRef<bool(const JsonView& line)> take, LastLine last) {
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) {
    throw Error({.what = "cannot read the file",
                 .where = path.string(),
                 .value = file ? "a directory" : std::strerror(errno)});
  }
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const bool cut = last == LastLine::may_be_cut && file.eof();  // no line feed ended it
    if (cut && !Json::accept(line)) return true;
    const std::string name = fmt::format("{}:{}", path.string(), number);
    const Json json = parse_json(line, name);
    if (!take(JsonView(json, name))) return false;
  }
  return false;
}

}  // namespace octet::load
