#include "backends/cpu/kernels/fast_attention_core.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "backends/cpu/kernels/fast_attention_amx.h"
#include "backends/cpu/kernels/fast_attention_steps.h"
#include "numerics/exact_math.h"

namespace octet::cpu::attention {

#if defined(__x86_64__)
namespace {

namespace rule = attention_rule;

constexpr int kRows = 6;  // 6 rows x 4 vectors = 24 accumulators of the 32 registers

// The two halves of 16 elements of two BF16 values.
OCTET_AVX512_INLINE __m512 even(const std::byte* p) {
  return simd::even_bf16(_mm512_load_si512(p));
}
OCTET_AVX512_INLINE __m512 odd(const std::byte* p) {
  return simd::odd_bf16(_mm512_load_si512(p));
}

// acc[r][v] += q[r][d] * k[v] for one d.
template <int R>
OCTET_AVX512_INLINE void add_keys(const float* q, int q_stride, __m512 k0, __m512 k1, __m512 k2,
                                  __m512 k3, __m512 (&acc)[R][4]) {
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    const __m512 x = _mm512_set1_ps(q[r * q_stride]);
    acc[r][0] = _mm512_fmadd_ps(x, k0, acc[r][0]);
    acc[r][1] = _mm512_fmadd_ps(x, k1, acc[r][1]);
    acc[r][2] = _mm512_fmadd_ps(x, k2, acc[r][2]);
    acc[r][3] = _mm512_fmadd_ps(x, k3, acc[r][3]);
  }
}

// acc[r][v] = sum over d in [begin, end) of q[r][d] * k[d][16v ..]: lanes are tokens. Every
// accumulator is one chain over d in the order of the tile, whatever the number of rows. `begin` is
// even, and q and k are zero at `end` if that is odd.
template <int R, bool Wide>
OCTET_AVX512_INLINE void dot_keys(const float* q, int q_stride, const std::byte* k, int begin,
                                  int end, __m512 (&acc)[R][4]) {
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) acc[r][v] = _mm512_setzero_ps();
  }
  constexpr int step = Wide ? 1 : 2;
  const std::byte* row = k + begin / step * (kTile * 4);
  for (int d = begin; d < end; d += step, row += kTile * 4) {
    if constexpr (Wide) {
      add_keys<R>(q + d, q_stride, _mm512_load_ps(row), _mm512_load_ps(row + 64),
                  _mm512_load_ps(row + 128), _mm512_load_ps(row + 192), acc);
    } else {
      add_keys<R>(q + d, q_stride, even(row), even(row + 64), even(row + 128), even(row + 192),
                  acc);
      // A second load costs less than four registers, of which there are none left.
      const std::byte* again = row;
      asm("" : "+r"(again));
      add_keys<R>(q + d + 1, q_stride, odd(again), odd(again + 64), odd(again + 128),
                  odd(again + 192), acc);
    }
  }
}

template <int R>
OCTET_AVX512_INLINE void dot_keys(bool wide, const float* q, int q_stride, const std::byte* k,
                                  int begin, int end, __m512 (&acc)[R][4]) {
  if (wide) {
    dot_keys<R, true>(q, q_stride, k, begin, end, acc);
  } else {
    dot_keys<R, false>(q, q_stride, k, begin, end, acc);
  }
}

// Step 1 of the rule: scores in units of log2, for all 64 slots, masked ones included.
template <int R>
OCTET_AVX512_INLINE void score(const TileShape& shape, const Math& math, const Tile& tile,
                               const Rows& rows, int row, float (&x)[kRows][kTile]) {
  const float* q = rows.q + int64_t{row} * rows.q_stride;
  __m512 acc[R][4];
  for (int g = 0; g < shape.groups; ++g) {
    const int begin = g * shape.group_dims;
    const int end = g + 1 == shape.groups ? shape.end_k() : begin + shape.group_dims;
    dot_keys<R>(shape.wide, q, rows.q_stride, tile.k, begin, end, acc);
    const float* scales = tile.k_scale + g * kTile;
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const __m512 s = _mm512_load_ps(scales + 16 * v);
        const __m512 sum = g == 0 ? _mm512_mul_ps(acc[r][v], s)
                                  : _mm512_fmadd_ps(acc[r][v], s, _mm512_load_ps(&x[r][16 * v]));
        _mm512_store_ps(&x[r][16 * v], sum);
      }
    }
  }
  if (shape.rope_dims > 0) {
    dot_keys<R>(shape.wide_rope, q + shape.padded_k(), rows.q_stride, tile.rope, 0, shape.rope_dims,
                acc);
  } else {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) acc[r][v] = _mm512_setzero_ps();
    }
  }
  const __m512 c = _mm512_set1_ps(math.scale);
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    const __m512 q_scale = _mm512_set1_ps(rows.q_scale[row + r]);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m512 sum = _mm512_fmadd_ps(_mm512_load_ps(&x[r][16 * v]), q_scale, acc[r][v]);
      _mm512_store_ps(&x[r][16 * v], _mm512_mul_ps(sum, c));
    }
  }
}

// Step 6 for V registers of one chunk: lanes are value dims, one chain over ascending tokens each.
// Tokens outside [begin, end) have P = 0 in all rows, and leaving them out changes no bit. `v` is
// the first token's; the next is `v_bytes` on.
template <int R, int V, bool Wide>
OCTET_AVX512_INLINE void add_values(const float (&p)[kRows][kTile], const std::byte* v,
                                    int64_t v_bytes, int begin, int end, const float* scale_o,
                                    const float* scale_v, const bool* seen, float* value,
                                    int stride) {
  __m512 acc[R][V];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < V; ++i) acc[r][i] = _mm512_setzero_ps();
  }
  const std::byte* row = v + begin * v_bytes;
  for (int t = begin; t < end; ++t, row += v_bytes) {
    __m512 x[V];
#pragma GCC unroll 4
    for (int i = 0; i < V; i += 2) {
      if constexpr (Wide) {
        x[i] = _mm512_load_ps(row + 64 * i);
        x[i + 1] = _mm512_load_ps(row + 64 * i + 64);
      } else {
        const __m512i pairs = _mm512_load_si512(row + 32 * i);
        x[i] = simd::even_bf16(pairs);
        x[i + 1] = simd::odd_bf16(pairs);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m512 w = _mm512_set1_ps(p[r][t]);
#pragma GCC unroll 4
      for (int i = 0; i < V; ++i) acc[r][i] = _mm512_fmadd_ps(w, x[i], acc[r][i]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    if (!seen[r]) continue;
    const __m512 a = _mm512_set1_ps(scale_o[r]), b = _mm512_set1_ps(scale_v[r]);
#pragma GCC unroll 4
    for (int i = 0; i < V; ++i) {
      float* o = value + r * stride + 16 * i;
      _mm512_store_ps(o, _mm512_fmadd_ps(acc[r][i], b, _mm512_mul_ps(_mm512_load_ps(o), a)));
    }
  }
}

template <int R>
OCTET_AVX512 void attend(const TileShape& shape, const Math& math, const Tile& tile, int64_t first,
                         const Rows& rows, int row) {
  alignas(64) float p[kRows][kTile], rounded[kRows][kTile];
  alignas(64) float weight[kTile];
  uint64_t masks[R];
  bool seen[R];
  float scale_o[R], scale_v[R];
  int begin = kTile, end = 0;

  score<R>(shape, math, tile, rows, row, p);
  for (int r = 0; r < R; ++r) {
    const Seen slots = seen_slots(rows.position[row + r], math.window, first);
    masks[r] = slots.mask();
    seen[r] = masks[r] != 0;
    if (!seen[r]) {
      std::fill_n(p[r], kTile, 0.0f);
      scale_o[r] = 1.0f;
      continue;
    }
    begin = std::min(begin, slots.begin);
    end = std::max(end, slots.end);
    scale_o[r] = soften(masks[r], p[r], rows.max[row + r], rows.sum + int64_t{row + r} * 16);
  }
  if (begin >= end) return;

  const int stride = shape.v_stride();
  for (int g = 0; g < shape.groups; ++g) {
    for (int r = 0; r < R; ++r) {
      const float* weights = tile.equal_scales ? nullptr : tile.weight + g * kTile;
      float s = tile.factor[g];
      if (!tile.equal_scales && masks[r] != ~uint64_t{0} && seen[r]) {
        s = value_weights(shape.mla, tile.v_scale + g * kTile, masks[r], weight);
        weights = weight;
      }
      round_p(math.round, masks[r], p[r], weights, rounded[r]);
      scale_v[r] = math.round == RoundP::e4m3 ? s * (1.0f / rule::kPScale) : s;
    }
    const int from = g * shape.group_dims;
    const int to = std::min(from + shape.group_dims, shape.v_dims);
    const int64_t element = shape.wide ? 4 : 2;
    for (int d = from; d < to; d += kChunk) {
      const std::byte* v = tile.v + d * element;
      float* value = rows.value + int64_t{row} * stride + d;
      const auto add = [&]<int V, bool Wide>() OCTET_AVX512 {
        add_values<R, V, Wide>(rounded, v, stride * element, begin, end, scale_o, scale_v, seen,
                               value, stride);
      };
      const bool both = to - d > 32;  // of the chunk's halves
      if (shape.wide) {
        both ? add.template operator()<4, true>() : add.template operator()<2, true>();
      } else {
        both ? add.template operator()<4, false>() : add.template operator()<2, false>();
      }
    }
  }
}

}  // namespace

void attend_tile(const TileShape& shape, const Math& math, const Tile& tile, int64_t first,
                 const Rows& rows, int begin, int end) {
  if (shape.amx) return attend_tile_amx(shape, math, tile, first, rows, begin, end);
  // A V that is not finite must not meet even a P of zero: rows go one by one then, each over the
  // slots that it sees itself.
  const int step = tile.finite_v ? kRows : 1;
  for (int row = begin; row < end; row += step) {
    switch (std::min(step, end - row)) {
      case 6:
        attend<6>(shape, math, tile, first, rows, row);
        break;
      case 5:
        attend<5>(shape, math, tile, first, rows, row);
        break;
      case 4:
        attend<4>(shape, math, tile, first, rows, row);
        break;
      case 3:
        attend<3>(shape, math, tile, first, rows, row);
        break;
      case 2:
        attend<2>(shape, math, tile, first, rows, row);
        break;
      default:
        attend<1>(shape, math, tile, first, rows, row);
        break;
    }
  }
}

void clear_row(const TileShape& shape, float& max, float* sum, float* value) {
  max = rule::kNoMax;
  std::fill_n(sum, 16, 0.0f);
  std::fill_n(value, shape.v_stride(), 0.0f);
}

OCTET_AVX512 void merge_row(const TileShape& shape, float& total_max, float* total_sum,
                            float* total_value, float split_max, const float* split_sum,
                            const float* split_value) {
  if (split_max == rule::kNoMax) return;
  const bool replace = total_max == rule::kNoMax;
  const rule::MergeFactors factors = rule::merge_factors(total_max, split_max);
  const __m512 a = _mm512_set1_ps(factors.total), b = _mm512_set1_ps(factors.split);
  const auto merge = [&](float* total, const float* split, int count) OCTET_AVX512 {
    for (int i = 0; i < count; i += 16) {
      const __m512 s = _mm512_load_ps(split + i);
      _mm512_store_ps(
          total + i,
          replace ? s : _mm512_fmadd_ps(s, b, _mm512_mul_ps(_mm512_load_ps(total + i), a)));
    }
  };
  merge(total_sum, split_sum, 16);
  merge(total_value, split_value, shape.v_stride());
  total_max = replace ? split_max : factors.max;
}

OCTET_AVX512 void finish_row(const TileShape& shape, float max, const float* sum,
                             const float* value, float* out_f32, uint16_t* out_bf16, float* lse) {
  const float total = simd::lane_sum(_mm512_load_ps(sum));
  const bool empty = total == 0.0f;
  const __m512 divisor = _mm512_set1_ps(total);
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (int d = 0; d < shape.v_dims; d += 32) {
    __m512 even = _mm512_setzero_ps(), odd = even;
    if (!empty) {
      even = _mm512_div_ps(_mm512_load_ps(value + d), divisor);
      odd = _mm512_div_ps(_mm512_load_ps(value + d + 16), divisor);
    }
    const auto mask = static_cast<__mmask32>(simd::first_lanes(shape.v_dims - d, 32));
    if (out_f32) {
      _mm512_mask_storeu_ps(out_f32 + d, static_cast<__mmask16>(mask),
                            _mm512_permutex2var_ps(even, low, odd));
      _mm512_mask_storeu_ps(out_f32 + d + 16, static_cast<__mmask16>(mask >> 16),
                            _mm512_permutex2var_ps(even, high, odd));
    }
    if (out_bf16) {
      const __m512i pairs = _mm512_or_si512(simd::round_to_bf16(even),
                                            _mm512_slli_epi32(simd::round_to_bf16(odd), 16));
      _mm512_mask_storeu_epi16(out_bf16 + d, mask, pairs);
    }
  }
  if (!lse) return;
  *lse = empty
             ? -std::numeric_limits<float>::infinity()
             : static_cast<float>(double{max} * 0.69314718055994530942 + exact::log(double{total}));
}

OCTET_AVX512 float load_query(const void* in, bool bf16, int dims, bool quantize, float* out) {
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  const __m512i infinity = _mm512_set1_epi32(0x7F800000);
  __m512i absmax = _mm512_setzero_si512();
  for (int d = 0; d < dims; d += 16) {
    const auto mask = static_cast<__mmask16>(simd::first_lanes(dims - d, 16));
    const __m512 x =
        bf16
            ? simd::widen_bf16(_mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(in) + d))
            : _mm512_maskz_loadu_ps(mask, static_cast<const float*>(in) + d);
    _mm512_storeu_ps(out + d, x);
    const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x), magnitude);
    absmax = _mm512_mask_max_epu32(absmax, _mm512_cmplt_epu32_mask(bits, infinity), absmax, bits);
  }
  if (!quantize) return 1.0f;
  const float largest = std::bit_cast<float>(_mm512_reduce_max_epu32(absmax));
  const float scale = choose_scale(largest, rule::kQueryFormat);
  // The value of quantize_value's code: NaN stays NaN, and what lies beyond the range is +-448.
  const __m512 inverse = _mm512_set1_ps(inverse_scale(scale));
  const __m512 most = _mm512_set1_ps(max_of(Code::e4m3));
  for (int d = 0; d < dims; d += 16) {
    const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(out + d), inverse);
    const __m512 rounded = simd::round_e4m3(_mm512_min_ps(_mm512_abs_ps(x), most));
    const __m512i sign = _mm512_andnot_si512(magnitude, _mm512_castps_si512(x));
    const __m512 value = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(rounded), sign));
    _mm512_storeu_ps(out + d, _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x));
  }
  return scale;
}

OCTET_AVX512 void pair_query(int dims, int padded, const float* q, int step, uint32_t* out) {
  alignas(32) std::array<uint32_t, 8> pairs{};
  for (int d = 0; d < padded; d += 16) {
    const __m512i x = d < dims ? _mm512_loadu_si512(q + d) : _mm512_setzero_si512();
    _mm256_store_si256(reinterpret_cast<__m256i*>(pairs.data()),
                       _mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)));
    for (const uint32_t pair : pairs) {
      *out = pair;
      out += step;
    }
  }
}

OCTET_AVX512 void order_query(int dims, float* q) {
  for (int d = 0; d < dims; d += 16) {
    _mm512_storeu_ps(q + d, _mm512_permute_ps(_mm512_loadu_ps(q + d), 0xD8));
  }
}

#else
void attend_tile(const TileShape&, const Math&, const Tile&, int64_t, const Rows&, int, int) {}
void clear_row(const TileShape&, float&, float*, float*) {}
void merge_row(const TileShape&, float&, float*, float*, float, const float*, const float*) {}
void finish_row(const TileShape&, float, const float*, const float*, float*, uint16_t*, float*) {}
float load_query(const void*, bool, int, bool, float*) {
  return 1.0f;
}
void pair_query(int, int, const float*, int, uint32_t*) {}
void order_query(int, float*) {}
#endif

}  // namespace octet::cpu::attention
