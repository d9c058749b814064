// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_ROTATED_ROWS_H_
#define QKV_REFERENCE_ROTATED_ROWS_H_

#include <algorithm>

#include "core/elementary.h"
#include "core/row_maps.h"
#include "reference/row_at.h"
#include "reference/scalar.h"

// RoPE rotation: pair m of a row at position p is rotated by the angle p * frequency_m,
//   (u, v) -> (u cos - v sin, u sin + v cos)
// so that the dot product of two rows depends only on the difference of their positions.
namespace qkv::reference {

// The powers of the map's base, which are not needed if frequencies are given.
inline core::Powers powers_of_base(const core::RotatedRows& map) {
  return core::Powers(map.frequencies.given() ? 1 : map.base);
}

// The frequency of pair m in radians per position. Angles are float64 whatever the type of the
// sums.
inline double frequency(const core::RotatedRows& map, const core::Powers& base, Index m) {
  if (map.frequencies.given()) return parameter<double>(map.frequencies, 0, 0, m);
  return base.of(-2 * static_cast<double>(m) / static_cast<double>(map.width));
}

inline Index position(const core::RotatedRows& map, Index b, Index row, Index place) {
  const Operand& given = map.positions;
  if (!given.given()) return place;
  return core::load<Index>(given.dtype, given.data,
                           b * given.entry_stride + row * given.row_stride);
}

template <class T>
struct CosSin {
  T cos, sin;
};

template <class T>
CosSin<T> cos_sin_of(double position, double frequency) {
  const core::SinCos angle = core::portable_sin_cos(position * frequency);
  return {static_cast<T>(angle.cos), static_cast<T>(angle.sin)};
}

// Calls f(u, v, angle) with the indices of each pair's two values and its rotation.
template <class T, class F>
void for_each_pair(const core::RotatedRows& map, const RowAt<T>& at, const F& f) {
  const Index pairs = map.width / 2;
  const auto p = static_cast<double>(position(map, at.b, at.row, at.place));
  const core::Powers base = powers_of_base(map);
  for (Index m = 0; m < pairs; ++m) {
    const CosSin<T> angle = at.angles != nullptr ? CosSin<T>{at.angles[2 * m], at.angles[2 * m + 1]}
                                                 : cos_sin_of<T>(p, frequency(map, base, m));
    f(map.halves ? m : 2 * m, map.halves ? m + pairs : 2 * m + 1, angle);
  }
}

template <class T>
void change_row(const core::RotatedRows& map, const RowAt<T>& at, const T* x, Index n, T* y) {
  if (y != x) std::copy_n(x, n, y);
  for_each_pair(map, at, [&](Index u, Index v, const CosSin<T>& by) {
    const T first = y[u];
    y[u] = first * by.cos - y[v] * by.sin;
    y[v] = first * by.sin + y[v] * by.cos;
  });
}

// Rotates d back: d, the gradient of y, becomes the gradient of x.
template <class T>
void change_back(const core::RotatedRows& map, const RowAt<T>& at, const T*, const T*, Index, T* d,
                 T*) {
  for_each_pair(map, at, [&](Index u, Index v, const CosSin<T>& by) {
    const T first = d[u];
    d[u] = first * by.cos + d[v] * by.sin;
    d[v] = d[v] * by.cos - first * by.sin;
  });
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_ROTATED_ROWS_H_
