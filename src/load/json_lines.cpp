#include "load/json_lines.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "base/error.h"

namespace octet::load {

int64_t for_each_json_line(const std::filesystem::path& path,
                           FunctionRef<bool(const JsonView& line)> take, CutLines cut_lines) {
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) {
    throw Error({.what = "cannot read the file",
                 .where = path.string(),
                 .value = file ? "a directory" : std::strerror(errno)});
  }
  int64_t cut = 0;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    if (cut_lines == CutLines::passed_over && !Json::accept(line)) {
      ++cut;
      continue;
    }
    const std::string name = fmt::format("{}:{}", path.string(), number);
    const Json json = parse_json(line, name);
    if (!take(JsonView(json, name))) break;
  }
  return cut;
}

}  // namespace octet::load
