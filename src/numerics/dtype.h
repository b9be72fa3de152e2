// Element types of tensors, in memory and on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace octet {

enum class DType : uint8_t {
  boolean,
  u8,
  i8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  e4m3,  // OCP E4M3FN: no infinity, NaN = 0x7F and 0xFF, largest 448
  e5m2,  // OCP E5M2: IEEE-like, largest 57344
  e8m0,  // a power of two, 2^(code - 127), 0xFF = NaN; scales only
  f16,
  bf16,
  f32,
  f64,
};

// Bytes of one element.
size_t size_of(DType type);

// "e4m3", "bf16", ...: how Octet prints a type.
std::string_view name_of(DType type);

// The dtype strings of safetensors ("F8_E4M3", "BF16", ...); nullopt for one that Octet cannot
// hold.
std::optional<DType> parse_safetensors_dtype(std::string_view text);
std::string_view safetensors_name(DType type);

constexpr bool is_fp8(DType type) {
  return type == DType::e4m3 || type == DType::e5m2;
}
// What the codes of a quantized matrix may be.
constexpr bool is_code(DType type) {
  return is_fp8(type) || type == DType::i8;
}

}  // namespace octet
