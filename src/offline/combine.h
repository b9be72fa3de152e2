// The one inner loop of calibration: a row gets a combination of other rows.
#pragma once

#include <cstdint>

namespace octet::offline {

// row[j] += sum over t of coefficients[t] * rows[t * stride + j], for j in [0, n): ascending t,
// eight at a time. The same bits on every machine.
void add_combination(const float* coefficients, const float* rows, int64_t stride, int64_t count,
                     int64_t n, float* row);
void add_combination(const double* coefficients, const double* rows, int64_t stride, int64_t count,
                     int64_t n, double* row);

}  // namespace octet::offline
