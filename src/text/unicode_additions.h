// Characters that are younger than PCRE2's tables. PCRE2 10.42, which Debian 12 ships, knows
// Unicode 14; Hugging Face's tokenizers of today know Unicode 16. Between them lie popular emoji
// (U+1FA77) and a CJK extension, and a pattern such as " ?[\p{P}\p{S}]+" splits differently with
// each. A newer PCRE2 makes the table superfluous, not wrong.
#pragma once

#include <cstdint>

namespace octet::text {

// Code points first..last, all of one general category ("Lo").
struct UnicodeAddition {
  char32_t first, last;
  const char* category;
};

inline constexpr int kUnicodeAdditionCount = 126;
extern const UnicodeAddition kUnicodeAdditions[kUnicodeAdditionCount];

}  // namespace octet::text
