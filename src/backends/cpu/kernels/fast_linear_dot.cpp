// The fast linear on BF16 pairs: vdpbf16ps, for weights and inputs that BF16 holds exactly. It
// flushes subnormal BF16 values to zero; no FP8 value decodes to one. Scales of x stay beside the
// packed values, as scaled values would no longer be BF16: one a cell of 128 where scales vary
// along k (then those of W are ones if they do not), and one a row.
#include "backends/cpu/kernels/fast_linear.h"

#if defined(__x86_64__)

#include "backends/cpu/kernels/fast_linear_core.h"
#include "backends/cpu/kernels/fast_linear_pairs.h"

namespace octet::cpu::fast {
namespace {

template <class From, class To>
OCTET_AVX512 void pack_row(const Matrix& x, int64_t row, std::byte* out, int64_t step) {
  const From decoder = From::make();
  for (int64_t k = 0; k < x.k; k += kChunk) {
    __m512i v[2];
    load_pairs<From, To>(decoder, x.row(row) + k * From::bytes, x.k - k, v);
    for (int i = 0; i < 2; ++i, out += step) _mm512_storeu_si512(out, v[i]);
  }
}

void pack(const Matrix& x, const int32_t* index, const Matrix& w, const Packed& packed,
          int64_t begin, int64_t end) {
  pack_pairs(x, index, w, packed, begin, end,
             [&]<class From, class To>(int64_t first, int64_t rows, std::byte* out) {
               for (int64_t m = first; m < first + rows; ++m, out += 64) {
                 pack_row<From, To>(x, index ? index[m] : m, out, 64 * rows);
               }
             });
}

constexpr Kernels kernels = {
    .group_rows = kGroup,
    .max_rows = 80 * kGroup,
    .packed_row_bytes = [](int64_t k) { return round_up(k, kChunk) * 2; },
    .scales_per_row = pair_scales_per_row,
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
