// SPDX-License-Identifier: Apache-2.0
#include "dense/panels.h"

#include <algorithm>

namespace qkv::dense {

template <class T>
void pack_panel(const Kernels<T>& by, const RowsOf<const T>& w, Index outputs, Index inputs,
                Index panel, T* data) {
  const Index first = panel * kPanel;
  const Index count = std::min(kPanel, outputs - first);
  const RowsOf<const T> rows{w.data + first * w.stride, w.stride};
  T* const to = data + first * inputs;
  if (by.given()) {
    by.dot->pack_panel(rows, count, inputs, to);
    return;
  }
  for (Index i = 0; i < inputs; ++i) {
    for (Index o = 0; o < kPanel; ++o) {
      to[i * kPanel + o] = o < count ? rows.data[o * rows.stride + i] : T(0);
    }
  }
}

namespace {

// Of a panel that a tile goes through from front to back: it stays in the second-level cache while
// all rows pass.
constexpr Index kMostInputs = 1024;

// y_rn += bias_n
template <class T>
void add_to_rows(const Kernels<T>& by, const T* bias, Index columns, Index rows,
                 const RowsOf<T>& y) {
  for (Index r = 0; r < rows; ++r) {
    T* const row = y.data + r * y.stride;
    if (by.given()) {
      by.gradient->add(row, bias, columns);
    } else {
      for (Index n = 0; n < columns; ++n) row[n] += bias[n];
    }
  }
}

// One whole panel by the tiles of scores, which start from zero in their registers: the same
// sums, without a row of zeros to be written and read.
template <class T>
void multiply_panel(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index inputs,
                    const T* panel, const T* bias, const RowsOf<T>& y) {
  for (Index r = 0; r < rows; r += kernels::kTileRows) {
    const Index some = std::min(kernels::kTileRows, rows - r);
    const RowsOf<T> to{y.data + r * y.stride, y.stride};
    by.dot->scores({x.data + r * x.stride, x.stride}, some, inputs, panel, T(1), to);
    if (bias != nullptr) add_to_rows(by, bias, kPanel, some, to);
  }
}

}  // namespace

template <class T>
void multiply(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, const Panels<T>& w,
              const T* bias, const RowsOf<T>& y, const core::StopPoint& stop) {
  for (Index o = 0; o < w.outputs; o += kPanel) {
    const Index columns = std::min(kPanel, w.outputs - o);
    const RowsOf<const T> panel{w.data + o * w.inputs, kPanel};
    const RowsOf<T> to{y.data + o, y.stride};
    const T* const some_bias = bias == nullptr ? nullptr : bias + o;
    if (by.given() && columns == kPanel && w.inputs <= kMostInputs) {
      stop();
      multiply_panel(by, x, rows, w.inputs, panel.data, some_bias, to);
      continue;
    }
    for (Index r = 0; r < rows; ++r) std::fill_n(to.data + r * to.stride, columns, T(0));
    add_product(by, x, rows, w.inputs, panel, columns, to, stop);
    if (bias != nullptr) add_to_rows(by, some_bias, columns, rows, to);
  }
}

#define QKV_DENSE_INSTANCES(T)                                                                  \
  template void pack_panel(const Kernels<T>&, const RowsOf<const T>&, Index, Index, Index, T*); \
  template void multiply(const Kernels<T>&, const RowsOf<const T>&, Index, const Panels<T>&,    \
                         const T*, const RowsOf<T>&, const core::StopPoint&)
QKV_DENSE_INSTANCES(float);
QKV_DENSE_INSTANCES(double);
#undef QKV_DENSE_INSTANCES

}  // namespace qkv::dense
