// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_EXPRESSIONS_OPERATIONS_H_
#define QKV_EXPRESSIONS_OPERATIONS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <qkv/soft_cap.h>

// The operations of expressions on single values, and the attributes with which their loops are
// compiled for CPU targets.
namespace qkv::expressions {

#define QKV_INLINED __attribute__((always_inline)) inline

// Tells gcc that the arrays of different steps do not overlap.
#if defined(__clang__)
#define QKV_PLAIN_LOOP
#else
#define QKV_PLAIN_LOOP _Pragma("GCC ivdep")
#endif

// The attributes of an instance: a function that is compiled for one CPU target, with everything
// that it calls inlined (qkv/instances.h has the attributes for users' functions).
#if defined(__clang__)
#define QKV_INSTANCE __attribute__((flatten))
#else
#define QKV_INSTANCE __attribute__((flatten, optimize("O3", "fp-contract=off")))
#endif
#if defined(__x86_64__)
#define QKV_AVX2 __attribute__((target("avx2,fma")))
#define QKV_AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")))
#endif

inline std::int32_t wrapped(std::uint32_t bits) { return static_cast<std::int32_t>(bits); }
inline std::uint32_t bits_of(std::int32_t x) { return static_cast<std::uint32_t>(x); }

template <class V>
QKV_INLINED V add(V a, V b) {
  if constexpr (std::is_integral_v<V>) {
    return wrapped(bits_of(a) + bits_of(b));
  } else {
    return a + b;
  }
}
template <class V>
QKV_INLINED V subtract(V a, V b) {
  if constexpr (std::is_integral_v<V>) {
    return wrapped(bits_of(a) - bits_of(b));
  } else {
    return a - b;
  }
}
template <class V>
QKV_INLINED V multiply(V a, V b) {
  if constexpr (std::is_integral_v<V>) {
    return wrapped(bits_of(a) * bits_of(b));
  } else {
    return a * b;
  }
}
// The quotient of two 32-bit integers is exact enough in float64 to be rounded down. A division by
// 0, which calls refuse before they begin, gives 0.
template <class V>
QKV_INLINED V divide(V a, V b) {
  if constexpr (std::is_integral_v<V>) {
    const double quotient =
        std::floor(static_cast<double>(a) / static_cast<double>(b == 0 ? 1 : b));
    return b == 0 ? 0 : wrapped(static_cast<std::uint32_t>(static_cast<std::int64_t>(quotient)));
  } else {
    return a / b;
  }
}
template <class V>
QKV_INLINED V modulo(V a, V b) {
  if constexpr (std::is_integral_v<V>) {
    return subtract(a, multiply(b, divide(a, b)));
  } else {
    return a - b * std::floor(a / b);
  }
}
template <class V>
QKV_INLINED V negated(V a) {
  if constexpr (std::is_integral_v<V>) {
    return wrapped(0U - bits_of(a));
  } else {
    return -a;
  }
}
template <class V>
QKV_INLINED V absolute(V a) {
  if constexpr (std::is_integral_v<V>) {
    return a < 0 ? negated(a) : a;
  } else {
    return std::fabs(a);
  }
}
template <class T>
QKV_INLINED std::int32_t integer_of(T x) {
  constexpr double kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr double kLargest = std::numeric_limits<std::int32_t>::max();
  const double wide = x == x ? static_cast<double>(x) : 0.0;
  return static_cast<std::int32_t>(std::min(std::max(wide, kLeast), kLargest));
}
template <class T>
QKV_INLINED T tanh_of(T x) {
  return detail::capped(x, T(1)).value;
}

}  // namespace qkv::expressions

#endif  // QKV_EXPRESSIONS_OPERATIONS_H_
