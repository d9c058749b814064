// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_SOFT_CAP_H_
#define QKV_SOFT_CAP_H_

#include <bit>
#include <cmath>
#include <complex>
#include <concepts>
#include <cstdint>
#include <limits>

#include <qkv/dual.h>

// cap * tanh(s / cap), the soft-cap of Options::softcap, as a function of one score. It is written
// with additions, multiplications, one division, comparisons and bit operations, without libm, so
// that compilers vectorise it and results are bit-identical on every path and CPU target.
namespace qkv {
namespace detail {

// The method: with y = |2 s / cap|,  tanh(y / 2) = e / (e + 2),  e = expm1(y) = 2^n expm1(r) + (2^n
// - 1),  y = n ln 2 + r,  |r| <= ln 2 / 2,  expm1(r) = r + r^2 (c0 + c1 r + ...).
// The coefficients c interpolate (expm1(r) - r) / r^2 at Chebyshev nodes of that interval (widened
// by 1e-4); they were solved with 50 digits and then rounded. `kLn2High` has few enough bits that n
// * kLn2High is exact.
template <class T>
struct SoftCapNumbers;

template <>
struct SoftCapNumbers<float> {
  using Bits = std::uint32_t;
  static constexpr int kFractionBits = 23;
  static constexpr float kRound = 0x1.8p23F;  // x + kRound - kRound is x, rounded to a whole number
  static constexpr float kLargest = 20;       // tanh(10) is 1 in float
  static constexpr float kSmallest = 0x1p-12F;  // below, tanh(y / 2) is y / 2 in float
  static constexpr float kLog2E = 0x1.715476p0F;
  static constexpr float kLn2High = 0x1.62e4p-1F;
  static constexpr float kLn2Low = 0x1.7f7d1cp-20F;
  // The relative error of expm1 is at most 2^-25.2.
  static constexpr float kCoefficients[] = {0x1p-1F, 0x1.5554dcp-3F, 0x1.55551ap-5F, 0x1.120b6ep-7F,
                                            0x1.6d110ap-10F};
};

template <>
struct SoftCapNumbers<double> {
  using Bits = std::uint64_t;
  static constexpr int kFractionBits = 52;
  static constexpr double kRound = 0x1.8p52;
  static constexpr double kLargest = 40;
  static constexpr double kSmallest = 0x1p-27;
  static constexpr double kLog2E = 0x1.71547652b82fep0;
  static constexpr double kLn2High = 0x1.62e42fefa3ap-1;
  static constexpr double kLn2Low = -0x1.0ca86c3898dp-49;
  // The relative error of expm1 is at most 2^-54.4.
  static constexpr double kCoefficients[] = {
      0x1.0000000000001p-1,  0x1.5555555555556p-3,  0x1.5555555553d63p-5,  0x1.11111111109b3p-7,
      0x1.6c16c1788bd90p-10, 0x1.a01a01a7c41d5p-13, 0x1.a019b90d2ae7ap-16, 0x1.71de0dae63bb3p-19,
      0x1.289185613a3d6p-22, 0x1.af38a9b0ec855p-26};
};

// `condition ? a : b` by bit operations: no compiler turns it back into a branch.
template <class T>
constexpr T chosen(bool condition, T a, T b) {
  using Bits = typename SoftCapNumbers<T>::Bits;
  const Bits mask = condition ? ~Bits{0} : Bits{0};
  return std::bit_cast<T>((std::bit_cast<Bits>(a) & mask) | (std::bit_cast<Bits>(b) & ~mask));
}

// e^y - 1 for y in [0, kLargest], or NaN.
template <class T>
constexpr T soft_cap_expm1(T y) {
#if defined(__clang__)
#pragma clang fp contract(off)
#endif
  using N = SoftCapNumbers<T>;
  using Bits = typename N::Bits;
  const T shifted = y * N::kLog2E + N::kRound;
  const T n = shifted - N::kRound;
  const T r = (y - n * N::kLn2High) - n * N::kLn2Low;
  constexpr int kTerms = std::size(N::kCoefficients);
  T q = N::kCoefficients[kTerms - 1];
  for (int k = kTerms - 2; k >= 0; --k) q = q * r + N::kCoefficients[k];
  const T p = r + (r * r) * q;
  // The low bits of `shifted` hold n; the shift drops the bits of kRound itself.
  constexpr Bits kOne = std::bit_cast<Bits>(T(1));
  const Bits exponent = std::bit_cast<Bits>(shifted) << N::kFractionBits;
  const T power = std::bit_cast<T>(static_cast<Bits>(exponent + kOne));
  return power * p + (power - T(1));
}

// The value cap * tanh(s / cap), and tanh(s / cap) for the derivative.
template <class T>
struct Capped {
  T value;
  T tanh;
};

template <std::floating_point T>
constexpr Capped<T> capped(T s, T cap) {
#if defined(__clang__)
#pragma clang fp contract(off)
#endif
  using N = SoftCapNumbers<T>;
  using Bits = typename N::Bits;
  constexpr Bits kSign = std::bit_cast<Bits>(T(-0.0));
  constexpr T kMax = std::numeric_limits<T>::max();
  // The inverse depends on the cap alone, so it is computed once per loop. It stays finite for
  // subnormal caps.
  const T quotient = T(2) / cap;
  const T inverse = quotient > kMax ? kMax : quotient;
  const T x = s * inverse;
  const T magnitude = std::bit_cast<T>(static_cast<Bits>(std::bit_cast<Bits>(x) & ~kSign));
  const T y = chosen(magnitude > N::kLargest, N::kLargest, magnitude);  // NaN stays
  const T e = soft_cap_expm1(y);
  const T ratio = e / (e + T(2));
  const Bits sign = std::bit_cast<Bits>(x) & kSign;
  const T t = std::bit_cast<T>(static_cast<Bits>(std::bit_cast<Bits>(ratio) | sign));
  // `product` is inexact where s / cap is subnormal and has lost bits, so small scores are returned
  // as they are.
  const T product = cap * t;
  return {chosen(magnitude < N::kSmallest, s, product), t};
}

// Used only for gradient checks by complex step.
template <class T>
Capped<std::complex<T>> capped(const std::complex<T>& s, T cap) {
  const std::complex<T> t = std::tanh(s / cap);
  return {cap * t, t};
}

}  // namespace detail

// Returns cap * tanh(s / cap), with a relative error of at most 5 units in the last place for a cap
// that is positive and normal. It is +-cap for infinite s and NaN for NaN. `cap` is used in the
// type of s.
template <std::floating_point T, detail::Arithmetic U>
constexpr T soft_cap(T s, U cap) {
  return detail::capped(s, static_cast<T>(cap)).value;
}

template <class T, detail::Arithmetic U>
constexpr Dual<T> soft_cap(const Dual<T>& s, U cap) {
#if defined(__clang__)
#pragma clang fp contract(off)
#endif
  const detail::Capped<T> c = detail::capped(s.value, static_cast<T>(cap));
  return {c.value, s.slope * (T(1) - c.tanh * c.tanh)};
}

template <class T, detail::Arithmetic U>
std::complex<T> soft_cap(const std::complex<T>& s, U cap) {
  return detail::capped(s, static_cast<T>(cap)).value;
}

}  // namespace qkv

#endif  // QKV_SOFT_CAP_H_
