// The byte-level alphabet: the 256 printable characters that stand for bytes in the vocabulary of a
// byte-level BPE, so that a space is written "Ġ" and a newline "Ċ".
//
// Rule: bytes 33-126, 161-172 and 174-255 stand for themselves; the other 68, in increasing order,
// are U+0100, U+0101, ... Source: GPT-2's encoder.py, bytes_to_unicode.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace octet::text {

// Code point of each byte.
constexpr std::array<char32_t, 256> kByteAlphabet = [] {
  std::array<char32_t, 256> table{};
  char32_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    table[b] = printable ? static_cast<char32_t>(b) : next++;
  }
  return table;
}();

// How many bytes the letter of a byte has in UTF-8.
constexpr uint32_t letter_length(char byte) {
  return kByteAlphabet[static_cast<uint8_t>(byte)] < 0x80 ? 1 : 2;
}

// The bytes that `written` (valid UTF-8) stands for; nothing if any character is not of the
// alphabet.
std::optional<std::string> bytes_of_alphabet(std::string_view written);

}  // namespace octet::text
