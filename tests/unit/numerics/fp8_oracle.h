// An independent encoder: the definition in float64, by search over the values of the codes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "numerics/quant_format.h"

namespace octet::testing {

// From the formulas of the format's table, not from fp8_decode.
inline double fp8_value(Code type, int magnitude) {
  const int bits = type == Code::e4m3 ? 3 : 2, bias = type == Code::e4m3 ? 7 : 15;
  const int e = magnitude >> bits, m = magnitude & ((1 << bits) - 1);
  if (e == 0) return std::ldexp(m, 1 - bias - bits);
  return std::ldexp(1.0 + std::ldexp(m, -bits), e - bias);
}

inline int fp8_last_finite(Code type) {
  return type == Code::e4m3 ? 0x7E : 0x7B;
}

inline uint8_t fp8_oracle(Code type, double x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return sign | 0x7F;
  static const auto values = [] {
    std::vector<std::vector<double>> tables(2);
    for (const Code each : {Code::e4m3, Code::e5m2}) {
      for (int c = 0; c <= fp8_last_finite(each); ++c) {
        tables[static_cast<int>(each)].push_back(fp8_value(each, c));
      }
    }
    return tables;
  }();
  const std::vector<double>& table = values[static_cast<int>(type)];
  const double a = std::fabs(x);
  if (a >= table.back()) return sign | static_cast<uint8_t>(table.size() - 1);
  const auto above = std::upper_bound(table.begin(), table.end(), a);
  const int high = static_cast<int>(above - table.begin()), low = high - 1;
  // Differences of a float and a code's value are exact in float64 in the range that matters.
  const double down = a - table[low], up = table[high] - a;
  const int code = down < up ? low : (up < down ? high : (low % 2 == 0 ? low : high));
  return sign | static_cast<uint8_t>(code);
}

}  // namespace octet::testing
