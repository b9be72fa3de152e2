#include "text/utf8.h"

#include <cstdint>
#include <cstring>

namespace octet::text {
namespace {

uint8_t byte_at(std::string_view text, size_t i) {
  return static_cast<uint8_t>(text[i]);
}

// Bytes at the start of `text` that are ASCII: by eight, since most text is mostly ASCII.
size_t ascii_prefix(std::string_view text) {
  size_t i = 0;
  while (i + 8 <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080u) break;
    i += 8;
  }
  while (i < text.size() && byte_at(text, i) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const uint8_t lead = byte_at(text, 0);
  if (lead < 0x80) return {Utf8Step::valid, 1};

  // The second byte's range is narrower after four leads: E0 and F0 (overlong), ED (surrogates) and
  // F4 (above U+10FFFF). The third and fourth are always 80..BF.
  size_t length = 0;
  uint8_t low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Step::invalid, 1};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Step::incomplete, i};
    if (byte_at(text, i) < low || byte_at(text, i) > high) return {Utf8Step::invalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Step::valid, length};
}

bool is_valid_utf8(std::string_view text) {
  for (;;) {
    text.remove_prefix(ascii_prefix(text));
    if (text.empty()) return true;
    const Utf8Step step = utf8_step(text);
    if (step.kind != Utf8Step::valid) return false;
    text.remove_prefix(step.bytes);
  }
}

void append_replacement(size_t bytes, Replacement replacement, std::string& out) {
  const size_t count = replacement == Replacement::each_byte ? bytes : 1;
  for (size_t i = 0; i < count; ++i) out.append(kReplacement);
}

size_t append_decided_utf8(std::string_view text, std::string& out, Replacement replacement) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t ascii = ascii_prefix(text.substr(at));
    out.append(text, at, ascii);
    at += ascii;
    if (at == text.size()) break;
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind == Utf8Step::incomplete) break;
    if (step.kind == Utf8Step::valid) {
      out.append(text, at, step.bytes);
    } else {
      append_replacement(step.bytes, replacement, out);
    }
    at += step.bytes;
  }
  return at;
}

std::string replace_invalid_utf8(std::string_view text, Replacement replacement) {
  std::string out;
  out.reserve(text.size());
  const size_t decided = append_decided_utf8(text, out, replacement);
  if (decided < text.size()) append_replacement(text.size() - decided, replacement, out);
  return out;
}

char32_t utf8_code_point(std::string_view sequence) {
  const uint8_t lead = byte_at(sequence, 0);
  if (sequence.size() == 1) return lead;
  char32_t code_point = lead & (0x7Fu >> sequence.size());
  for (size_t i = 1; i < sequence.size(); ++i) {
    code_point = (code_point << 6) | (byte_at(sequence, i) & 0x3Fu);
  }
  return code_point;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto tail = [&](int shift) {
    out.push_back(static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)));
  };
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (code_point >> 6)));
    tail(0);
  } else if (code_point < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (code_point >> 12)));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xF0 | (code_point >> 18)));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace octet::text
