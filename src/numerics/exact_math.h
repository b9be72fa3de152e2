// Elementary functions for the `exact` kernels: built from + - * / sqrt, comparisons and integer
// operations on the bits only, in a fixed order. IEEE 754 fixes each of these to the last bit, so
// the results are the same on every compiler, libm and ISA, which no libm promises. Needs
// -ffp-contract=off, the default rounding mode, and no flush-to-zero.
//
// Float functions have no branches and no tables: a vector version that performs the same
// operations lane by lane gives the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace octet::exact {

// NaNs are made canonical at the end of every function: which payload an operation passes on is
// the one thing that differs between ISAs.
inline constexpr float kNan = std::bit_cast<float>(0x7FC00000u);

// e^x, at most 1 unit in the last place off, subnormal results included; exp(-Inf) = 0, overflow is
// Inf, NaN is NaN. exp(0) is exactly 1.
//
// x = n ln 2 + r with |r| <= ln(2)/2 (ln 2 in two parts, of which n times the first is exact), then
// e^r = 1 + (r + r^2 q(r)). q is the minimax polynomial of degree 4 for the relative error of e^r
// (Lawson's iteration in 40 digits; 2^-28.3 before rounding).
inline float exp(float x) {
  constexpr float log2e = 0x1.715476p0f;
  constexpr float ln2_high = 0x1.62e4p-1f;  // 15 bits, n has at most 8
  constexpr float ln2_low = 0x1.7f7d1cp-20f;
  constexpr float to_integer = 0x1.8p23f;  // adding it rounds to an integer, kept in the low bits

  // Beyond these the result is 0 or Inf anyway; n stays small. NaN passes both comparisons.
  float a = x < -104.0f ? -104.0f : x;
  a = a > 89.0f ? 89.0f : a;
  const float shifted = a * log2e + to_integer;
  const float n = shifted - to_integer;
  const float r = (a - n * ln2_high) - n * ln2_low;
  float q = 0x1.6a23bap-10f;
  q = q * r + 0x1.123a22p-7f;
  q = q * r + 0x1.5558f4p-5f;
  q = q * r + 0x1.55549p-3f;
  q = q * r + 0x1.fffffcp-2f;
  const float e = 1.0f + (r + (r * r) * q);
  // Times 2^n in two halves, as 2^n itself may be out of range. Only the second product can round.
  const int32_t k =
      static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(to_integer));
  const int32_t half = k >> 1;
  const float first = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float second = std::bit_cast<float>(static_cast<uint32_t>(k - half + 127) << 23);
  const float result = (e * first) * second;
  return x != x ? kNan : result;
}

// 1 / (1 + e^-x), with small relative error on both sides; sigmoid(-Inf) = 0, sigmoid(Inf) = 1.
inline float sigmoid(float x) {
  const float e = exp(x < 0.0f ? x : -x);
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// x * sigmoid(x). silu(-Inf) is NaN (Inf * 0), as in PyTorch: an infinite activation is a fault
// upstream, and hiding it here would not help.
inline float silu(float x) {
  const float result = x * sigmoid(x);
  return result != result ? kNan : result;
}

// 1 / sqrt(x): two correctly rounded operations. rsqrt(0) = Inf, of negatives NaN.
inline float rsqrt(float x) {
  const float result = 1.0f / std::sqrt(x);
  return result != result ? kNan : result;
}

// Natural logarithm, correctly rounded in all but about one case in 10^7 (computed in double).
// log(0) = -Inf, of negatives NaN. For log-sum-exp: once a row, so speed does not matter.
float log(float x);

// The functions below build tables and run once; they are in double.

// e^(high + low) where low is a small correction to high. Relative error about 1e-16, subnormal
// results excepted; overflow is Inf, underflow 0.
double exp(double high, double low = 0.0);

// Natural logarithm, about one unit in the last place. log(0) = -Inf, of negatives NaN.
double log(double x);

// base^exponent for base > 0, relative error below 4e-16 where |exponent * log(base)| < 64: for the
// RoPE frequencies theta^(-2i/d). NaN for base <= 0.
double pow(double base, double exponent);

// Sine and cosine of x in radians, absolute error below 3e-16 for |x| <= 2^31: positions times
// frequencies need no smaller angles first. NaN for larger |x|, Inf and NaN.
struct SinCos {
  double sin, cos;
};
SinCos sin_cos(double x);

}  // namespace octet::exact
