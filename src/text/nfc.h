// Unicode normalization form C, with what the reference tokenizers need to say where each character
// came from.
#pragma once

#include <string_view>
#include <vector>

namespace octet::text {

// One character of a changed text, as a change of the source, read from left to right:
//   0    it takes the place of the next source character
//   +1   it is put in behind what was taken so far
//   -n   it takes the place of the next source character, and the n after that vanish
struct ChangedChar {
  char32_t code_point;
  int change;
};

// Whether `text` (valid UTF-8) is certainly in form C already, by a look at the ranges of its
// characters. False says nothing. Most text, Chinese and Japanese too, is dismissed by this.
bool is_surely_nfc(std::string_view text);

// The characters of the form C of `text` (valid UTF-8); the changes sum up to the source. Unicode
// 15.0 section 3.11: decompose, order the marks, compose. Linear, but for runs of marks, which are
// sorted: O(n log n).
std::vector<ChangedChar> nfc(std::string_view text);

}  // namespace octet::text
