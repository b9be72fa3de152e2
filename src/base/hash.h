// FNV-1a, 64 bits: the fingerprint of logits and of files. Not for untrusted keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace octet {

class Hash64 {
 public:
  constexpr void add(uint8_t byte) { state_ = (state_ ^ byte) * 0x100000001b3ULL; }
  constexpr void add(std::string_view text) {
    for (const char c : text) add(static_cast<uint8_t>(c));
  }
  void add(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) add(static_cast<uint8_t>(b));
  }

  constexpr uint64_t value() const { return state_; }

  // 16 hexadecimal digits.
  std::string hex() const {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string text(16, '0');
    for (size_t i = 0; i < 16; ++i) text[i] = digits[(state_ >> (60 - 4 * i)) & 15];
    return text;
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325ULL;
};

// The hash of the object bytes of `values`; equal bits, equal hash (so 0.0f and -0.0f differ).
template <class T>
uint64_t hash_of(std::span<const T> values) {
  Hash64 hash;
  hash.add(std::as_bytes(values));
  return hash.value();
}

// For much data: 64 bytes at a time, some gigabytes a second. Words of 8 bytes in one lane are
// mixed one-to-one, so that a single changed word always gives another hash. Little-endian machines
// only agree with each other. Not Hash64's value.
uint64_t hash_of_many(std::span<const std::byte> bytes);

}  // namespace octet
