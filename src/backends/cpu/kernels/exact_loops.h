// The inner loops of the exact kernels: the one place where their order of summation is fixed.
//
// A dot product of n elements runs in blocks of at most 128:
//
//   k         0 1 2 ... 15 | 16 17 ... 31 | ... | 112 ... 127
//   lane[l]  = x[l] w[l]  +  x[16+l] w[16+l] + ... , in ascending order of k
//   block    = tree: lane[l] += lane[l + 8], += lane[l + 4], + 2, + 1
//   result   = block_0 s_0 + block_1 s_1 + ...     in ascending order, FP32
//
// Products of two E4M3 values are exact in FP32, and no multiply is fused with an add, so these
// bits are the same on every compiler and ISA. Sixteen lanes fill one AVX-512 register, two of AVX2
// or four of SSE and NEON.
#pragma once

#include <cstdint>

#include "base/cpu_clones.h"
#include "numerics/quant_format.h"
#include "tensor/tensor.h"

namespace octet::cpu {

inline constexpr int64_t kDotBlock = 128;
inline constexpr int64_t kLanes = 16;

// How a matrix row of k elements lies in memory for dot_rows: `count` segments (dot-product blocks
// that share their scales), each padded with zeros to whole lanes.
struct Segments {
  int64_t k = 0;       // elements
  int64_t length = 0;  // elements of a segment; the last may have fewer
  int64_t padded = 0;  // floats of a segment: length rounded up to 16
  int64_t count = 0;
  int64_t stride() const { return count * padded; }  // floats of a row
};
// The segments of k elements when scales change every `a` and every `b` elements (0 = never).
Segments segments_of(int64_t k, int64_t a = 0, int64_t b = 0);

// Rows of floats in segments, with the scale of each segment.
struct FloatRows {
  const float* values;  // [rows, segments.stride()]
  const float* scales;  // [rows, segments.count]; null = all 1
  int64_t rows;
};

// out[i * out_stride + j] = sum over segments s of (dot(x_i, w_j) * w_scale[j, s]) * x_scale[i, s].
void dot_rows(const Segments& segments, const FloatRows& x, const FloatRows& w, float* out,
              int64_t out_stride);

// The same for one pair of unpadded rows without scales.
float dot(const float* x, const float* w, int64_t n);

// out[d] = sum over t of p[t] v[t * stride + d], in ascending order of t, from zero.
void weighted_sum(const float* p, const float* v, int64_t stride, int64_t tokens, int64_t dim,
                  float* out);

// out[i] = silu(gate[i]) * up[i]; out may be gate.
void silu_mul_row(const float* gate, const float* up, int64_t n, float* out);

// sum[i] += weight * x[i], the product rounded by itself.
void add_weighted(const float* x, float weight, int64_t n, float* sum);

// The 64-lane tree sum of n <= 64 values, the rest taken as zero.
float tree_sum64(const float* values, int64_t n);

}  // namespace octet::cpu
