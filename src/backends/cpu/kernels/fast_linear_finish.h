// How the AVX-512 and AMX linears turn finished sums into the values of out.
#pragma once

#if defined(__x86_64__)

#include <algorithm>

#include "backends/cpu/kernels/fast_linear.h"
#include "backends/cpu/kernels/simd_avx512.h"

namespace octet::cpu::fast {

// What columns() passes on: packed x and where its scales lie.
struct PackedRows {
  explicit PackedRows(const Packed& packed, int64_t k) : p(packed), cells(cells_of(k)) {}

  const std::byte* data(int64_t first) const { return p.data + first * p.row_bytes; }
  // Of a group that starts at row `first`: [cell][rows of the group].
  const float* cell_scales(int64_t first) const {
    return p.scales ? p.scales + first * cells : nullptr;
  }
  const float* row_scales(int64_t first) const {
    return p.scales ? p.scales + p.rows * cells + first : nullptr;
  }

  const Packed& p;
  int64_t cells;
};

inline constexpr int64_t kFinish = 16;  // columns that are finished at once

OCTET_AVX512_INLINE __m512 load_bias(const Output& out, int64_t n, __mmask16 mask) {
  if (out.bias_type == DType::f32) return _mm512_maskz_loadu_ps(mask, out.bias + n * 4);
  const __m256i halves = _mm256_maskz_loadu_epi16(mask, out.bias + n * 2);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// The scales of rows [n, n + 16) of W where they do not vary along k, else 1; those of rows outside
// `mask` are anything. One scale a row lies close by: sixteen of them are one load.
OCTET_AVX512_INLINE __m512 constant_scales(const Matrix& w, int64_t n, __mmask16 mask) {
  const Scales& scales = w.scales;
  if (!scales.data || scales.varies) return _mm512_set1_ps(1.0f);
  if (scales.cell_rows == 1 && scales.row_bytes == sizeof(float)) {
    return _mm512_maskz_loadu_ps(mask, scales.data + n * static_cast<int64_t>(sizeof(float)));
  }
  if (scales.cell_rows == 0) return _mm512_set1_ps(scales.at(0, 0));
  alignas(64) float each[kFinish];
  for (int64_t r = 0; r < kFinish; ++r) each[r] = scales.at(std::min(n + r, w.rows - 1), 0);
  return _mm512_load_ps(each);
}

// Columns [n, min(n + 16, last)) of out: what all rows of x have in common there.
struct Columns16 {
  __m512 factor, bias;
  __mmask16 mask;
  int64_t n;
  bool biased;

  OCTET_AVX512_INLINE static Columns16 of(const Matrix& w, int64_t n, int64_t last,
                                          const Output& out) {
    const auto mask = static_cast<__mmask16>(simd::first_lanes(last - n, kFinish));
    return {constant_scales(w, n, mask), out.bias ? load_bias(out, n, mask) : _mm512_setzero_ps(),
            mask, n, out.bias != nullptr};
  }
  // Scales the sums of one row, which may hold anything outside the mask, and writes them.
  OCTET_AVX512_INLINE void write(__m512 sum, int64_t row, const Output& out) const {
    sum = _mm512_mul_ps(sum, factor);
    if (biased) sum = _mm512_add_ps(sum, bias);
    std::byte* const to = out.data + row * out.row_bytes;
    if (out.type == DType::f32) {
      _mm512_mask_storeu_ps(to + n * 4, mask, sum);
    } else {
      _mm256_mask_storeu_epi16(to + n * 2, mask, _mm512_cvtepi32_epi16(simd::round_to_bf16(sum)));
    }
  }
};

}  // namespace octet::cpu::fast

#endif
