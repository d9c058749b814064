// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_UNIT_ROWS_H_
#define QKV_REFERENCE_UNIT_ROWS_H_

#include <algorithm>

#include "core/row_maps.h"
#include "reference/row_at.h"
#include "reference/row_length.h"

// The transform of the cosine score: y = x / |x|, which makes a dot product the cosine of the
// angle. A row of zeros stays zero, and its gradient is 0.
namespace qkv::reference {

template <class T>
void change_row(const core::UnitRows&, const RowAt<T>&, const T* x, Index n, T* y) {
  const RowLength<T> by(x, n);
  if (by.is_zero()) return std::fill(y, y + n, T(0));
  by.with_divide([&](const auto& divide) {
    for (Index c = 0; c < n; ++c) y[c] = divide(x[c]);
  });
}

// The backward pass: d, the gradient of y, becomes the gradient of x, dx = (dy - y (y . dy)) / |x|.
template <class T>
void change_back(const core::UnitRows&, const RowAt<T>&, const T* x, const T* y, Index n, T* d,
                 T*) {
  const RowLength<T> by(x, n);
  if (by.is_zero()) return std::fill(d, d + n, T(0));
  const T along = sum_of_row<T>(
      n, [&](Index c) { return y[c]; }, [&](Index c) { return d[c]; });
  by.with_divide_gradient([&](const auto& divide) {
    for (Index c = 0; c < n; ++c) d[c] = divide(d[c] - y[c] * along);
  });
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_UNIT_ROWS_H_
