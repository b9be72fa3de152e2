// The one rule by which Octet turns numbers into 8-bit codes and scales. The reference quantizer
// below, every CPU and CUDA kernel and the tests call the same inline helpers, so that they agree
// bit for bit.
//
//   absmax  over the finite elements that share a scale       finite_absmax
//   scale   absmax / max, division in FP32                    choose_scale
//   inv     1 / scale, division in FP32                       inverse_scale
//   code    encode(x * inv), product in FP32                  quantize_value
//   value   decode(code) * scale                              in the consumer
//
// Why multiply by a reciprocal and not divide: kernels quantize millions of activations a step and
// a division a value costs several times the encoding. The product differs from the true quotient
// by at most 1.5 units in the last place of FP32, so a code can differ only where x / scale lies
// within 2^-22 of a tie, and there both neighbours are equally near. For power-of-two scales the
// two are the same.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "numerics/code.h"
#include "numerics/e8m0.h"
#include "numerics/quant_format.h"

namespace octet {

// The least scale: its reciprocal, 2^126, is finite and normal. A cell whose absmax is below
// 448 * 2^-126 loses its lowest values to zero instead of dividing by a subnormal.
inline constexpr float kMinScale = 0x1p-126f;

// |x| as bits, or 0 if x is NaN or Inf. Bits of non-negative floats are in the order of their
// values, so an absmax is a maximum of integers, which vectorizes and has no NaN rules.
constexpr uint32_t finite_magnitude(float x) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu;
  return magnitude & (0u - static_cast<uint32_t>(magnitude < 0x7F800000u));
}

// The absmax of the finite ones of `count` elements, `stride` apart. 0 if none is finite.
constexpr float finite_absmax(const float* x, int64_t count, int64_t stride = 1) {
  uint32_t absmax = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = finite_magnitude(x[i * stride]);
    absmax = magnitude > absmax ? magnitude : absmax;
  }
  return std::bit_cast<float>(absmax);
}

// The scale of a cell whose finite absmax is given:
//   unit   1
//   f32    max(absmax / max_of(code), kMinScale)
//   e8m0   the same, rounded up to a power of two, so that nothing saturates
// A zero cell gets 1 (0 / 0 has no answer, and every code is 0 whatever the scale), and so does an
// absmax that is negative, NaN or Inf, which finite_absmax never returns.
constexpr float choose_scale(float absmax, const QuantFormat& format) {
  if (format.scale == ScaleType::unit) return 1.0f;
  if (!(absmax > 0.0f) || std::bit_cast<uint32_t>(absmax) >= 0x7F800000u) return 1.0f;
  float scale = absmax / max_of(format.code);
  scale = scale < kMinScale ? kMinScale : scale;
  return format.scale == ScaleType::e8m0 ? ceil_pow2(scale) : scale;
}

// What values are multiplied by before encoding. Finite and normal for every scale of choose_scale.
constexpr float inverse_scale(float scale) {
  return 1.0f / scale;
}

// The code of x under inv = inverse_scale(scale). NaN encodes as NaN (as 0 where codes are
// integers, which have none), +-Inf and everything beyond the range as +-max.
template <Code F>
constexpr uint8_t quantize_value(float x, float inv) {
  return code_encode<F>(x * inv);
}
constexpr uint8_t quantize_value(Code type, float x, float inv) {
  return code_encode(type, x * inv);
}

// True if x * inv lies beyond max by more than half a step (464 for E4M3, 61440 for E5M2, 127.5 for
// an integer): where saturation costs more than rounding does. False for NaN; true for Inf.
constexpr bool is_saturated(Code type, float scaled) {
  const float limit = type == Code::e4m3 ? 464.0f : type == Code::e5m2 ? 61440.0f : 127.5f;
  return scaled > limit || scaled < -limit;
}

// What quantizing a matrix did to its values, for reports. Sums over parts of a matrix add up.
struct QuantStats {
  int64_t elements = 0;
  int64_t saturated = 0;  // finite, and clamped by more than rounding (given or unit scales only)
  int64_t flushed = 0;    // not zero, but encoded as zero
  int64_t nan = 0;
  int64_t inf = 0;
  int64_t zero_cells = 0;  // cells without any finite non-zero element (scale 1)

  int64_t nonfinite() const { return nan + inf; }
  QuantStats& operator+=(const QuantStats& other);
  friend bool operator==(const QuantStats&, const QuantStats&) = default;
};

// Quantizes a row-major [rows, cols] matrix. `codes` has rows * cols bytes in the same order;
// `scales` has scale_shape(format.grid, rows, cols).count() floats, row-major. Cells at ragged
// edges are smaller and take the absmax of what they have. Sizes that do not fit are a Fault.
QuantStats quantize(std::span<const float> x, int64_t rows, int64_t cols, const QuantFormat& format,
                    std::span<uint8_t> codes, std::span<float> scales);

// The same with scales that are already known (calibrated, or read from a checkpoint).
QuantStats quantize_with_scales(std::span<const float> x, int64_t rows, int64_t cols,
                                const QuantFormat& format, std::span<const float> scales,
                                std::span<uint8_t> codes);

// x[r, c] = decode(code) * scale, one FP32 product; shapes as above.
void dequantize(std::span<const uint8_t> codes, int64_t rows, int64_t cols,
                const QuantFormat& format, std::span<const float> scales, std::span<float> x);

}  // namespace octet
