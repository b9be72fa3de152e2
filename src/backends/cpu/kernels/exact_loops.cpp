#include "backends/cpu/kernels/exact_loops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "backends/cpu/kernels/load.h"
#include "numerics/exact_math.h"
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

// Four lanes: the width that every ISA has.
using Quad = float __attribute__((vector_size(16)));
OCTET_INLINE Quad load_quad(const float* from) {
  Quad quad;
  std::memcpy(&quad, from, sizeof quad);
  return quad;
}

// fold() of four sets of lanes at once, which lie one after another: the same additions, as whole
// vectors. One at a time, the tree would cost more than the products.
OCTET_INLINE void fold4(const float (*lanes)[kLanes], float* sums) {
  Quad q[4];
  for (int i = 0; i < 4; ++i) {
    const float* const l = lanes[i];
    q[i] = (load_quad(l) + load_quad(l + 8)) + (load_quad(l + 4) + load_quad(l + 12));
  }
  // (l0 + l2) + (l1 + l3) of each: transposed, so that a vector holds one lane of all four.
  const Quad ab = __builtin_shufflevector(q[0], q[1], 0, 4, 1, 5) +
                  __builtin_shufflevector(q[0], q[1], 2, 6, 3, 7);
  const Quad cd = __builtin_shufflevector(q[2], q[3], 0, 4, 1, 5) +
                  __builtin_shufflevector(q[2], q[3], 2, 6, 3, 7);
  const Quad sum =
      __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
  std::memcpy(sums, &sum, sizeof sum);
}

// One block of M x N outputs: each loaded value is used several times.
template <int M, int N>
OCTET_INLINE void dot_block(const float* x, const float* w, int64_t stride, int64_t steps,
                            float (&sums)[M * N]) {
  float lane[M * N][kLanes] = {};
  for (int64_t step = 0; step < steps; ++step) {
    for (int i = 0; i < M; ++i) {
      for (int j = 0; j < N; ++j) {
        for (int l = 0; l < kLanes; ++l) {
          const int64_t k = step * kLanes + l;
          lane[i * N + j][l] += x[i * stride + k] * w[j * stride + k];
        }
      }
    }
  }
  if constexpr (M * N % 4 == 0) {
    for (int i = 0; i < M * N; i += 4) fold4(lane + i, sums + i);
  } else {
    for (int i = 0; i < M * N; ++i) {
      fold(lane[i]);
      sums[i] = lane[i][0];
    }
  }
}

// M x N outputs, from row `row` of x and row `col` of w on.
template <int M, int N>
OCTET_INLINE void dot_tile(const Segments& segments, const FloatRows& x, int64_t row,
                           const FloatRows& w, int64_t col, float* out, int64_t out_stride) {
  const int64_t stride = segments.stride();
  const float* const xv = x.values + row * stride;
  const float* const wv = w.values + col * stride;
  float total[M * N] = {};
  for (int64_t s = 0; s < segments.count; ++s) {
    const int64_t used = std::min(segments.length, segments.k - s * segments.length);
    float block[M * N];
    dot_block<M, N>(xv + s * segments.padded, wv + s * segments.padded, stride,
                    (used + kLanes - 1) / kLanes, block);
    if (w.scales) {
      for (int i = 0; i < M * N; ++i) block[i] *= w.scales[(col + i % N) * segments.count + s];
    }
    if (x.scales) {
      for (int i = 0; i < M * N; ++i) block[i] *= x.scales[(row + i / N) * segments.count + s];
    }
    for (int i = 0; i < M * N; ++i) total[i] += block[i];
  }
  for (int i = 0; i < M * N; ++i) out[(row + i / N) * out_stride + col + i % N] = total[i];
}

template <int M>
OCTET_INLINE void dot_row_tile(const Segments& segments, const FloatRows& x, int64_t row,
                               const FloatRows& w, float* out, int64_t out_stride) {
  int64_t col = 0;
  for (; col + 4 <= w.rows; col += 4) dot_tile<M, 4>(segments, x, row, w, col, out, out_stride);
  for (; col < w.rows; ++col) dot_tile<M, 1>(segments, x, row, w, col, out, out_stride);
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
template <Code F>
OCTET_INLINE float decode_select(uint8_t code) {
  using T = Fp8Traits<F>;
  constexpr int shift = 23 - T::mantissa_bits;
  const uint32_t sign = uint32_t{code & 0x80u} << 24;
  const uint32_t magnitude = code & 0x7Fu;
  const uint32_t normal = (magnitude << shift) + (uint32_t{127 - T::bias} << 23);
  const uint32_t subnormal = std::bit_cast<uint32_t>(
      static_cast<float>(static_cast<int32_t>(magnitude)) * T::min_subnormal);
  constexpr uint32_t infinity = F == Code::e5m2 ? 0x7Cu : 0xFFu;
  uint32_t value = magnitude < (1u << T::mantissa_bits) ? subnormal : normal;
  value = magnitude > T::max_code ? (magnitude == infinity ? 0x7F800000u : 0x7FC00000u) : value;
  return std::bit_cast<float>(sign | value);
}

OCTET_EXACT_CLONES void load_e4m3(const uint8_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = decode_select<Code::e4m3>(from[i]);
}

OCTET_EXACT_CLONES void load_e5m2(const uint8_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = decode_select<Code::e5m2>(from[i]);
}

OCTET_EXACT_CLONES void load_i8(const uint8_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = int8_decode(from[i]);
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
  int64_t row = 0;
  for (; row + 4 <= x.rows; row += 4) dot_row_tile<4>(segments, x, row, w, out, out_stride);
  for (; row < x.rows; ++row) dot_row_tile<1>(segments, x, row, w, out, out_stride);
}

OCTET_EXACT_CLONES void silu_mul_row(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = exact::silu(gate[i]) * up[i];
}

OCTET_EXACT_CLONES void add_weighted(const float* x, float weight, int64_t n, float* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += weight * x[i];
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
    case DType::i8:
      load_i8(static_cast<const uint8_t*>(from), n, to);
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
