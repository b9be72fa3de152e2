#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/error.h"
#include "text/utf8.h"

namespace octet::text {
namespace {

// Neither decomposes, nor is a mark, nor composes with what is before it.
bool is_inert(char32_t c) {
  return c < 0x300 || (c >= 0x3400 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3) ||
         (c >= 0x3001 && c <= 0x3029) || (c >= 0x3041 && c <= 0x3098) ||
         (c >= 0x30A0 && c <= 0x30FF) || (c >= 0x0400 && c <= 0x0482) ||
         (c >= 0x2010 && c <= 0x205E) || (c >= 0xFF01 && c <= 0xFFEF);
}

int combining_class(char32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

// Appends the full canonical decomposition of a character.
void decompose(char32_t c, std::vector<ChangedChar>& out) {
  utf8proc_int32_t parts[32];
  int boundary = 0;
  const utf8proc_ssize_t n = utf8proc_decompose_char(
      static_cast<utf8proc_int32_t>(c), parts, std::ssize(parts), UTF8PROC_DECOMPOSE, &boundary);
  invariant(n > 0 && n <= std::ssize(parts), "a character decomposes into 1 to 32");
  for (utf8proc_ssize_t i = 0; i < n; ++i) {
    out.push_back({static_cast<char32_t>(parts[i]), i == 0 ? 0 : 1});
  }
}

// What two characters compose to, or 0.
char32_t compose(char32_t first, char32_t second) {
  utf8proc_int32_t pair[] = {static_cast<utf8proc_int32_t>(first),
                             static_cast<utf8proc_int32_t>(second)};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  return utf8proc_normalize_utf32(pair, 2, options) == 1 ? static_cast<char32_t>(pair[0]) : 0;
}

// Puts the marks behind each starter into the order of their classes.
void order_marks(std::vector<ChangedChar>& chars) {
  const auto is_starter = [](const ChangedChar& c) { return combining_class(c.code_point) == 0; };
  for (auto at = chars.begin(); at != chars.end();) {
    const auto end = std::find_if(at, chars.end(), is_starter);
    std::ranges::stable_sort(at, end, {},
                             [](const ChangedChar& c) { return combining_class(c.code_point); });
    at = end == chars.end() ? end : std::next(end);
  }
}

}  // namespace

bool is_surely_nfc(std::string_view text) {
  while (!text.empty()) {
    if (static_cast<uint8_t>(text[0]) < 0x80) {
      text.remove_prefix(1);
      continue;
    }
    const size_t bytes = utf8_step(text).bytes;
    if (!is_inert(utf8_code_point(text.substr(0, bytes)))) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::vector<ChangedChar> nfc(std::string_view text) {
  std::vector<ChangedChar> chars;
  chars.reserve(text.size());
  while (!text.empty()) {
    const size_t bytes = utf8_step(text).bytes;
    const char32_t c = utf8_code_point(text.substr(0, bytes));
    text.remove_prefix(bytes);
    if (c < 0xC0) {
      chars.push_back({c, 0});
    } else {
      decompose(c, chars);
    }
  }
  order_marks(chars);

  // A mark composes with the last starter unless one of its own class or higher stands between, or
  // of class 0 (another starter that did not compose).
  std::vector<ChangedChar> out;
  out.reserve(chars.size());
  constexpr size_t none = static_cast<size_t>(-1);
  size_t starter = none;  // index in `out`
  int last_class = -1;    // of what stands behind the starter; -1: nothing does
  for (const ChangedChar& c : chars) {
    const int own = combining_class(c.code_point);
    if (starter != none && last_class < own) {
      if (const char32_t both = compose(out[starter].code_point, c.code_point)) {
        out[starter] = {both, out[starter].change + c.change - 1};
        continue;
      }
    }
    if (own == 0) {
      starter = out.size();
      last_class = -1;
    } else {
      last_class = own;
    }
    out.push_back(c);
  }
  return out;
}

}  // namespace octet::text
