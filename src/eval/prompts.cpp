#include "eval/prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace octet::eval {

UserPrompts read_prompts(const std::filesystem::path& path) {
  UserPrompts read;
  std::set<std::string> ids;
  int64_t place = 0;
  read.rows = read_json_rows(path, [&](const JsonView& row) {
    ++place;
    UserPrompt one{fmt::format("{}", place), row.get<std::string>("prompt")};
    if (one.text.empty()) row.refuse("prompt", "a prompt is empty", "a text");
    if (row.has("id")) {
      const Json& id = row.json()["id"];
      one.id = id.is_string() ? id.get<std::string>() : id.dump();
    }
    if (!ids.insert(one.id).second) row.refuse("id", "an id comes twice", "an id of its own");
    read.prompts.push_back(std::move(one));
  });
  return read;
}

double common_beginning(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const size_t longer = std::max(a.size(), b.size());
  if (longer == 0) return 1;
  const auto same = std::ranges::mismatch(a, b).in1 - a.begin();
  return static_cast<double>(same) / static_cast<double>(longer);
}

}  // namespace octet::eval
