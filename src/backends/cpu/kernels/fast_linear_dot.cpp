// The fast linear on BF16 pairs: vdpbf16ps, for weights and inputs that BF16 holds exactly. It
// flushes subnormal BF16 values to zero; no FP8 value decodes to one. Scales of x stay beside the
// packed values, as scaled values would no longer be BF16: one a cell of 128 where scales vary
// along k (then those of W are ones if they do not), and one a row.
#include "backends/cpu/kernels/fast_linear.h"

#if defined(__x86_64__)

#include <array>

#include "backends/cpu/kernels/fast_linear_core.h"

namespace octet::cpu::fast {
namespace {

template <class From, class To>
OCTET_AVX512 void pack_row(const Matrix& x, int64_t row, std::byte* out, int64_t step) {
  constexpr bool same_order = [] {
    for (int i = 0; i < 64; ++i) {
      if (From::order(i) != To::order(i)) return false;
    }
    return true;
  }();
  // Where place i of the target stands among the places of the source.
  static constexpr auto source = [] {
    std::array<uint16_t, 64> position{}, result{};
    for (int i = 0; i < 64; ++i) position[From::order(i)] = static_cast<uint16_t>(i);
    for (int i = 0; i < 64; ++i) result[i] = position[To::order(i)];
    return result;
  }();

  const From decoder = From::make();
  const std::byte* p = x.row(row);
  for (int64_t k = 0; k < x.k; k += kChunk) {
    __m512i v[2];
    if (x.k - k >= kChunk) {
      decoder.full(p, v);
    } else {
      decoder.part(p, x.k - k, v);
    }
    p += kChunk * From::bytes;
    for (int i = 0; i < 2; ++i, out += step) {
      if constexpr (same_order) {
        _mm512_storeu_si512(out, v[i]);
      } else {
        const __m512i places = _mm512_loadu_si512(source.data() + 32 * i);
        _mm512_storeu_si512(out, _mm512_permutex2var_epi16(v[0], places, v[1]));
      }
    }
  }
}

void pack(const Matrix& x, const int32_t* index, const Matrix& w, const Packed& packed,
          int64_t begin, int64_t end) {
  with_decoder<DotMath>(x.type, [&]<class From>() {
    with_decoder<DotMath>(w.type, [&]<class To>() {
      for (int64_t group = begin; group < end; ++group) {
        const int64_t first = packed.first_row(group), last = packed.first_row(group + 1);
        std::byte* out = packed.data + first * packed.row_bytes;
        for (int64_t m = first; m < last; ++m, out += 64) {
          pack_row<From, To>(x, index ? index[m] : m, out, 64 * (last - first));
        }
      }
    });
  });
  const int64_t cells = (x.k + kCell - 1) / kCell;
  for (int64_t group = begin; group < end; ++group) {
    const int64_t first = packed.first_row(group), rows = packed.first_row(group + 1) - first;
    for (int64_t m = 0; m < rows; ++m) {
      const int64_t row = index ? index[first + m] : first + m;
      float* cell = packed.scales + first * cells + m;
      for (int64_t c = 0; c < cells; ++c) {
        cell[c * rows] = x.scales.data && x.scales.varies ? x.scales.at(row, c) : 1.0f;
      }
      packed.scales[packed.rows * cells + first + m] =
          x.scales.data && !x.scales.varies ? x.scales.at(row, 0) : 1.0f;
    }
  }
}

constexpr Kernels kernels = {
    .group_rows = kGroup,
    .max_rows = 80 * kGroup,
    .packed_row_bytes = [](int64_t k) { return round_up(k, kChunk) * 2; },
    .scales_per_row = [](int64_t k) { return (k + kCell - 1) / kCell + 1; },
    .pack = pack,
    .scratch_bytes = thread_scratch_bytes<DotMath>,
    .columns = all_columns<DotMath>,
};

}  // namespace

const Kernels& dot_kernels() {
  return kernels;
}

}  // namespace octet::cpu::fast

#endif
