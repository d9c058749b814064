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
void copy_panel(const RowsOf<const T>& w, Index inputs, Index outputs, Index panel, T* data) {
  const Index first = panel * kPanel;
  const Index count = std::min(kPanel, outputs - first);
  T* const to = data + first * inputs;
  if (count == kPanel) {
    copy_rows<T>({w.data + first, w.stride}, inputs, kPanel, to);
    return;
  }
  for (Index i = 0; i < inputs; ++i) {
    std::copy_n(w.data + i * w.stride + first, count, to + i * kPanel);
    std::fill_n(to + i * kPanel + count, kPanel - count, T(0));
  }
}

namespace {

// The largest number of a panel's inputs that a kernel processes between two polls of the stop
// flag.
constexpr Index kMostInputs = 1024;

// Adds bias_n to y_rn.
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

// A matrix [inner,columns] whose rows are close together; columns <= kPanel.
template <class T>
struct Piece {
  RowsOf<const T> rows{};
  Index inner = 0;
  Index columns = 0;
};

// Computes y_rn = sum_i x_ri w_in. The kernel `scores`, which runs whole panels, starts sums from
// zero in registers, so y need not be zeroed and read back.
template <class T>
void multiply_piece(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, const Piece<T>& w,
                    const RowsOf<T>& y, const core::StopPoint& stop) {
  if (by.given() && w.columns == kPanel && w.inner > 0 && w.inner <= kMostInputs) {
    stop();
    by.dot->scores(x, rows, w.inner, w.rows.data, T(1), y);
    return;
  }
  product(by, x, rows, w.inner, w.rows, w.columns, y, stop);
}

}  // namespace

template <class T>
void multiply(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, const Panels<T>& w,
              const T* bias, const RowsOf<T>& y, const core::StopPoint& stop) {
  if (rows == 0) return;  // y may be a null pointer
  for (Index o = 0; o < w.outputs; o += kPanel) {
    const Index columns = std::min(kPanel, w.outputs - o);
    const Piece<T> panel{{w.data + o * w.inputs, kPanel}, w.inputs, columns};
    const RowsOf<T> to{y.data + o, y.stride};
    multiply_piece(by, x, rows, panel, to, stop);
    if (bias != nullptr) add_to_rows(by, bias + o, columns, rows, to);
  }
}

template <class T>
void add_multiply(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index inner,
                  const Panels<T>& w, Index first, const RowsOf<T>& y,
                  const core::StopPoint& stop) {
  for (Index o = 0; o < w.outputs; o += kPanel) {
    add_product<T>(by, x, rows, inner, {w.data + o * w.inputs + first * kPanel, kPanel},
                   std::min(kPanel, w.outputs - o), {y.data + o, y.stride}, stop);
  }
}

template <class T>
void multiply_by_copies(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index inner,
                        const RowsOf<const T>& w, Index columns, const RowsOf<T>& y, T* scratch,
                        const core::StopPoint& stop) {
  for (Index i = 0; i < columns; i += kPanel) {
    const Index some = std::min(kPanel, columns - i);
    const RowsOf<T> to{y.data + i, y.stride};
    for (Index o = 0; o < inner; o += kCopiedInner) {
      const Index length = std::min(kCopiedInner, inner - o);
      copy_rows<T>({w.data + o * w.stride + i, w.stride}, length, some, scratch);
      const RowsOf<const T> x_part{x.data + o, x.stride};
      if (o == 0) {
        multiply_piece<T>(by, x_part, rows, {{scratch, some}, length, some}, to, stop);
      } else {
        add_product<T>(by, x_part, rows, length, {scratch, some}, some, to, stop);
      }
    }
  }
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define QKV_DENSE_INSTANCES(T)                                                                   \
  template void pack_panel(const Kernels<T>&, const RowsOf<const T>&, Index, Index, Index, T*);  \
  template void multiply(const Kernels<T>&, const RowsOf<const T>&, Index, const Panels<T>&,     \
                         const T*, const RowsOf<T>&, const core::StopPoint&);                    \
  template void add_multiply(const Kernels<T>&, const RowsOf<const T>&, Index, Index,            \
                             const Panels<T>&, Index, const RowsOf<T>&, const core::StopPoint&); \
  template void copy_panel(const RowsOf<const T>&, Index, Index, Index, T*);                     \
  template void multiply_by_copies(const Kernels<T>&, const RowsOf<const T>&, Index, Index,      \
                                   const RowsOf<const T>&, Index, const RowsOf<T>&, T*,          \
                                   const core::StopPoint&)
QKV_DENSE_INSTANCES(float);
QKV_DENSE_INSTANCES(double);
#undef QKV_DENSE_INSTANCES
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace qkv::dense
