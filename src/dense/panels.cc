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

template <class T>
void multiply(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, const Panels<T>& w,
              const T* bias, const RowsOf<T>& y, const core::StopPoint& stop) {
  for (Index o = 0; o < w.outputs; o += kPanel) {
    const Index columns = std::min(kPanel, w.outputs - o);
    for (Index r = 0; r < rows; ++r) std::fill_n(y.data + r * y.stride + o, columns, T(0));
    add_product(by, x, rows, w.inputs, RowsOf<const T>{w.data + o * w.inputs, kPanel}, columns,
                {y.data + o, y.stride}, stop);
    if (bias == nullptr) continue;
    for (Index r = 0; r < rows; ++r) {
      T* const row = y.data + r * y.stride + o;
      for (Index n = 0; n < columns; ++n) row[n] += bias[o + n];
    }
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
