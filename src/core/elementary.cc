// SPDX-License-Identifier: Apache-2.0
#include "core/elementary.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace qkv::core {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int kMantissaBits = 52;
constexpr std::uint64_t kMantissa = (std::uint64_t{1} << kMantissaBits) - 1;
constexpr int kBias = 1023;

// ln(2) in two parts; products of the first part with integers below 2^20 are exact.
constexpr double kLn2High = 0x1.62e42fef00000p-1;
constexpr double kLn2Low = 0x1.473de6af278edp-34;

// ---- unevaluated sums of two numbers ------------------------------------------------------------

// The sum high + low, with |low| at most half an ulp of high.
struct DoubleDouble {
  double high, low;
};

// Returns a + b exactly (Knuth 1998, The Art of Computer Programming 2, theorem 4.2.2 B).
DoubleDouble exact_sum(double a, double b) noexcept {
  const double sum = a + b;
  const double of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}

// Returns a b exactly, by splitting each factor in two halves of 26 bits (Dekker 1971, section 5).
// Neither factor may exceed 2^996, and the product must not underflow.
DoubleDouble exact_product(double a, double b) noexcept {
  constexpr double kSplitter = 0x1p27 + 1;
  const auto high_half = [](double x) {
    const double scaled = kSplitter * x;
    return scaled - (scaled - x);
  };
  const double product = a * b;
  const double a1 = high_half(a);
  const double a2 = a - a1;
  const double b1 = high_half(b);
  const double b2 = b - b1;
  return {product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2};
}

// ---- polynomials --------------------------------------------------------------------------------

// Computes sum_n c_n x^n with even and odd powers apart, which halves the chain of dependent steps.
template <std::size_t N>
double polynomial(const std::array<double, N>& c, double x) noexcept {
  const double square = x * x;
  double even = 0;
  double odd = 0;
#pragma GCC unroll 16
  for (std::size_t n = N - 1; n < N; --n) {
    double& sum = n % 2 == 0 ? even : odd;
    sum = sum * square + c[n];
  }
  return odd * x + even;
}

// The coefficients 1/first!, sign/(first + step)!, ... of a Taylor series.
template <std::size_t N>
constexpr std::array<double, N> inverse_factorials(int first, int step, double sign) {
  std::array<double, N> terms{};
  double factorial = 1;  // exact up to 22!; the series here end at 18!
  double signs = 1;
  int n = 1;
  for (std::size_t i = 0; i < N; ++i) {
    for (; n <= first + static_cast<int>(i) * step; ++n) factorial *= n;
    terms[i] = signs / factorial;
    signs *= sign;
  }
  return terms;
}

// Returns x 2^n, |n| <= 1100, rounded only where the result is subnormal or too large.
double times_power_of_two(double x, int n) noexcept {
  const auto power = [](int e) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(e + kBias) << kMantissaBits);
  };
  if (n > 1000) return x * power(n - 100) * power(100);
  if (n < -1000) return x * power(n + 100) * power(-100);
  return x * power(n);
}

// Computes e^(x.high + x.low) = 2^n e^r, |r| <= ln(2)/2. The first omitted term of the series,
// r^14/14!, is below 2^-57.
double exp_of_sum(const DoubleDouble& x) noexcept {
  if (std::isnan(x.high)) return x.high;
  if (x.high > 709.8) return kInfinity;
  if (x.high < -745.2) return 0;
  static constexpr auto kTerms = inverse_factorials<12>(2, 1, 1);
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kRounder = 0x1.8p52;  // doubles of this size are integers, so adding it rounds
  const double n = (x.high * kLog2E + kRounder) - kRounder;
  const double high = x.high - n * kLn2High;
  const double low = x.low - n * kLn2Low;
  const double r = high + low;
  const double rest = (high - r) + low;
  return times_power_of_two(1 + (r + (rest + r * r * polynomial(kTerms, r))), static_cast<int>(n));
}

// The decomposition x = 2^k m, 1/sqrt(2) <= m < sqrt(2), of a positive finite x.
struct Scaled {
  double m;
  int k;
};
Scaled scaled(double x) noexcept {
  constexpr int kUp = 54;
  const bool subnormal = x < std::numeric_limits<double>::min();
  if (subnormal) x *= 0x1p54;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int k = static_cast<int>(bits >> kMantissaBits) - kBias - (subnormal ? kUp : 0);
  double m = std::bit_cast<double>((bits & kMantissa) | std::uint64_t{kBias} << kMantissaBits);
  if (m >= 0x1.6a09e667f3bcdp+0) {
    m /= 2;
    ++k;
  }
  return {m, k};
}

// ---- angles -------------------------------------------------------------------------------------

// The binary digits of 2/pi after the point.
constexpr std::array<std::uint64_t, 20> kTwoOverPi = {
    0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561,
    0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484,
    0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f,
    0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d, 0x7527bac7ebe5f17b,
    0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab, 0xf0cfbc209af4361d};

// The decomposition x = quarters pi/2 + rest, |rest| <= pi/4, with quarters modulo 4.
struct Reduced {
  int quarters;
  DoubleDouble rest;
};

// Returns 64 binary digits of 2/pi, from the one with weight 2^-(from + 1).
std::uint64_t digits_of_two_over_pi(int from) noexcept {
  const auto word = static_cast<std::size_t>(from) / 64;
  const int shift = from % 64;
  const std::uint64_t first = kTwoOverPi[word] << shift;
  return shift == 0 ? first : first | kTwoOverPi[word + 1] >> (64 - shift);
}

// Reduces an angle as Payne and Hanek do (1983, Radian reduction for trigonometric functions). The
// product of the angle with 2/pi is computed only modulo 4, from 192 digits of 2/pi, with an error
// of at most 2^-137. No double is closer to a multiple of pi/2 than 2^-62 of pi/2
// (Muller 2016, Elementary Functions, section 11.3.2).
Reduced exactly_reduced(double size) noexcept {
  __extension__ using Wide = unsigned __int128;
  const auto bits = std::bit_cast<std::uint64_t>(size);
  const std::uint64_t m = (bits & kMantissa) | (std::uint64_t{1} << kMantissaBits);
  const int e = static_cast<int>(bits >> kMantissaBits) - kBias - kMantissaBits;  // size = m 2^e
  // The digits before `from` give multiples of 4.
  const int from = e > 2 ? e - 2 : 0;
  // t is the 256-bit product of m and the digits, lowest word first.
  std::array<std::uint64_t, 4> t{};
  Wide carry = 0;
  for (int word = 0; word < 3; ++word) {
    carry += Wide{m} * digits_of_two_over_pi(from + 64 * (2 - word));
    t[static_cast<std::size_t>(word)] = static_cast<std::uint64_t>(carry);
    carry >>= 64;
  }
  t[3] = static_cast<std::uint64_t>(carry);
  // Bring t to units of 2^-190: for small exponents the product has digits below that unit.
  if (const int right = e > 2 ? 0 : 2 - e; right > 0) {
    for (std::size_t word = 0; word < 3; ++word) {
      t[word] = t[word] >> right | t[word + 1] << (64 - right);
    }
  }
  // Split off the nearest integer modulo 4; t is then the signed rest in units of 2^-192.
  const auto quarters = static_cast<int>(((t[2] >> 61) + 1) >> 1 & 3);
  t[2] = t[2] << 2 | t[1] >> 62;
  t[1] = t[1] << 2 | t[0] >> 62;
  t[0] <<= 2;
  const bool negative = t[2] >> 63 != 0;
  if (negative) {
    std::uint64_t one = 1;
    for (std::size_t word = 0; word < 3; ++word) {
      t[word] = ~t[word] + one;
      one = one != 0 && t[word] == 0 ? 1 : 0;
    }
  }
  // Convert the rest, without its leading zeros, to two doubles.
  int zeros = 0;
  while (zeros < 128 && t[2] == 0) {
    t[2] = t[1];
    t[1] = t[0];
    t[0] = 0;
    zeros += 64;
  }
  if (const int left = std::countl_zero(t[2]); left > 0 && left < 64) {
    t[2] = t[2] << left | t[1] >> (64 - left);
    t[1] = t[1] << left | t[0] >> (64 - left);
    zeros += left;
  }
  const double unit = times_power_of_two(1, -64 - zeros);
  const double high = static_cast<double>(t[2] >> 11 << 11) * unit;
  const double low =
      (static_cast<double>(t[2] & 0x7ff) + static_cast<double>(t[1] >> 11) * 0x1p-53) * unit;
  // Multiply by pi/2.
  constexpr double kHalfPi = 0x1.921fb54442d18p+0;
  constexpr double kHalfPiRest = 0x1.1a62633145c07p-54;
  const DoubleDouble product = exact_product(high, kHalfPi);
  const double rest = product.low + (high * kHalfPiRest + low * kHalfPi);
  const double sum = product.high + rest;
  const DoubleDouble angle{sum, (product.high - sum) + rest};
  return {quarters, negative ? DoubleDouble{-angle.high, -angle.low} : angle};
}

// Reduces an angle `size` >= pi/4. Below 2^20, a product gives the number n of quarters, and n pi/2
// is subtracted in three parts, the first two of which are exact (Cody and Waite 1980). The error
// of the third is at most 2^-100. Only where the rest is small is that too large.
Reduced reduced(double size) noexcept {
  constexpr double kTwoOverPiRounded = 0x1.45f306dc9c883p-1;
  constexpr double kRounder = 0x1.8p52;
  constexpr double kFirst = 0x1.921fb54400000p+0;
  constexpr double kSecond = 0x1.0b4611a600000p-34;
  constexpr double kThird = 0x1.3198a2e037073p-69;
  if (size >= 0x1p20) return exactly_reduced(size);
  const double rounded = size * kTwoOverPiRounded + kRounder;
  const double n = rounded - kRounder;
  const double most = size - n * kFirst;
  const double second = n * kSecond;
  const double left = most - second;
  const double third = n * kThird;
  const double rest = left - third;
  if (std::fabs(rest) < 0x1p-20) return exactly_reduced(size);
  return {static_cast<int>(std::bit_cast<std::uint64_t>(rounded) & 3),
          {rest, ((left - rest) - third) + ((most - left) - second)}};
}

// Computes sin and cos of |r| <= pi/4. The first omitted terms, r^19/19! and r^20/20!, are below
// 2^-63.
SinCos small_sin_cos(const DoubleDouble& r) noexcept {
  static constexpr auto kSin = inverse_factorials<8>(3, 2, -1);
  static constexpr auto kCos = inverse_factorials<8>(4, 2, -1);
  const double x = r.high;
  const double square = x * x;
  const double half = square / 2;
  // sin(x + l) = sin x + l cos x
  const double sin = x - (square * x * polynomial(kSin, square) - r.low * (1 - half));
  // cos(x + l) = cos x - l sin x; the rounding error of 1 - half is added back.
  const double one = 1 - half;
  const double cos =
      one + (((1 - one) - half) + (square * square * polynomial(kCos, square) - x * r.low));
  return {sin, cos};
}

}  // namespace

double portable_exp(double x) noexcept { return exp_of_sum({x, 0}); }

// log(2^k m) = k ln(2) + log(m). With f = m - 1 and s = f / (2 + f),
//   log(m) = 2 s (1 + s^2/3 + s^4/5 + ...) = f - (f^2/2 - s (f^2/2 + R)),
//   R = 2 s^2/3 + 2 s^4/5 + ...
// where f is exact and the number subtracted from it is small (Tang 1990, Table-driven
// implementation of the logarithm function, section 3). The first omitted term is below 2^-58 of
// the result.
double portable_log(double x) noexcept {
  static constexpr std::array<double, 10> kTerms = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,
                                                    2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17,
                                                    2.0 / 19, 2.0 / 21};
  if (std::isnan(x) || x == kInfinity) return x;
  if (x == 0) return -kInfinity;
  if (x < 0) return kNaN;
  const Scaled by = scaled(x);
  const double f = by.m - 1;
  const double s = f / (2 + f);
  const double square = s * s;
  const double half = f * f / 2;
  const double sum = square * polynomial(kTerms, square);
  const double k = by.k;
  return k * kLn2High - ((half - (s * (half + sum) + k * kLn2Low)) - f);
}

// tanh |x| = a / (a + 2) with a = exp(2|x|) - 1.
double portable_tanh(double x) noexcept {
  static constexpr auto kTerms = inverse_factorials<12>(2, 1, 1);
  const double size = std::fabs(x);
  if (!(size < 22)) return std::isnan(x) ? x : std::copysign(1.0, x);
  const double twice = 2 * size;
  const double a =
      twice < 0.35 ? twice + twice * twice * polynomial(kTerms, twice) : portable_exp(twice) - 1;
  return std::copysign(a / (a + 2), x);
}

SinCos portable_sin_cos(double angle) noexcept {
  if (!std::isfinite(angle)) return {kNaN, kNaN};
  const double size = std::fabs(angle);
  const bool small = size <= 0x1.921fb54442d18p-1;  // pi/4
  const Reduced by = small ? Reduced{0, {size, 0}} : reduced(size);
  const SinCos rest = small_sin_cos(by.rest);
  const bool swapped = by.quarters % 2 != 0;
  const double sin = swapped ? rest.cos : rest.sin;
  const double cos = swapped ? rest.sin : rest.cos;
  return {std::signbit(angle) != (by.quarters >= 2) ? -sin : sin,
          by.quarters == 1 || by.quarters == 2 ? -cos : cos};
}

// Sums the series of portable_log with its first terms as unevaluated sums of two numbers, for a
// relative error of 2^-62.
Powers::Powers(double base) noexcept : log_(-kInfinity), log_rest_(0) {
  static constexpr std::array<double, 11> kTerms = {1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11,
                                                    1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19,
                                                    1.0 / 21, 1.0 / 23, 1.0 / 25};
  if (base == 0) return;
  const Scaled by = scaled(base);
  const double f = by.m - 1;
  // s = f / (2 + f)
  const DoubleDouble divisor = exact_sum(2, f);
  const double s = f / divisor.high;
  const DoubleDouble back = exact_product(s, divisor.high);
  const double s_rest = ((f - back.high) - back.low - s * divisor.low) / divisor.high;
  // s^2/3 + s^4/5 + ...
  const DoubleDouble square = exact_product(s, s);
  const double square_rest = square.low + 2 * s * s_rest;
  const double third = square.high / 3;
  const DoubleDouble thrice = exact_product(third, 3);
  const double third_rest = ((square.high - thrice.high) - thrice.low + square_rest) / 3;
  const DoubleDouble sum =
      exact_sum(third, third_rest + square.high * square.high * polynomial(kTerms, square.high));
  // log(m) = 2 (s + s sum)
  const DoubleDouble last = exact_product(s, sum.high);
  const double last_rest = last.low + s * sum.low + s_rest * sum.high;
  const DoubleDouble of_m = exact_sum(2 * s, 2 * last.high);
  const double of_m_rest = of_m.low + 2 * (s_rest + last_rest);
  const double k = by.k;
  const DoubleDouble both = exact_sum(k * kLn2High, of_m.high);
  const DoubleDouble low = exact_product(k, kLn2Low);
  const DoubleDouble all = exact_sum(both.high, low.high);
  const DoubleDouble total = exact_sum(all.high, all.low + (both.low + (low.low + of_m_rest)));
  log_ = total.high;
  log_rest_ = total.low;
}

double Powers::of(double exponent) const noexcept {
  if (exponent == 0 || log_ == 0) return 1;
  if (!(std::fabs(exponent * log_) < 800)) return (exponent > 0) == (log_ > 0) ? kInfinity : 0;
  const DoubleDouble product = exact_product(exponent, log_);
  return exp_of_sum({product.high, product.low + exponent * log_rest_});
}

}  // namespace qkv::core
