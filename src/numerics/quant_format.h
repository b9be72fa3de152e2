// How a quantized matrix is laid out: the code's type, which elements share a scale, and the
// scale's own type. In every format the scale multiplies: value = code * scale.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "numerics/dtype.h"

namespace octet {

// What a code, one byte, stands for: a number of an 8-bit float, or a symmetric integer.
enum class Code : uint8_t { e4m3, e5m2, i8 };

constexpr bool is_fp8(Code type) {
  return type != Code::i8;
}
constexpr DType dtype_of(Code type) {
  return type == Code::e4m3 ? DType::e4m3 : type == Code::e5m2 ? DType::e5m2 : DType::i8;
}
// The code type that tensors of a type hold; a type that is none is a mistake of the caller.
constexpr Code code_of(DType type) {
  return type == DType::e5m2 ? Code::e5m2 : type == DType::i8 ? Code::i8 : Code::e4m3;
}
constexpr float max_of(Code type) {
  return type == Code::e4m3 ? 448.0f : type == Code::e5m2 ? 57344.0f : 127.0f;
}

// Elements that share a scale; 0 = the whole axis.
//
//   {0,0} tensor     {1,0} token or channel   {1,128} group   {128,128} block   {1,32} MX
//
// A KV cache's head and latent group are the same grids on a [tokens, heads*dim] matrix:
// {0,head_dim} one scale a head, {1,128} one scale a token and 128 latent values.
struct ScaleGrid {
  int32_t rows = 0, cols = 0;
  friend auto operator<=>(const ScaleGrid&, const ScaleGrid&) = default;
  // Said aloud, as below: nvcc 13 calls the == that <=> implies, but emits none.
  friend bool operator==(const ScaleGrid&, const ScaleGrid&) = default;
};

namespace grids {
inline constexpr ScaleGrid tensor{0, 0}, row{1, 0}, group128{1, 128}, block128{128, 128};
}

enum class ScaleType : uint8_t {
  f32,   // absmax / max
  e8m0,  // the same, rounded up to a power of two (stored as f32 or as an E8M0 byte)
  unit,  // no scale: codes are the values (always 1)
};

struct QuantFormat {
  Code code = Code::e4m3;
  ScaleGrid grid;
  ScaleType scale = ScaleType::f32;
  friend auto operator<=>(const QuantFormat&, const QuantFormat&) = default;
  friend bool operator==(const QuantFormat&, const QuantFormat&) = default;
};

// "e4m3[128x128]f32", "i8[1x*]f32", "e5m2[*x*]unit"; and back (nullopt if malformed).
std::string to_string(const QuantFormat& format);
std::optional<QuantFormat> parse_quant_format(std::string_view text);

// The shape of the scale matrix of a [rows, cols] matrix: ragged edges count as a whole cell, so
// 576 rows of 128x128 blocks have 5 rows of scales.
struct ScaleShape {
  int64_t rows, cols;
  int64_t count() const { return rows * cols; }
  friend auto operator<=>(const ScaleShape&, const ScaleShape&) = default;
};
ScaleShape scale_shape(const ScaleGrid& grid, int64_t rows, int64_t cols);

}  // namespace octet
