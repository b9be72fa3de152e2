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

enum class Fp8 : uint8_t { e4m3, e5m2 };

constexpr DType dtype_of(Fp8 type) {
  return type == Fp8::e4m3 ? DType::e4m3 : DType::e5m2;
}
constexpr float max_of(Fp8 type) {
  return type == Fp8::e4m3 ? 448.0f : 57344.0f;
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
  Fp8 fp8 = Fp8::e4m3;
  ScaleGrid grid;
  ScaleType scale = ScaleType::f32;
  friend auto operator<=>(const QuantFormat&, const QuantFormat&) = default;
  friend bool operator==(const QuantFormat&, const QuantFormat&) = default;
};

// "e4m3[128x128]f32", "e4m3[1x*]f32", "e5m2[*x*]unit"; and back (nullopt if malformed).
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
