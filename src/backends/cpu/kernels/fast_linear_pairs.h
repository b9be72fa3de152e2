// Packing of x as BF16 pairs: what the linears by vdpbf16ps and by AMX share. Scales of x stay
// beside the packed values, as scaled values would no longer be BF16: one a cell of 128 where
// scales vary along k (then those of W are ones if they do not), and one a row.
#pragma once

#if defined(__x86_64__)

#include <array>

#include "backends/cpu/kernels/fast_linear_decode.h"

namespace octet::cpu::fast {

// A chunk of x at `p`, of which `valid` > 0 values exist, in the order of a weight that `To`
// decodes.
template <class From, class To>
OCTET_AVX512_INLINE void load_pairs(const From& decoder, const std::byte* p, int64_t valid,
                                    __m512i (&v)[2]) {
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
  if (valid >= kChunk) {
    decoder.full(p, v);
  } else {
    decoder.part(p, valid, v);
  }
  if constexpr (!same_order) {
    const __m512i first = v[0], second = v[1];
    for (int i = 0; i < 2; ++i) {
      v[i] = _mm512_permutex2var_epi16(first, _mm512_loadu_si512(source.data() + 32 * i), second);
    }
  }
}

// Kernels::scales_per_row.
inline int64_t pair_scales_per_row(int64_t k) {
  return cells_of(k) + 1;
}

// Puts the scales of the rows of groups [begin, end) where PackedRows looks for them.
inline void pack_scales(const Matrix& x, const int32_t* index, const Packed& packed, int64_t begin,
                        int64_t end) {
  const int64_t cells = cells_of(x.k);
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

// Kernels::pack: pack_group<From, To>(first, rows, out) puts these rows of x where they belong, for
// each of the groups [begin, end); then come their scales.
template <class PackGroup>
void pack_pairs(const Matrix& x, const int32_t* index, const Matrix& w, const Packed& packed,
                int64_t begin, int64_t end, PackGroup pack_group) {
  with_decoder<DotMath>(x.type, [&]<class From>() {
    with_decoder<DotMath>(w.type, [&]<class To>() {
      for (int64_t group = begin; group < end; ++group) {
        const int64_t first = packed.first_row(group), rows = packed.first_row(group + 1) - first;
        pack_group.template operator()<From, To>(first, rows,
                                                 packed.data + first * packed.row_bytes);
      }
    });
  });
  pack_scales(x, index, packed, begin, end);
}

}  // namespace octet::cpu::fast

#endif
