// The fast linear in FP32: AVX-512 FMA on values decoded to FP32, which is exact for every type.
// x is scaled as it is packed, so only scales of W are left for later.
#include "backends/cpu/kernels/fast_linear.h"

#if defined(__x86_64__)

#include <array>

#include "backends/cpu/kernels/fast_linear_core.h"

namespace octet::cpu::fast {
namespace {

template <class From, class To>
OCTET_AVX512 void pack_row(const Matrix& x, int64_t row, float* out, int64_t step) {
  constexpr bool same_order = [] {
    for (int i = 0; i < 64; ++i) {
      if (From::order(i) != To::order(i)) return false;
    }
    return true;
  }();
  // Where vector v, lane l of the target stands among the vectors of the source.
  static constexpr auto source = [] {
    std::array<int, 64> position{}, result{};
    for (int i = 0; i < 64; ++i) position[From::order(i)] = i;
    for (int i = 0; i < 64; ++i) result[i] = position[To::order(i)];
    return result;
  }();

  const From decoder = From::make();
  const std::byte* p = x.row(row);
  for (int64_t k = 0; k < x.k; k += kChunk) {
    alignas(64) __m512 v[FmaMath::vecs];
    if (x.k - k >= kChunk) {
      decoder.full(p, v);
    } else {
      decoder.part(p, x.k - k, v);
    }
    p += kChunk * From::bytes;
    if constexpr (!same_order) {
      alignas(64) float values[kChunk];
      for (int i = 0; i < FmaMath::vecs; ++i) _mm512_store_ps(values + 16 * i, v[i]);
      for (int i = 0; i < FmaMath::vecs; ++i) {
        v[i] = _mm512_i32gather_ps(_mm512_loadu_si512(source.data() + 16 * i), values, 4);
      }
    }
    if (x.scales.data) {
      const __m512 scale = _mm512_set1_ps(x.scales.at(row, x.scales.varies ? k / kCell : 0));
      for (__m512& vec : v) vec = _mm512_mul_ps(vec, scale);
    }
    for (int i = 0; i < FmaMath::vecs; ++i, out += step) _mm512_storeu_ps(out, v[i]);
  }
}

void pack(const Matrix& x, const int32_t* index, const Matrix& w, const Packed& packed,
          int64_t begin, int64_t end) {
  with_decoder<FmaMath>(x.type, [&]<class From>() {
    with_decoder<FmaMath>(w.type, [&]<class To>() {
      for (int64_t group = begin; group < end; ++group) {
        const int64_t first = packed.first_row(group), last = packed.first_row(group + 1);
        auto* out = reinterpret_cast<float*>(packed.data + first * packed.row_bytes);
        for (int64_t m = first; m < last; ++m, out += 16) {
          pack_row<From, To>(x, index ? index[m] : m, out, 16 * (last - first));
        }
      }
    });
  });
}

constexpr Kernels kernels = {
    .group_rows = kGroup,
    .max_rows = 40 * kGroup,
    .packed_row_bytes = [](int64_t k) { return round_up(k, kChunk) * 4; },
    .scales_per_row = [](int64_t) { return int64_t{0}; },
    .pack = pack,
    .scratch_bytes = thread_scratch_bytes<FmaMath>,
    .columns = all_columns<FmaMath>,
};

}  // namespace

const Kernels& fma_kernels() {
  return kernels;
}

}  // namespace octet::cpu::fast

#endif
