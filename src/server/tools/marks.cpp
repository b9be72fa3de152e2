#include "server/tools/formats.h"

namespace octet::server {

Stands stands(std::string_view text, size_t at, std::string_view mark, bool ended) {
  const std::string_view here = text.substr(std::min(at, text.size()), mark.size());
  if (here == mark) return Stands::yes;
  return !ended && mark.starts_with(here) ? Stands::unknown : Stands::no;
}

size_t find_mark(std::string_view text, std::initializer_list<std::string_view> marks, bool ended) {
  size_t first = text.size();
  for (const std::string_view mark : marks) {
    for (size_t at = text.find(mark[0]); at < first; at = text.find(mark[0], at + 1)) {
      if (stands(text, at, mark, ended) != Stands::no) first = at;
    }
  }
  return first;
}

}  // namespace octet::server
