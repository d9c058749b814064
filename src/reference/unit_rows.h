// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_UNIT_ROWS_H_
#define QKV_REFERENCE_UNIT_ROWS_H_

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/order.h"
#include "core/row_maps.h"
#include "reference/scalar.h"

// y = x / |x|, which makes a dot product the cosine of the angle. A row of zeros stays one, and
// gets no gradient.
namespace qkv::reference {

// x times 2^exponent
template <class T>
T times_power_of_two(const T& x, int exponent) {
  if constexpr (core::kIsComplex<T>) {
    return {std::ldexp(x.real(), exponent), std::ldexp(x.imag(), exponent)};
  } else {
    return std::ldexp(x, exponent);
  }
}

// sum_c a(c) b(c): terms with c mod kRowSums = t in partial sums, of which the upper half is added
// to the lower, and so on.
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

// The length of a row times 2^power. The power is 0 unless squares overflow or vanish; then it
// brings the largest value to 1 .. 2.
template <class T>
struct RowLength {
  T length;
  int power = 0;

  RowLength(const T* x, Index n) {
    using std::abs;
    using std::sqrt;
    using Real = RealOf<T>;
    const auto value = [&](Index c) { return x[c]; };
    T square = sum_of_row<T>(n, value, value);
    const Real size = real_part(square);
    if (!(size >= std::ldexp(Real(1), std::numeric_limits<Real>::min_exponent / 2) &&
          std::isfinite(size))) {
      Real most = 0;
      for (Index c = 0; c < n; ++c) most = std::max(most, abs(real_part(x[c])));
      if (most > 0 && std::isfinite(most)) {
        power = -std::ilogb(most);
        const auto scaled = [&](Index c) { return times_power_of_two(x[c], power); };
        square = sum_of_row<T>(n, scaled, scaled);
      }
    }
    length = sqrt(square);
  }
  bool is_zero() const { return real_part(length) == 0; }  // complex: a step may be there
};

template <class T>
void change_row(const core::UnitRows&, const T* x, Index n, T* y) {
  const RowLength<T> by(x, n);
  if (by.is_zero()) return std::fill(y, y + n, T(0));
  if (by.power == 0) {
    for (Index c = 0; c < n; ++c) y[c] = x[c] / by.length;
  } else {
    for (Index c = 0; c < n; ++c) y[c] = times_power_of_two(x[c], by.power) / by.length;
  }
}

// d is the gradient of y, and becomes that of x: dx = (dy - y (y . dy)) / |x|.
template <class T>
void change_back(const core::UnitRows&, const T* x, const T* y, Index n, T* d) {
  const RowLength<T> by(x, n);
  if (by.is_zero()) return std::fill(d, d + n, T(0));
  const T along = sum_of_row<T>(
      n, [&](Index c) { return y[c]; }, [&](Index c) { return d[c]; });
  for (Index c = 0; c < n; ++c) d[c] = (d[c] - y[c] * along) / by.length;
  if (by.power == 0) return;
  for (Index c = 0; c < n; ++c) d[c] = times_power_of_two(d[c], by.power);
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_UNIT_ROWS_H_
