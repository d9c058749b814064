// SPDX-License-Identifier: Apache-2.0
#include "dense/matrix_product.h"

#include <algorithm>
#include <cstdlib>

#include "core/integers.h"
#include "core/storage.h"
#include "dense/panels.h"

namespace qkv::dense {
namespace {

// Numbers between the rows of a copy, so that rows do not share first-level cache sets.
constexpr Index kGap = 16;

Index whole_registers(Index n) { return core::round_up(n, kGap); }

// Copies a matrix [rows,columns] of any strides to rows of T, `to.stride` apart.
template <class T, class Stored>
void convert(const Matrix<const Stored>& from, Index rows, Index columns, const RowsOf<T>& to) {
  const auto put = [&](Index r, Index c) {
    to.data[r * to.stride + c] =
        core::to_accumulator<T>(from.data[r * from.row_stride + c * from.col_stride]);
  };
  // The inner loop runs along the smaller stride.
  if (std::abs(from.row_stride) < std::abs(from.col_stride)) {
    for (Index c = 0; c < columns; ++c) {
      for (Index r = 0; r < rows; ++r) put(r, c);
    }
    return;
  }
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) put(r, c);
  }
}

// Copies a matrix [rows,columns] whose row_stride is 1 to contiguous rows, kPanel columns at a time
// through `panel` [rows,kPanel].
template <class T>
void transpose(const Kernels<T>& by, const Matrix<const T>& from, Index rows, Index columns,
               const RowsOf<T>& to, T* panel) {
  for (Index c = 0; c < columns; c += kPanel) {
    const Index some = std::min(kPanel, columns - c);
    pack_panel<T>(by, {from.data + c * from.col_stride, from.col_stride}, some, rows, 0, panel);
    for (Index r = 0; r < rows; ++r) {
      std::copy_n(panel + r * kPanel, some, to.data + r * to.stride + c);
    }
  }
}

// Packs rows [length,columns] into panels, one whole row after the other. Packing panel by panel
// would read each row from the third-level cache again for each panel.
template <class T>
void copy_panels(const RowsOf<const T>& rows, Index length, Index columns, T* panels) {
  const Index whole = columns / kPanel;
  for (Index l = 0; l < length; ++l) {
    const T* const from = rows.data + l * rows.stride;
    for (Index p = 0; p < whole; ++p) {
      std::copy_n(from + p * kPanel, kPanel, panels + (p * length + l) * kPanel);
    }
  }
  if (columns > whole * kPanel) copy_panel<T>(rows, length, columns, whole, panels);
}

// Packs a piece [length,columns] of b into panels, with zeros after the last column.
template <class T, class Stored>
void pack_piece(const Kernels<T>& by, const Matrix<const Stored>& b, Index length, Index columns,
                T* panels) {
  if constexpr (std::is_same_v<Stored, T>) {
    if (b.col_stride == 1) return copy_panels<T>({b.data, b.row_stride}, length, columns, panels);
  }
  for (Index m = 0; m < columns; m += kPanel, panels += length * kPanel) {
    if constexpr (std::is_same_v<Stored, T>) {
      if (b.row_stride == 1) {
        pack_panel<T>(by, {b.data, b.col_stride}, columns, length, m / kPanel, panels - m * length);
        continue;
      }
    }
    const Index some = std::min(kPanel, columns - m);
    const Matrix<const Stored> part{b.data + m * b.col_stride, b.row_stride, b.col_stride};
    convert<T, Stored>(part, length, some, {panels, kPanel});
    for (Index l = 0; l < length; ++l) {
      std::fill_n(panels + l * kPanel + some, kPanel - some, T(0));
    }
  }
}

}  // namespace

// Whether b is copied: if its numbers are converted, if its columns are not adjacent, or if a has
// kCopyRows rows or more and b's rows descend or are more than 2 kPanel numbers apart.
template <class Stored>
bool MatrixProduct<Stored>::copies_b() const {
  const bool far = b.row_stride < 0 || b.row_stride > 2 * kPanel;
  return kConverts || (b.col_stride != 1 && columns > 1) || (rows >= kCopyRows && far);
}

template <class Stored>
Index MatrixProduct<Stored>::inner_step() const {
  return copies_a() || copies_b() ? std::min(inner, kCopiedInner) : inner;
}

template <class Stored>
Index MatrixProduct<Stored>::a_numbers() const {
  if (!copies_a()) return 0;
  return whole_registers(rows * (whole_registers(inner_step()) + kGap)) + rows * kPanel;
}

template <class Stored>
Index MatrixProduct<Stored>::b_numbers() const {
  return copies_b() ? Panels<T>::size(columns, inner_step()) : 0;
}

template <class Stored>
RowsOf<const SumOf<Stored>> MatrixProduct<Stored>::a_piece(const Kernels<T>& by, Index l,
                                                           Index length, T* scratch) const {
  const Matrix<const Stored> piece{a.data + l * a.col_stride, a.row_stride, a.col_stride};
  if constexpr (!kConverts) {
    if (!copies_a()) return {piece.data, piece.row_stride};
  }
  const RowsOf<T> to{scratch, whole_registers(inner_step()) + kGap};
  if constexpr (!kConverts) {
    if (piece.row_stride == 1) {
      transpose<T>(by, piece, rows, length, to, scratch + whole_registers(rows * to.stride));
      return {to.data, to.stride};
    }
  }
  convert<T, Stored>(piece, rows, length, to);
  return {to.data, to.stride};
}

template <class Stored>
void MatrixProduct<Stored>::run(const Kernels<T>& by, T* scratch,
                                const core::StopPoint& stop) const {
  T* const panels = scratch + a_numbers();
  RowsOf<T> y{panels + b_numbers(), columns};
  if constexpr (!kConverts) {
    if (!copies_out()) y = {out.data, out.row_stride};
  }
  if (inner == 0) clear(y, 0, columns);
  const Index step = inner_step();
  for (Index l = 0; l < inner; l += step) {
    stop();
    const Index length = std::min(step, inner - l);
    const RowsOf<const T> x = a_piece(by, l, length, scratch);
    if constexpr (!kConverts) {
      if (!copies_b()) {
        add_in_place(by, x, l, length, y, stop);
        continue;
      }
    }
    pack_piece<T, Stored>(by, {b.data + l * b.row_stride, b.row_stride, b.col_stride}, length,
                          columns, panels);
    if (l == 0) {
      multiply<T>(by, x, rows, {columns, length, panels}, nullptr, y, stop);
      continue;
    }
    for (Index m = 0; m < columns; m += kPanel) {
      add_product<T>(by, x, rows, length, {panels + m * length, kPanel},
                     std::min(kPanel, columns - m), {y.data + m, y.stride}, stop);
    }
  }
  if (!copies_out()) return;
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) {
      out.data[r * out.row_stride + c * out.col_stride] =
          core::from_accumulator<Stored>(y.data[r * y.stride + c]);
    }
  }
}

// Computes y from the terms l .. l+length-1, or adds them to y if l > 0. b is read in place.
template <class Stored>
void MatrixProduct<Stored>::add_in_place(const Kernels<T>& by, const RowsOf<const T>& x, Index l,
                                         Index length, const RowsOf<T>& y,
                                         const core::StopPoint& stop) const
  requires(!kConverts)
{
  for (Index m = 0; m < columns; m += kPanel) {
    const Index some = std::min(kPanel, columns - m);
    const T* const piece = b.data + l * b.row_stride + m * b.col_stride;
    const RowsOf<T> to{y.data + m, y.stride};
    if (l == 0 && some == kPanel && b.row_stride == kPanel) {  // already a panel
      multiply<T>(by, x, rows, {some, length, piece}, nullptr, to, stop);
      continue;
    }
    if (l == 0) {
      product<T>(by, x, rows, length, {piece, b.row_stride}, some, to, stop);
    } else {
      add_product<T>(by, x, rows, length, {piece, b.row_stride}, some, to, stop);
    }
  }
}

template <class Stored>
void MatrixProduct<Stored>::clear(const RowsOf<T>& y, Index first, Index n) const {
  for (Index r = 0; r < rows; ++r) std::fill_n(y.data + r * y.stride + first, n, T(0));
}

template class MatrixProduct<float>;
template class MatrixProduct<double>;
template class MatrixProduct<BFloat16>;
template class MatrixProduct<Float16>;

}  // namespace qkv::dense
