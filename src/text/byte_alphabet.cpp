#include "text/byte_alphabet.h"

#include "text/utf8.h"

namespace octet::text {
namespace {

// The inverse table: the alphabet ends at U+0143. -1 where a code point stands for no byte.
constexpr auto kByteOf = [] {
  std::array<int16_t, 0x144> table{};
  table.fill(-1);
  for (int b = 0; b < 256; ++b) table[kByteAlphabet[b]] = static_cast<int16_t>(b);
  return table;
}();

}  // namespace

std::optional<std::string> bytes_of_alphabet(std::string_view written) {
  std::string bytes;
  bytes.reserve(written.size());
  while (!written.empty()) {
    const Utf8Step step = utf8_step(written);
    if (step.kind != Utf8Step::valid) return std::nullopt;
    const char32_t c = utf8_code_point(written.substr(0, step.bytes));
    if (c >= kByteOf.size() || kByteOf[c] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kByteOf[c]));
    written.remove_prefix(step.bytes);
  }
  return bytes;
}

}  // namespace octet::text
