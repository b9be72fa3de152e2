#include "offline/combine.h"

#include "base/cpu_clones.h"

namespace octet::offline {
namespace {

// Eight rows in one pass over `row`: it is loaded and stored an eighth as often.
template <class T>
[[gnu::always_inline]] inline void combine(const T* c, const T* rows, int64_t stride, int64_t count,
                                           int64_t n, T* __restrict__ row) {
  int64_t t = 0;
  for (; t + 8 <= count; t += 8, c += 8, rows += 8 * stride) {
    for (int64_t j = 0; j < n; ++j) {
      const T* const x = rows + j;
      const T low =
          (c[0] * x[0] + c[1] * x[stride]) + (c[2] * x[2 * stride] + c[3] * x[3 * stride]);
      const T high = (c[4] * x[4 * stride] + c[5] * x[5 * stride]) +
                     (c[6] * x[6 * stride] + c[7] * x[7 * stride]);
      row[j] += low + high;
    }
  }
  for (; t < count; ++t, ++c, rows += stride) {
    for (int64_t j = 0; j < n; ++j) row[j] += *c * rows[j];
  }
}

OCTET_EXACT_CLONES void combine_float(const float* c, const float* rows, int64_t stride,
                                      int64_t count, int64_t n, float* row) {
  combine(c, rows, stride, count, n, row);
}

OCTET_EXACT_CLONES void combine_double(const double* c, const double* rows, int64_t stride,
                                       int64_t count, int64_t n, double* row) {
  combine(c, rows, stride, count, n, row);
}

}  // namespace

void add_combination(const float* coefficients, const float* rows, int64_t stride, int64_t count,
                     int64_t n, float* row) {
  combine_float(coefficients, rows, stride, count, n, row);
}

void add_combination(const double* coefficients, const double* rows, int64_t stride, int64_t count,
                     int64_t n, double* row) {
  combine_double(coefficients, rows, stride, count, n, row);
}

}  // namespace octet::offline
