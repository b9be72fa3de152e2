#include "text/tokenizer_spec.h"

namespace octet::text {

std::string piece_bytes(std::string_view piece) {
  std::string bytes;
  bytes.reserve(piece.size());
  while (!piece.empty()) {
    if (piece.starts_with(kMetaspace)) {
      bytes += ' ';
      piece.remove_prefix(kMetaspace.size());
    } else {
      bytes += piece.front();
      piece.remove_prefix(1);
    }
  }
  return bytes;
}

std::optional<uint8_t> byte_of_piece(std::string_view piece) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  const size_t high = digits.find(piece[3]), low = digits.find(piece[4]);
  if (high == digits.npos || low == digits.npos) return std::nullopt;
  return static_cast<uint8_t>(16 * high + low);
}

}  // namespace octet::text
