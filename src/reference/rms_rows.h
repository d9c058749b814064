// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_RMS_ROWS_H_
#define QKV_REFERENCE_RMS_ROWS_H_

#include <algorithm>

#include "core/row_maps.h"
#include "reference/row_at.h"
#include "reference/row_length.h"

// y_c = g_c x_c / sqrt(mean of x_c^2 + eps). A row of zeros stays one; without an eps it gets no
// gradient.
namespace qkv::reference {

// g_c, or 1.
template <class T>
T gain_of(const core::RmsRows& map, const RowAt<T>& at, Index c) {
  return map.gain.given() ? parameter<T>(map.gain, at.head, 0, c) : T(1);
}

template <class T>
void change_row(const core::RmsRows& map, const RowAt<T>& at, const T* x, Index n, T* y) {
  const RowLength<T> by(x, n, n, map.eps);
  if (by.is_zero()) return std::fill(y, y + n, T(0));
  for (Index c = 0; c < n; ++c) y[c] = by.divide(x[c]) * gain_of(map, at, c);
}

// With z = x / length: dg_c += dy_c z_c, and dx = (dz - z mean(z . dz)) / length of dz_c = g_c
// dy_c.
template <class T>
void change_back(const core::RmsRows& map, const RowAt<T>& at, const T* x, const T*, Index n, T* d,
                 T* dg) {
  const RowLength<T> by(x, n, n, map.eps);
  if (by.is_zero()) return std::fill(d, d + n, T(0));
  const auto z = [&](Index c) { return by.divide(x[c]); };
  for (Index c = 0; c < n; ++c) {
    if (dg != nullptr) dg[c] += d[c] * z(c);
    d[c] = d[c] * gain_of(map, at, c);
  }
  const T along = sum_of_row<T>(n, z, [&](Index c) { return d[c]; }) / static_cast<RealOf<T>>(n);
  for (Index c = 0; c < n; ++c) d[c] = by.divide_gradient(d[c] - z(c) * along);
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_RMS_ROWS_H_
