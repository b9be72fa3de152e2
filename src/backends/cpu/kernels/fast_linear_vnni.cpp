// The fast linear on INT8 codes of weights and inputs: vpdpbusd adds 64 products a register to 16
// sums of 32 bits, four times as many as the FP32 multiply-add takes. Sums of integers are exact,
// so no order matters. The instruction wants one side without a sign: W enters as code + 128, and
// 128 times the sum of the row of x, which packing adds up, is taken off in the end.
#include "backends/cpu/kernels/fast_linear.h"

#if defined(__x86_64__)

#include <bit>

#include "backends/cpu/kernels/fast_linear_core.h"

namespace octet::cpu::fast {
namespace {

// A register of 64 codes; accumulators hold integers in the registers of the FP32 ones.
struct VnniMath {
  using Vec = __m512i;
  static constexpr int vecs = 1, width = 64;
  static constexpr bool scales_x = true, integers = true;
  OCTET_AVX512_INLINE static Vec load(const std::byte* p) { return _mm512_load_si512(p); }
  OCTET_AVX512_INLINE static void store(std::byte* p, Vec v) { _mm512_store_si512(p, v); }
  OCTET_AVX512_INLINE static __m512 add_product(__m512 acc, Vec w, Vec x) {
    return _mm512_castsi512_ps(_mm512_dpbusd_epi32(_mm512_castps_si512(acc), w, x));
  }
};

// Codes + 128; 128 stands for the zeros beyond the last.
struct OffsetCodes {
  static constexpr int bytes = 1;
  OCTET_AVX512_INLINE static OffsetCodes make() { return {}; }
  OCTET_AVX512_INLINE static __m512i offset(__m512i codes) {
    return _mm512_xor_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80)));
  }
  OCTET_AVX512_INLINE void full(const std::byte* p, __m512i* out) const {
    out[0] = offset(_mm512_loadu_si512(p));
  }
  OCTET_AVX512_INLINE void part(const std::byte* p, int64_t valid, __m512i* out) const {
    out[0] = offset(_mm512_maskz_loadu_epi8(simd::first_lanes(valid, 64), p));
  }
};

// One row, its vectors `step` bytes apart. Returns the sum of its codes.
OCTET_AVX512 int32_t pack_row(const std::byte* x, int64_t k, std::byte* out, int64_t step) {
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i sum = _mm512_setzero_si512();
  for (int64_t i = 0; i < k; i += kChunk, out += step) {
    const __m512i codes = _mm512_maskz_loadu_epi8(simd::first_lanes(k - i, 64), x + i);
    sum = _mm512_dpbusd_epi32(sum, ones, codes);
    _mm512_storeu_si512(out, codes);
  }
  return _mm512_reduce_add_epi32(sum);
}

// Beside the packed rows stand their sums, then (as in all kernels that do not scale x while they
// pack it) their scales.
void pack(const Matrix& x, const int32_t* index, const Matrix&, const Packed& packed, int64_t begin,
          int64_t end) {
  invariant(x.type == DType::i8 && !x.scales.varies, "INT8 linear: x has no INT8 codes");
  const int64_t cells = cells_of(x.k);
  for (int64_t group = begin; group < end; ++group) {
    const int64_t first = packed.first_row(group), last = packed.first_row(group + 1);
    std::byte* out = packed.data + first * packed.row_bytes;
    for (int64_t m = first; m < last; ++m, out += 64) {
      const int64_t row = index ? index[m] : m;
      const int32_t sum = pack_row(x.row(row), x.k, out, 64 * (last - first));
      packed.scales[m] = std::bit_cast<float>(sum << 7);
      packed.scales[packed.rows * cells + m] = x.scales.data ? x.scales.at(row, 0) : 1.0f;
    }
  }
}

void columns(const Matrix& w, const Packed& packed, int64_t begin, int64_t end, const Output& out,
             std::byte* scratch) {
  if (packed.groups > 1) {
    panel_columns<VnniMath, OffsetCodes>(w, packed, begin, end, out, scratch);
  } else {
    direct_columns<VnniMath, OffsetCodes, false>(w, packed, begin, end, out);
  }
}

constexpr Kernels kernels = {
    .group_rows = kGroup,
    .max_rows = 160 * kGroup,
    .packed_row_bytes = [](int64_t k) { return round_up(k, kChunk); },
    .scales_per_row = [](int64_t k) { return cells_of(k) + 1; },
    .pack = pack,
    .scratch_bytes = thread_scratch_bytes<VnniMath>,
    .columns = columns,
};

}  // namespace

const Kernels& vnni_kernels() {
  return kernels;
}

}  // namespace octet::cpu::fast

#endif
