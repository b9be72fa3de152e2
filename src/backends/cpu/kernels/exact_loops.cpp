#include "backends/cpu/kernels/exact_loops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "backends/cpu/kernels/load.h"
#include "numerics/half.h"

namespace octet::cpu {
namespace {

#define OCTET_INLINE inline __attribute__((always_inline))

OCTET_INLINE void fold(float* lane) {
  for (int l = 0; l < 8; ++l) lane[l] += lane[l + 8];
  for (int l = 0; l < 4; ++l) lane[l] += lane[l + 4];
  for (int l = 0; l < 2; ++l) lane[l] += lane[l + 2];
  lane[0] += lane[1];
}

// MR x NR outputs at once: each loaded value is used several times.
template <int MR, int NR>
OCTET_INLINE void dot_tile(const Segments& segments, const float* x, const float* x_scales,
                           const float* w, const float* w_scales, float* out, int64_t out_stride) {
  const int64_t stride = segments.stride();
  float total[MR][NR] = {};
  for (int64_t s = 0; s < segments.count; ++s) {
    const int64_t used = std::min(segments.length, segments.k - s * segments.length);
    const int64_t steps = (used + kLanes - 1) / kLanes;
    const float* const xs = x + s * segments.padded;
    const float* const ws = w + s * segments.padded;
    float lane[MR][NR][kLanes] = {};
    for (int64_t step = 0; step < steps; ++step) {
      for (int i = 0; i < MR; ++i) {
        for (int j = 0; j < NR; ++j) {
          for (int l = 0; l < kLanes; ++l) {
            lane[i][j][l] +=
                xs[i * stride + step * kLanes + l] * ws[j * stride + step * kLanes + l];
          }
        }
      }
    }
    for (int i = 0; i < MR; ++i) {
      for (int j = 0; j < NR; ++j) {
        fold(lane[i][j]);
        float block = lane[i][j][0];
        if (w_scales) block *= w_scales[j * segments.count + s];
        if (x_scales) block *= x_scales[i * segments.count + s];
        total[i][j] += block;
      }
    }
  }
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NR; ++j) out[i * out_stride + j] = total[i][j];
  }
}

OCTET_EXACT_CLONES void load_bf16(const char* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) {
    bf16 value;
    std::memcpy(&value, from + 2 * i, 2);
    to[i] = to_float(value);
  }
}

OCTET_EXACT_CLONES void load_f16(const char* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) {
    fp16 value;
    std::memcpy(&value, from + 2 * i, 2);
    to[i] = to_float(value);
  }
}

OCTET_EXACT_CLONES void store_bf16(const float* from, int64_t n, char* to) {
  for (int64_t i = 0; i < n; ++i) {
    const bf16 value = to_bf16(from[i]);
    std::memcpy(to + 2 * i, &value, 2);
  }
}

OCTET_EXACT_CLONES void store_f16(const float* from, int64_t n, char* to) {
  for (int64_t i = 0; i < n; ++i) {
    const fp16 value = to_fp16(from[i]);
    std::memcpy(to + 2 * i, &value, 2);
  }
}

// fp8_decode without branches, so that it vectorizes.
template <Fp8 F>
OCTET_INLINE float decode_select(uint8_t code) {
  using T = Fp8Traits<F>;
  constexpr int shift = 23 - T::mantissa_bits;
  const uint32_t sign = uint32_t{code & 0x80u} << 24;
  const uint32_t magnitude = code & 0x7Fu;
  const uint32_t normal = (magnitude << shift) + (uint32_t{127 - T::bias} << 23);
  const uint32_t subnormal = std::bit_cast<uint32_t>(
      static_cast<float>(static_cast<int32_t>(magnitude)) * T::min_subnormal);
  constexpr uint32_t infinity = F == Fp8::e5m2 ? 0x7Cu : 0xFFu;
  uint32_t value = magnitude < (1u << T::mantissa_bits) ? subnormal : normal;
  value = magnitude > T::max_code ? (magnitude == infinity ? 0x7F800000u : 0x7FC00000u) : value;
  return std::bit_cast<float>(sign | value);
}

OCTET_EXACT_CLONES void load_e4m3(const uint8_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = decode_select<Fp8::e4m3>(from[i]);
}

OCTET_EXACT_CLONES void load_e5m2(const uint8_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = decode_select<Fp8::e5m2>(from[i]);
}

}  // namespace

Segments segments_of(int64_t k, int64_t a, int64_t b) {
  Segments segments;
  segments.k = k;
  segments.length = kDotBlock;
  for (const int64_t change : {a, b}) {
    if (change > 0 && change < k) segments.length = std::gcd(segments.length, change);
  }
  segments.padded = (segments.length + kLanes - 1) / kLanes * kLanes;
  segments.count = (k + segments.length - 1) / segments.length;
  return segments;
}

OCTET_EXACT_CLONES void dot_rows(const Segments& segments, const FloatRows& x, const FloatRows& w,
                                 float* out, int64_t out_stride) {
  const int64_t stride = segments.stride();
  if (x.rows == 1) {  // decoding one sequence: more columns at once, to hide the latency of adds
    int64_t j = 0;
    for (; j + 4 <= w.rows; j += 4) {
      dot_tile<1, 4>(segments, x.values, x.scales, w.values + j * stride,
                     w.scales ? w.scales + j * segments.count : nullptr, out + j, out_stride);
    }
    for (; j < w.rows; ++j) {
      dot_tile<1, 1>(segments, x.values, x.scales, w.values + j * stride,
                     w.scales ? w.scales + j * segments.count : nullptr, out + j, out_stride);
    }
    return;
  }
  for (int64_t i = 0; i < x.rows; i += 2) {
    for (int64_t j = 0; j < w.rows; j += 2) {
      const bool two_rows = i + 1 < x.rows, two_cols = j + 1 < w.rows;
      const float* const xv = x.values + i * stride;
      const float* const wv = w.values + j * stride;
      const float* const xs = x.scales ? x.scales + i * segments.count : nullptr;
      const float* const ws = w.scales ? w.scales + j * segments.count : nullptr;
      float* const o = out + i * out_stride + j;
      if (two_rows && two_cols) {
        dot_tile<2, 2>(segments, xv, xs, wv, ws, o, out_stride);
      } else if (two_cols) {
        dot_tile<1, 2>(segments, xv, xs, wv, ws, o, out_stride);
      } else if (two_rows) {
        dot_tile<2, 1>(segments, xv, xs, wv, ws, o, out_stride);
      } else {
        dot_tile<1, 1>(segments, xv, xs, wv, ws, o, out_stride);
      }
    }
  }
}

OCTET_EXACT_CLONES float dot(const float* x, const float* w, int64_t n) {
  float total = 0.0f;
  for (int64_t begin = 0; begin < n; begin += kDotBlock) {
    const int64_t used = std::min(kDotBlock, n - begin);
    float lane[kLanes] = {};
    int64_t k = 0;
    for (; k + kLanes <= used; k += kLanes) {
      for (int l = 0; l < kLanes; ++l) lane[l] += x[begin + k + l] * w[begin + k + l];
    }
    for (int l = 0; k + l < used; ++l) lane[l] += x[begin + k + l] * w[begin + k + l];
    fold(lane);
    total += lane[0];
  }
  return total;
}

OCTET_EXACT_CLONES void weighted_sum(const float* p, const float* v, int64_t stride, int64_t tokens,
                                     int64_t dim, float* out) {
  int64_t d = 0;
  for (; d + 64 <= dim; d += 64) {
    float sum[64] = {};
    for (int64_t t = 0; t < tokens; ++t) {
      const float* const row = v + t * stride + d;
      for (int l = 0; l < 64; ++l) sum[l] += p[t] * row[l];
    }
    std::memcpy(out + d, sum, sizeof sum);
  }
  for (; d < dim; d += kLanes) {
    const int64_t used = std::min(kLanes, dim - d);
    float sum[kLanes] = {};
    for (int64_t t = 0; t < tokens; ++t) {
      const float* const row = v + t * stride + d;
      for (int l = 0; l < used; ++l) sum[l] += p[t] * row[l];
    }
    std::memcpy(out + d, sum, static_cast<size_t>(used) * sizeof(float));
  }
}

float tree_sum64(const float* values, int64_t n) {
  float lane[64] = {};
  std::memcpy(lane, values, static_cast<size_t>(n) * sizeof(float));
  for (int half = 32; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

void load_floats(DType type, const void* from, int64_t n, float* to) {
  switch (type) {
    case DType::f32:
      std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
      return;
    case DType::bf16:
      load_bf16(static_cast<const char*>(from), n, to);
      return;
    case DType::f16:
      load_f16(static_cast<const char*>(from), n, to);
      return;
    case DType::e4m3:
      load_e4m3(static_cast<const uint8_t*>(from), n, to);
      return;
    case DType::e5m2:
      load_e5m2(static_cast<const uint8_t*>(from), n, to);
      return;
    default:
      throw Fault(fmt::format("cannot read {} as floats", name_of(type)));
  }
}

void store_floats(DType type, const float* from, int64_t n, void* to) {
  switch (type) {
    case DType::f32:
      std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
      return;
    case DType::bf16:
      store_bf16(from, n, static_cast<char*>(to));
      return;
    case DType::f16:
      store_f16(from, n, static_cast<char*>(to));
      return;
    default:
      throw Fault(fmt::format("cannot write floats as {}", name_of(type)));
  }
}

void unsupported(const std::string& op, const std::string& why,
                 std::initializer_list<std::pair<const char*, Tensor>> tensors) {
  std::string text = fmt::format("{}: {}; given", op, why);
  const char* separator = " ";
  for (const auto& [name, tensor] : tensors) {
    text += fmt::format("{}{} {}", separator, name, tensor ? to_string(tensor) : "absent");
    separator = ", ";
  }
  throw Fault(text);
}

}  // namespace octet::cpu
