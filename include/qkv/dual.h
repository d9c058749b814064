// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_DUAL_H_
#define QKV_DUAL_H_

#include <cmath>
#include <concepts>
#include <cstdlib>
#include <numbers>
#include <type_traits>

namespace qkv {

namespace detail {
template <class U>
concept Arithmetic = std::is_arithmetic_v<U>;

// Fails the compilation where a dual would become a plain number and so lose its derivative, mostly
// in std::exp(s).
template <class Plain>
constexpr void refuse_plain_number() {
  static_assert(!std::same_as<Plain, long double>,
                "call the functions of <qkv/dual.h> unqualified: exp(s), not std::exp(s), so that "
                "the score keeps its derivative");
}
}  // namespace detail

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

  // This conversion exists only for its error message. It makes exp(long double) the one viable
  // overload of std::exp, so that the compiler reports this message and not a list of overloads.
  // Conversions to float, double and integers would make ?: and arithmetic ambiguous.
  template <std::same_as<long double> Plain>
  operator Plain() const {  // NOLINT(google-explicit-constructor)
    detail::refuse_plain_number<Plain>();
    return Plain();
  }
};

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

// The functions of <cmath> for plain numbers. With them `exp(s)` inside a score function is valid
// for a float, a double and a dual.
using std::abs;
using std::atan;
using std::cos;
using std::erf;
using std::erfc;
using std::exp;
using std::log;
using std::log1p;
using std::pow;
using std::sin;
using std::sqrt;
using std::tanh;

// Defines f for a dual: y is f(a.value), and `result_slope` is the slope of the result.
#define QKV_DUAL_FUNCTION(f, result_slope) \
  template <class T>                       \
  Dual<T> f(const Dual<T>& a) {            \
    const T y = std::f(a.value);           \
    return {y, result_slope};              \
  }
QKV_DUAL_FUNCTION(exp, a.slope* y)
QKV_DUAL_FUNCTION(log, a.slope / a.value)
QKV_DUAL_FUNCTION(log1p, a.slope / (T(1) + a.value))
QKV_DUAL_FUNCTION(sqrt, a.slope / (T(2) * y))
QKV_DUAL_FUNCTION(tanh, a.slope*(T(1) - y * y))
QKV_DUAL_FUNCTION(sin, a.slope* std::cos(a.value))
QKV_DUAL_FUNCTION(cos, -a.slope* std::sin(a.value))
QKV_DUAL_FUNCTION(erf, a.slope* T(2 * std::numbers::inv_sqrtpi) * std::exp(-a.value * a.value))
QKV_DUAL_FUNCTION(erfc, -a.slope* T(2 * std::numbers::inv_sqrtpi) * std::exp(-a.value * a.value))
QKV_DUAL_FUNCTION(atan, a.slope / (T(1) + a.value * a.value))
#undef QKV_DUAL_FUNCTION
// The derivative of abs at 0 is defined as 0.
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

// The smaller and the larger of two numbers, in their common type. For duals the result has the
// derivative of the argument that is returned, which is the first if both are equal.
template <detail::Arithmetic A, detail::Arithmetic B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using Common = std::common_type_t<A, B>;
  return static_cast<Common>(b) < static_cast<Common>(a) ? static_cast<Common>(b)
                                                         : static_cast<Common>(a);
}
template <detail::Arithmetic A, detail::Arithmetic B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using Common = std::common_type_t<A, B>;
  return static_cast<Common>(a) < static_cast<Common>(b) ? static_cast<Common>(b)
                                                         : static_cast<Common>(a);
}
#define QKV_DUAL_CHOICE(name, second_is_chosen)                \
  template <class T>                                           \
  constexpr Dual<T> name(const Dual<T>& a, const Dual<T>& b) { \
    return (second_is_chosen) ? b : a;                         \
  }                                                            \
  template <class T, detail::Arithmetic U>                     \
  constexpr Dual<T> name(const Dual<T>& a, U b) {              \
    return name(a, Dual<T>(static_cast<T>(b)));                \
  }                                                            \
  template <class T, detail::Arithmetic U>                     \
  constexpr Dual<T> name(U a, const Dual<T>& b) {              \
    return name(Dual<T>(static_cast<T>(a)), b);                \
  }
QKV_DUAL_CHOICE(min, b.value < a.value)
QKV_DUAL_CHOICE(max, a.value < b.value)
#undef QKV_DUAL_CHOICE

// `condition ? a : b` as a function. Unlike nested ?: it lets compilers vectorise loops.
template <class T>
constexpr T select(bool condition, T a, T b) {
  return condition ? a : b;
}
template <detail::Arithmetic A, detail::Arithmetic B>
  requires(!std::same_as<A, B>)
constexpr std::common_type_t<A, B> select(bool condition, A a, B b) {
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
