// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_SCALAR_H_
#define QKV_REFERENCE_SCALAR_H_

#include <cmath>
#include <complex>
#include <limits>

#include "core/storage.h"

// The scalar of the reference: float, double, or complex<double>. The complex step
// (Squire and Trapp 1998) evaluates the same formulas at x + ih and reads the derivative off the
// imaginary part; comparisons look at the real part.
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

// a * b + c rounded once (complex: plainly).
template <class T>
T fused_multiply_add(const T& a, const T& b, const T& c) {
  if constexpr (core::kIsComplex<T>) {
    return a * b + c;
  } else {
    return std::fma(a, b, c);
  }
}

template <class T>
inline constexpr RealOf<T> kInfinity = std::numeric_limits<RealOf<T>>::infinity();

template <class T>
inline constexpr RealOf<T> kNaN = std::numeric_limits<RealOf<T>>::quiet_NaN();

// sum_c a_c b_c by fused multiply-adds over ascending c into one accumulator.
template <class T>
T dot(const T* a, const T* b, Index n) {
  T sum(0);
  for (Index c = 0; c < n; ++c) sum = fused_multiply_add(a[c], b[c], sum);
  return sum;
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_SCALAR_H_
