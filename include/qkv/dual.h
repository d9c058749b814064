// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_DUAL_H_
#define QKV_DUAL_H_

#include <cmath>
#include <cstdlib>
#include <type_traits>

namespace qkv {

// A number and its derivative with respect to one variable, propagated through arithmetic
// (forward-mode differentiation; Clifford 1873's dual numbers, value + slope * eps, eps^2 = 0).
// A user's score function written with `auto s` is evaluated on Dual<float> or Dual<double> to
// obtain d score_out / d score_in. Comparisons use the value.
template <class T>
struct Dual {
  T value{};
  T slope{};
  constexpr Dual() = default;
  constexpr Dual(T v) : value(v) {}  // NOLINT(google-explicit-constructor): constants mix in
  constexpr Dual(T v, T s) : value(v), slope(s) {}
};

namespace detail {
template <class U>
concept Arithmetic = std::is_arithmetic_v<U>;
}  // namespace detail

// Arithmetic and comparison, between duals and with plain numbers on either side.
#define QKV_DUAL_BINARY(op, result_slope)                                      \
  template <class T>                                                           \
  constexpr Dual<T> operator op(const Dual<T>& a, const Dual<T>& b) {          \
    return {static_cast<T>(a.value op b.value), static_cast<T>(result_slope)}; \
  }                                                                            \
  template <class T, detail::Arithmetic U>                                     \
  constexpr Dual<T> operator op(const Dual<T>& a, U b) {                       \
    return a op Dual<T>(static_cast<T>(b));                                    \
  }                                                                            \
  template <class T, detail::Arithmetic U>                                     \
  constexpr Dual<T> operator op(U a, const Dual<T>& b) {                       \
    return Dual<T>(static_cast<T>(a)) op b;                                    \
  }                                                                            \
  template <class T, class U>                                                  \
  constexpr Dual<T>& operator op##=(Dual<T>& a, const U& b) {                  \
    return a = a op b;                                                         \
  }
QKV_DUAL_BINARY(+, a.slope + b.slope)
QKV_DUAL_BINARY(-, a.slope - b.slope)
QKV_DUAL_BINARY(*, a.slope* b.value + a.value * b.slope)
QKV_DUAL_BINARY(/, (a.slope - a.value / b.value * b.slope) / b.value)
#undef QKV_DUAL_BINARY

#define QKV_DUAL_COMPARE(op)                                       \
  template <class T>                                               \
  constexpr bool operator op(const Dual<T>& a, const Dual<T>& b) { \
    return a.value op b.value;                                     \
  }                                                                \
  template <class T, detail::Arithmetic U>                         \
  constexpr bool operator op(const Dual<T>& a, U b) {              \
    return a.value op static_cast<T>(b);                           \
  }                                                                \
  template <class T, detail::Arithmetic U>                         \
  constexpr bool operator op(U a, const Dual<T>& b) {              \
    return static_cast<T>(a) op b.value;                           \
  }
QKV_DUAL_COMPARE(<)
QKV_DUAL_COMPARE(>)
QKV_DUAL_COMPARE(<=)
QKV_DUAL_COMPARE(>=)
QKV_DUAL_COMPARE(==)
QKV_DUAL_COMPARE(!=)
#undef QKV_DUAL_COMPARE

template <class T>
constexpr Dual<T> operator+(const Dual<T>& a) {
  return a;
}
template <class T>
constexpr Dual<T> operator-(const Dual<T>& a) {
  return {-a.value, -a.slope};
}

// The functions of <cmath> for plain numbers, so that `exp(s)` inside a score function means the
// same for a float, a double and a dual.
using std::abs;
using std::atan;
using std::cos;
using std::exp;
using std::log;
using std::log1p;
using std::pow;
using std::sin;
using std::sqrt;
using std::tanh;

template <class T>
Dual<T> exp(const Dual<T>& a) {
  const T e = std::exp(a.value);
  return {e, a.slope * e};
}
template <class T>
Dual<T> log(const Dual<T>& a) {
  return {std::log(a.value), a.slope / a.value};
}
template <class T>
Dual<T> log1p(const Dual<T>& a) {
  return {std::log1p(a.value), a.slope / (T(1) + a.value)};
}
template <class T>
Dual<T> sqrt(const Dual<T>& a) {
  const T root = std::sqrt(a.value);
  return {root, a.slope / (T(2) * root)};
}
template <class T>
Dual<T> tanh(const Dual<T>& a) {
  const T t = std::tanh(a.value);
  return {t, a.slope * (T(1) - t * t)};
}
template <class T>
Dual<T> sin(const Dual<T>& a) {
  return {std::sin(a.value), a.slope * std::cos(a.value)};
}
template <class T>
Dual<T> cos(const Dual<T>& a) {
  return {std::cos(a.value), -a.slope * std::sin(a.value)};
}
template <class T>
Dual<T> atan(const Dual<T>& a) {
  return {std::atan(a.value), a.slope / (T(1) + a.value * a.value)};
}
// The derivative at 0 is defined as 0.
template <class T>
Dual<T> abs(const Dual<T>& a) {
  return {std::abs(a.value), a.value > T(0) ? a.slope : a.value < T(0) ? -a.slope : T(0)};
}
template <class T, detail::Arithmetic U>
Dual<T> pow(const Dual<T>& a, U power) {
  const T p = static_cast<T>(power);
  const T slope = p == T(0) ? T(0) : p * std::pow(a.value, p - T(1));
  return {std::pow(a.value, p), a.slope * slope};
}

// `condition ? a : b` as a function; unlike nested ?: it lets compilers vectorise loops.
template <class T>
constexpr T select(bool condition, T a, T b) {
  return condition ? a : b;
}
template <class T, detail::Arithmetic U>
constexpr Dual<T> select(bool condition, Dual<T> a, U b) {
  return condition ? a : Dual<T>(static_cast<T>(b));
}
template <class T, detail::Arithmetic U>
constexpr Dual<T> select(bool condition, U a, Dual<T> b) {
  return condition ? Dual<T>(static_cast<T>(a)) : b;
}

}  // namespace qkv

#endif  // QKV_DUAL_H_
