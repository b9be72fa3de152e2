// UTF-8: where valid text ends, and how invalid text is replaced. One definition of "invalid" for
// the tokenizer's input, its output and the streaming detokenizer, so that all three agree.
//
// Invalid bytes are grouped into maximal subparts (Unicode 15, section 3.9, table 3-8): the longest
// prefix of a well-formed sequence, or one byte where there is none. Each becomes one U+FFFD. This
// is what Rust's from_utf8_lossy, Python's errors="replace" and browsers do.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace octet::text {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What stands at the start of a byte string.
struct Utf8Step {
  enum Kind {
    valid,       // a well-formed sequence of `bytes` bytes
    invalid,     // `bytes` bytes that no continuation can make valid: one maximal subpart
    incomplete,  // the string ends inside a sequence that is valid so far; `bytes` is 1 to 3
  };
  Kind kind;
  size_t bytes;
};

// Classifies the first sequence of `text`, which must not be empty. Never looks at more than 4
// bytes. Table 3-7 of the Unicode standard: no overlong forms, no surrogates, at most U+10FFFF.
Utf8Step utf8_step(std::string_view text);

// Whether all of `text` is well-formed.
bool is_valid_utf8(std::string_view text);

// What becomes one U+FFFD: a maximal invalid subpart, or each byte of one, as decoders with byte
// fallback have it.
enum class Replacement { each_subpart, each_byte };

// `text` with what is invalid replaced by U+FFFD. An incomplete end counts as invalid.
std::string replace_invalid_utf8(std::string_view text,
                                 Replacement replacement = Replacement::each_subpart);

// Appends what takes the place of one invalid subpart of `bytes` bytes.
void append_replacement(size_t bytes, Replacement replacement, std::string& out);

// Appends to `out` as much of `text` as is decided: valid sequences as they are and U+FFFD for each
// invalid subpart. Returns the number of bytes consumed; the rest, at most 3 bytes, is an
// incomplete sequence whose fate depends on what follows.
size_t append_decided_utf8(std::string_view text, std::string& out,
                           Replacement replacement = Replacement::each_subpart);

// The code point of a well-formed sequence, as utf8_step measured it.
char32_t utf8_code_point(std::string_view sequence);

// Appends the UTF-8 form of a Unicode scalar value.
void append_utf8(char32_t code_point, std::string& out);

}  // namespace octet::text
