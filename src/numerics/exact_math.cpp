#include "numerics/exact_math.h"

namespace octet::exact {
namespace {

constexpr double kNan64 = std::bit_cast<double>(uint64_t{0x7FF8000000000000});
constexpr double kInf64 = std::bit_cast<double>(uint64_t{0x7FF0000000000000});

// ln 2 in two parts; a multiple of the first by an integer below 2^21 is exact.
constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;

// Adding it rounds to an integer, which the low bits of the sum then hold.
constexpr double kToInteger = 0x1.8p52;

int64_t integer_of(double shifted) {
  return static_cast<int64_t>(std::bit_cast<uint64_t>(shifted) -
                              std::bit_cast<uint64_t>(kToInteger));
}

// 2^k for -1022 <= k <= 1023.
double power_of_two(int64_t k) {
  return std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
}

// log(x) = high + low for finite x > 0, with high = n ln 2 (first part only) exact. low carries an
// absolute error of about 5e-17. x = 2^n m with m in [sqrt(1/2), sqrt(2)), f = m - 1,
// s = f / (2 + f), log(m) = 2 atanh(s); 2s is written as f - s f, whose leading term is exact.
struct LogParts {
  double high, low;
};
LogParts log_parts(double x) {
  int64_t n = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    n = -54;
  }
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  n += static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u);
  if (m >= 0x1.6a09e667f3bcdp0) {
    m *= 0.5;
    n += 1;
  }
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  // 2 z (1/3 + z/5 + ...); |s| <= 0.172, so the first term left out is below 2^-58.
  double r = 2.0 / 23.0;
  for (int k = 21; k >= 3; k -= 2) r = r * z + 2.0 / k;
  r *= z;
  const double half_square = 0.5 * f * f;
  const double log_m = f - (half_square - s * (half_square + r));
  const double count = static_cast<double>(n);
  return {count * kLn2High, log_m + count * kLn2Low};
}

struct Sum {
  double value, error;
};

// a + b and its rounding error, exactly (Knuth).
Sum exact_sum(double a, double b) {
  const double value = a + b, b_part = value - a;
  return {value, (a - (value - b_part)) + (b - b_part)};
}

// a * b and its rounding error, exactly (Dekker, with Veltkamp's split).
Sum exact_product(double a, double b) {
  constexpr double split = 0x1p27 + 1.0;
  const double ca = split * a, cb = split * b;
  const double a_high = ca - (ca - a), b_high = cb - (cb - b);
  const double a_low = a - a_high, b_low = b - b_high;
  const double value = a * b;
  return {value, ((a_high * b_high - value) + a_high * b_low + a_low * b_high) + a_low * b_low};
}

}  // namespace

double exp(double high, double low) {
  if (high != high || low != low) return kNan64;
  if (high > 710.0) return kInf64;
  if (high < -746.0) return 0.0;
  const double shifted = high * 0x1.71547652b82fep0 + kToInteger;
  const double n = shifted - kToInteger;
  const double r = ((high - n * kLn2High) - n * kLn2Low) + low;
  // e^r = 1 + (r + r^2 q): Taylor to r^13, as |r|^14 / 14! <= 2^-57.
  constexpr double factorials[] = {2.0,       6.0,        24.0,        120.0,
                                   720.0,     5040.0,     40320.0,     362880.0,
                                   3628800.0, 39916800.0, 479001600.0, 6227020800.0};
  double q = 1.0 / factorials[11];
  for (int k = 10; k >= 0; --k) q = q * r + 1.0 / factorials[k];
  const double e = 1.0 + (r + (r * r) * q);
  const int64_t k = integer_of(shifted), half = k >> 1;
  return (e * power_of_two(half)) * power_of_two(k - half);
}

double log(double x) {
  if (x == 0.0) return -kInf64;
  if (!(x > 0.0)) return kNan64;
  if (x == kInf64) return kInf64;
  const LogParts parts = log_parts(x);
  return parts.high + parts.low;
}

float log(float x) {
  const double result = log(static_cast<double>(x));
  return result != result ? kNan : static_cast<float>(result);
}

double pow(double base, double exponent) {
  if (!(base > 0.0) || base == kInf64) return kNan64;
  const LogParts parts = log_parts(base);
  const Sum product = exact_product(exponent, parts.high);
  const Sum sum = exact_sum(product.value, exponent * parts.low);
  return exp(sum.value, sum.error + product.error);
}

SinCos sin_cos(double x) {
  const double magnitude = x < 0.0 ? -x : x;
  if (!(magnitude <= 0x1p31)) return {kNan64, kNan64};
  // x = n pi/2 + r (Cody and Waite). pi/2 in parts of 22 bits, so that their products with n, which
  // has at most 31 bits, are exact, and a last one of 53.
  const double shifted = x * 0x1.45f306dc9c883p-1 + kToInteger;
  const double n = shifted - kToInteger;
  double r = x - n * 0x1.921fbp0;
  r = r - n * 0x1.5110bp-22;
  r = r - n * 0x1.184698p-44;
  r = r - n * 0x1.3198a2e037073p-69;
  // Taylor, |r| <= pi/4: the terms left out are below 2^-60.
  const double z = r * r;
  constexpr double sine[] = {-1.0 / 6.0,          1.0 / 120.0,         -1.0 / 5040.0,
                             1.0 / 362880.0,      -1.0 / 39916800.0,   1.0 / 6227020800.0,
                             -1.0 / 1307674368e3, 1.0 / 355687428096e3};
  constexpr double cosine[] = {-1.0 / 2.0,           1.0 / 24.0,          -1.0 / 720.0,
                               1.0 / 40320.0,        -1.0 / 3628800.0,    1.0 / 479001600.0,
                               -1.0 / 87178291200.0, 1.0 / 20922789888e3, -1.0 / 6402373705728e3};
  double s = sine[7], c = cosine[8];
  for (int k = 6; k >= 0; --k) s = s * z + sine[k];
  for (int k = 7; k >= 0; --k) c = c * z + cosine[k];
  s = r + r * z * s;
  c = 1.0 + z * c;
  switch (integer_of(shifted) & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

}  // namespace octet::exact
