// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_RMS_ROWS_H_
#define QKV_REFERENCE_RMS_ROWS_H_

#include <algorithm>

#include "core/row_maps.h"
#include "reference/row_at.h"
#include "reference/row_length.h"

// The RMS norm of rows: y_c = g_c x_c / sqrt(mean of x_c^2 + eps). A row of zeros stays zero; if
// eps is 0, its gradient is 0.
namespace qkv::reference {

// Calls f(gain), where gain(c) is g_c, or 1 if no gain is given.
template <class T, class F>
void with_gain(const core::RmsRows& map, const RowAt<T>& at, const F& f) {
  const Operand& g = map.gain;
  if (!g.given()) return f([](Index) { return T(1); });
  if (g.dtype != dtype_of<T>) {
    return f([&](Index c) { return parameter<T>(g, at.head, 0, c); });
  }
  const T* first = static_cast<const T*>(g.data) + core::offset_of(g, 0, at.head, 0, 0);
  if (g.col_stride == 1) return f([first](Index c) { return first[c]; });
  f([first, stride = g.col_stride](Index c) { return first[c * stride]; });
}

template <class T>
void change_row(const core::RmsRows& map, const RowAt<T>& at, const T* x, Index n, T* y) {
  const RowLength<T> by(x, n, n, map.eps);
  if (by.is_zero()) return std::fill(y, y + n, T(0));
  with_gain(map, at, [&](const auto& gain) {
    by.with_divide([&](const auto& divide) {
      for (Index c = 0; c < n; ++c) y[c] = divide(x[c]) * gain(c);
    });
  });
}

// The backward pass. With z = x / length and dz_c = g_c dy_c: dg_c += dy_c z_c, and
// dx = (dz - z (z . dz) / n) / length.
template <class T>
void change_back(const core::RmsRows& map, const RowAt<T>& at, const T* x, const T*, Index n, T* d,
                 T* dg) {
  const RowLength<T> by(x, n, n, map.eps);
  if (by.is_zero()) return std::fill(d, d + n, T(0));
  by.with_divide([&](const auto& divide) {
    for (Index c = 0; dg != nullptr && c < n; ++c) dg[c] += d[c] * divide(x[c]);
    with_gain(map, at, [&](const auto& gain) {
      for (Index c = 0; c < n; ++c) d[c] = d[c] * gain(c);
    });
    const T along = sum_of_row<T>(
                        n, [&](Index c) { return divide(x[c]); }, [&](Index c) { return d[c]; }) /
                    static_cast<RealOf<T>>(n);
    by.with_divide_gradient([&](const auto& divide_gradient) {
      for (Index c = 0; c < n; ++c) d[c] = divide_gradient(d[c] - divide(x[c]) * along);
    });
  });
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_RMS_ROWS_H_
