// Regular expressions of tokenizer files, run by PCRE2 with its JIT.
//
// The files are written for Oniguruma (Ruby syntax, Unicode properties). PCRE2 differs in a few
// places; `regex_to_pcre2` closes those that can be closed and refuses the others, so that a
// pattern either splits as its author saw it split or is an error.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace octet::text {

// A match: bytes [begin, end) of the subject.
struct RegexMatch {
  size_t begin, end;
};

// Mutable state that a search needs. Not for two threads at once; any regex may use it.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

// A compiled expression: immutable, so any number of threads may search with it.
class Regex {
 public:
  // Compiles an Oniguruma pattern. `where` names its place in errors: file and JSON path. Throws
  // Error for syntax, for constructs that PCRE2 reads in another way, and above 64 KiB.
  static Regex compile(std::string_view pattern, std::string where);

  // An expression that matches exactly `text`. The same limits and errors.
  static Regex literal(std::string_view text, std::string where);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // The leftmost match that begins at byte `from` or later; lookbehind sees what is before `from`.
  // `subject` must be valid UTF-8 and `from` a character boundary: neither is checked. Throws Error
  // where the search takes more than 10 million steps and 16 for each byte, or 20 MB, which
  // patterns of nested repeats can do on hostile text.
  std::optional<RegexMatch> search(std::string_view subject, size_t from,
                                   RegexScratch& scratch) const;

  // The pattern as the file has it.
  const std::string& pattern() const { return pattern_; }

  // Whether it was made by literal().
  bool is_literal() const { return literal_; }

 private:
  struct Code;
  Regex();
  static Regex build(std::string_view source, const std::string& translated, uint32_t options,
                     std::string where);

  std::unique_ptr<Code> code_;
  std::string pattern_;
  bool literal_ = false;
  std::string where_;
};

// The PCRE2 spelling of an Oniguruma pattern; throws Error naming `where`. What changes:
//   \s \S    White_Space: PCRE2's \s has U+180E besides, which Unicode removed in version 6.3
//   \w \W \b \B   letters, marks, decimal digits, connectors (UTS 18 annex C); PCRE2's \w is
//            letters, all numbers and '_'
//   \d \D \p{L} .. general categories have the characters of Unicode 15 and 16 besides
//            (text/unicode_additions.h)
//   \h \H    a hexadecimal digit; horizontal space in PCRE2
//   (?m)     lets '.' match a newline; '^' and '$' always mean lines
// Refused: a class inside a class, "&&" in a class, \W or \H in a class. Kept on purpose:
// "{n,m}+" stays possessive as its authors (cl100k) mean it, though Oniguruma reads a plain repeat.
std::string regex_to_pcre2(std::string_view pattern, std::string_view where);

}  // namespace octet::text
