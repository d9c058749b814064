// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_SCALAR_H_
#define QKV_REFERENCE_SCALAR_H_

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>

#include "core/elementary.h"
#include "core/order.h"
#include "core/storage.h"

// The scalar of the reference: float, double, or complex<double>. The complex step (Squire and
// Trapp 1998) evaluates the formulas at x + ih and reads the derivative from the imaginary part.
// Comparisons use the real part.
namespace qkv::reference {

template <class T>
struct RealOfImpl {
  using type = T;
};
template <class T>
struct RealOfImpl<std::complex<T>> {
  using type = T;
};
template <class T>
using RealOf = typename RealOfImpl<T>::type;

template <class T>
RealOf<T> real_part(const T& x) {
  if constexpr (core::kIsComplex<T>) {
    return x.real();
  } else {
    return x;
  }
}

// Returns a * b + c rounded once, or in plain arithmetic for complex numbers.
template <class T>
T fused_multiply_add(const T& a, const T& b, const T& c) {
  if constexpr (core::kIsComplex<T>) {
    return a * b + c;
  } else {
    return std::fma(a, b, c);
  }
}

// Functions of real numbers are bit-identical on all systems. Functions of complex numbers, used
// only for derivatives, are those of the C++ library.
template <class T>
T exp(const T& x) {
  if constexpr (core::kIsComplex<T>) {
    return std::exp(x);
  } else {
    return core::portable_exp(x);
  }
}
template <class T>
T log(const T& x) {
  if constexpr (core::kIsComplex<T>) {
    return std::log(x);
  } else {
    return core::portable_log(x);
  }
}
template <class T>
T tanh(const T& x) {
  if constexpr (core::kIsComplex<T>) {
    return std::tanh(x);
  } else {
    return core::portable_tanh(x);
  }
}

template <class T>
inline constexpr RealOf<T> kInfinity = std::numeric_limits<RealOf<T>>::infinity();

template <class T>
inline constexpr RealOf<T> kNaN = std::numeric_limits<RealOf<T>>::quiet_NaN();

// Returns exp(x), or 0 for x < least.
template <class T>
T exp_from(const RealOf<T>& least, const T& x) {
  return real_part(x) < least ? T(0) : reference::exp(x);
}
// Returns exp(x) as a weight: 0 for x < kLeastExponent.
template <class T>
T weight_exp(const T& x) {
  return exp_from<T>(core::kLeastExponent<RealOf<T>>, x);
}

// Computes sum_c a(c) b(c) by fused multiply-adds over ascending c, in blocks of kChannelBlock
// channels. Each block is summed from zero and added to the blocks before it.
template <class T, class A, class B>
T sum_of_products(Index n, const A& a, const B& b) {
  const auto block = [&](Index begin) {
    T sum(0);
    const Index end = std::min(n, begin + core::kChannelBlock);
    for (Index c = begin; c < end; ++c) sum = fused_multiply_add<T>(a(c), b(c), sum);
    return sum;
  };
  T total = block(0);
  for (Index c = core::kChannelBlock; c < n; c += core::kChannelBlock) total += block(c);
  return total;
}

// Computes sum_c a_c b_c.
template <class T>
T dot(const T* a, const T* b, Index n) {
  return sum_of_products<T>(
      n, [&](Index c) { return a[c]; }, [&](Index c) { return b[c]; });
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_SCALAR_H_
