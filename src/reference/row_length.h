// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_ROW_LENGTH_H_
#define QKV_REFERENCE_ROW_LENGTH_H_

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/order.h"
#include "reference/scalar.h"

// The norm of a row, for the transforms that divide by it.
namespace qkv::reference {

template <class T>
T times_power_of_two(const T& x, int exponent) {
  if constexpr (core::kIsComplex<T>) {
    return {std::ldexp(x.real(), exponent), std::ldexp(x.imag(), exponent)};
  } else {
    return std::ldexp(x, exponent);
  }
}

// Computes sum_c a(c) b(c). Term c is added to partial sum c mod kRowSums, and the partial sums are
// added as a tree: the upper half to the lower, repeatedly.
template <class T, class A, class B>
T sum_of_row(Index n, const A& a, const B& b) {
  constexpr Index kSums = core::kRowSums;
  T partial[kSums] = {};
  Index c = 0;
  for (; c + kSums <= n; c += kSums) {
    for (Index t = 0; t < kSums; ++t) partial[t] += a(c + t) * b(c + t);
  }
  for (Index t = 0; c + t < n; ++t) partial[t] += a(c + t) * b(c + t);
  for (Index width = kSums / 2; width > 0; width /= 2) {
    for (Index t = 0; t < width; ++t) partial[t] += partial[t + width];
  }
  return partial[0];
}

// The norm sqrt(sum of squares / over + eps) of a row, times 2^power. The power is 0 unless squares
// overflow or underflow; then 2^power scales the largest absolute value to 1 .. 2.
template <class T>
struct RowLength {
  T length;
  int power = 0;

  RowLength(const T* x, Index n, Index over = 1, double eps = 0) {
    using std::abs;
    using std::sqrt;
    using Real = RealOf<T>;
    const auto value = [&](Index c) { return x[c]; };
    const auto mean = [&](const T& sum, double more) {
      return sum / static_cast<Real>(over) + static_cast<Real>(more);
    };
    T square = mean(sum_of_row<T>(n, value, value), eps);
    const Real size = real_part(square);
    if (!(size >= std::ldexp(Real(1), std::numeric_limits<Real>::min_exponent / 2) &&
          std::isfinite(size))) {
      Real most = 0;
      for (Index c = 0; c < n; ++c) most = std::max(most, abs(real_part(x[c])));
      const int scaled_by = most > 0 && std::isfinite(most) ? -std::ilogb(most) : 0;
      const double scaled_eps = std::ldexp(eps, 2 * scaled_by);
      if (scaled_by != 0 && std::isfinite(static_cast<Real>(scaled_eps))) {
        power = scaled_by;
        const auto scaled = [&](Index c) { return times_power_of_two(x[c], power); };
        square = mean(sum_of_row<T>(n, scaled, scaled), scaled_eps);
      }
    }
    length = sqrt(square);
  }
  // Only the real part is compared: the imaginary part is the complex step (reference/scalar.h).
  bool is_zero() const { return real_part(length) == 0; }

  // Calls f(divide), where divide(x) is x / norm for a value of the row.
  template <class F>
  void with_divide(const F& f) const {
    if (power == 0) {
      f([&](const T& x) { return x / length; });
    } else {
      f([&](const T& x) { return times_power_of_two(x, power) / length; });
    }
  }
  // Calls f(divide), where divide(d) is d / norm for a gradient, which may be of any size.
  template <class F>
  void with_divide_gradient(const F& f) const {
    if (power == 0) {
      f([&](const T& d) { return d / length; });
    } else {
      f([&](const T& d) { return times_power_of_two(d / length, power); });
    }
  }
};

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_ROW_LENGTH_H_
