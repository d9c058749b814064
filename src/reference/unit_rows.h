// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_UNIT_ROWS_H_
#define QKV_REFERENCE_UNIT_ROWS_H_

#include <algorithm>
#include <cmath>

#include "core/row_maps.h"
#include "reference/scalar.h"
#include "reference/sum.h"

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

// sum_c a_c b_c: terms with c mod kPartialSums = t in partial sums, added as exponentials are.
template <class T>
T sum_of_row(const T* a, const T* b, Index n) {
  T partial[core::kPartialSums] = {};
  Index c = 0;
  for (; c + core::kPartialSums <= n; c += core::kPartialSums) {
    for (Index t = 0; t < core::kPartialSums; ++t) partial[t] += a[c + t] * b[c + t];
  }
  for (Index t = 0; c + t < n; ++t) partial[t] += a[c + t] * b[c + t];
  return tree_sum(partial);
}

// The power of two that brings the largest of a row's values to 1 .. 2, or 0 where squares neither
// overflow nor vanish without it.
template <class T>
int power_of_row(const T* x, Index n) {
  using std::abs;
  RealOf<T> most = 0;
  for (Index c = 0; c < n; ++c) most = std::max(most, abs(real_part(x[c])));
  constexpr int kModerate = std::numeric_limits<RealOf<T>>::max_exponent / 4;
  if (most == 0 || !std::isfinite(most)) return 0;
  const int exponent = std::ilogb(most);
  return std::abs(exponent) < kModerate ? 0 : -exponent;
}

template <class T>
void change_row(const core::UnitRows&, const T* x, Index n, T* y) {
  using std::sqrt;
  const int power = power_of_row(x, n);
  for (Index c = 0; c < n; ++c) y[c] = power == 0 ? x[c] : times_power_of_two(x[c], power);
  const T length = sqrt(sum_of_row(y, y, n));
  if (real_part(length) == 0) return std::fill(y, y + n, T(0));  // complex: a step may be there
  for (Index c = 0; c < n; ++c) y[c] /= length;
}

// d is the gradient of y, and becomes that of x: dx = (dy - y (y . dy)) / |x|.
template <class T>
void change_back(const core::UnitRows&, const T* x, const T* y, Index n, T* d) {
  using std::sqrt;
  const int power = power_of_row(x, n);
  T square(0);
  if (power == 0) {
    square = sum_of_row(x, x, n);
  } else {
    T partial[core::kPartialSums] = {};
    for (Index c = 0; c < n; ++c) {
      const T scaled = times_power_of_two(x[c], power);
      partial[c % core::kPartialSums] += scaled * scaled;
    }
    square = tree_sum(partial);
  }
  const T length = sqrt(square);
  if (real_part(length) == 0) return std::fill(d, d + n, T(0));
  const T along = sum_of_row(y, d, n);
  for (Index c = 0; c < n; ++c) {
    d[c] = (d[c] - y[c] * along) / length;
    if (power != 0) d[c] = times_power_of_two(d[c], power);
  }
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_UNIT_ROWS_H_
