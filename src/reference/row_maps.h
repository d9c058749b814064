// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_ROW_MAPS_H_
#define QKV_REFERENCE_ROW_MAPS_H_

#include <span>

#include "core/problem.h"
#include "core/stop.h"
#include "reference/rms_rows.h"
#include "reference/rotated_rows.h"
#include "reference/scalar.h"
#include "reference/unit_rows.h"

// The transforms of a row of q or k ("row maps", core/row_maps.h), forward and backward. A
// transform is two functions:
//   change_row(map, at, x, n, y)          computes y from x, n values each; y may be x
//   change_back(map, at, x, y, n, d, dg)  d, the gradient of y, becomes the gradient of x; the
//                                         row's term of the gradient of the gain is added to
//                                         dg, n values, unless dg is null
// The fused paths use these loops too.
namespace qkv::reference {

using core::Operand;
using core::RowMap;
using core::RowMaps;
using core::RowProduct;

template <class Map, class T = double>
concept AnyRowMap = requires(const Map& map, const RowAt<T>& at, const T* x, Index n, T* y) {
  change_row(map, at, x, n, y);
  change_back(map, at, x, x, n, y, y);
};

// Applies all transforms to a row, in place.
template <class T>
void change_row(std::span<const RowMap> maps, const RowAt<T>& at, Index n, T* row) {
  for (const RowMap& map : maps) {
    std::visit([&]<AnyRowMap Map>(const Map& m) { change_row(m, at, row, n, row); }, map);
  }
}

// Converts d, the gradient of the transformed row, to the gradient of the row x. `spare` has room
// for n values per transform. The row's term of the gain's gradient is added to dg, unless dg is
// null.
template <class T>
void change_back(std::span<const RowMap> maps, const RowAt<T>& at, const T* x, Index n, T* d,
                 T* spare, T* dg) {
  if (maps.empty()) return;
  const auto back = [&]<AnyRowMap Map>(const Map& map) {
    change_row(map, at, x, n, spare);
    change_back(maps.subspan(1), at, spare, n, d, spare + n, dg);
    change_back(map, at, x, spare, n, d, dg);
  };
  std::visit(back, maps.front());
}

// Returns w_uc of head h.
template <class T>
T product_weight(const RowProduct& by, Index h, Index u, Index c) {
  return by.transposed ? parameter<T>(by.w, h, c, u) : parameter<T>(by.w, h, u, c);
}

// Computes y_u = sum_c w_uc x_c + b_u over n values of x. `stop` is polled for each value of y.
template <class T>
void multiply_row(const RowProduct& by, Index h, const T* x, Index n, T* y,
                  const core::StopPoint& stop) {
  for (Index u = 0; u < by.units; ++u) {
    stop();
    y[u] = sum_of_products<T>(
        n, [&](Index c) { return product_weight<T>(by, h, u, c); }, [&](Index c) { return x[c]; });
    if (by.b.given()) y[u] += parameter<T>(by.b, h, 0, u);
  }
}

// Computes dx_c = sum_u w_uc dy_u.
template <class T>
void multiply_back(const RowProduct& by, Index h, const T* dy, Index n, T* dx,
                   const core::StopPoint& stop) {
  for (Index c = 0; c < n; ++c) {
    stop();
    dx[c] = sum_of_products<T>(
        by.units, [&](Index u) { return dy[u]; },
        [&](Index u) { return product_weight<T>(by, h, u, c); });
  }
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_ROW_MAPS_H_
