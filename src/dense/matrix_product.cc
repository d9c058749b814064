// SPDX-License-Identifier: Apache-2.0
#include "dense/matrix_product.h"

#include <algorithm>
#include <cstdlib>

#include "core/storage.h"
#include "dense/panels.h"

namespace qkv::dense {
namespace {

// Between the rows of a copy, so that they do not share places in the first-level cache.
constexpr Index kGap = 16;

Index whole_registers(Index n) { return (n + kGap - 1) / kGap * kGap; }

// A matrix [rows,columns] of any strides to rows of T, each `to.stride` behind the one before.
template <class T, class Stored>
void convert(const Matrix<const Stored>& from, Index rows, Index columns, const RowsOf<T>& to) {
  const auto put = [&](Index r, Index c) {
    to.data[r * to.stride + c] =
        core::to_accumulator<T>(from.data[r * from.row_stride + c * from.col_stride]);
  };
  // Along what stands closest.
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

// Columns of a transposed matrix next to each other, by the packing of keys, kPanel at a time.
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

// A piece [length,some] of b as a panel, zeros behind its last column.
template <class T, class Stored>
void pack_piece(const Kernels<T>& by, const Matrix<const Stored>& b, Index length, Index some,
                T* panel) {
  if constexpr (std::is_same_v<Stored, T>) {
    if (b.col_stride == 1) return copy_panel<T>({b.data, b.row_stride}, length, some, 0, panel);
    if (b.row_stride == 1) {
      return pack_panel<T>(by, {b.data, b.col_stride}, some, length, 0, panel);
    }
  }
  convert<T, Stored>(b, length, some, {panel, kPanel});
  if (some == kPanel) return;
  for (Index l = 0; l < length; ++l) {
    std::fill_n(panel + l * kPanel + some, kPanel - some, T(0));
  }
}

}  // namespace

// Few rows read b where it stands.
template <class Stored>
bool MatrixProduct<Stored>::copies_b() const {
  return kConverts || (b.col_stride != 1 && columns > 1) || rows >= kCopyRows;
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
  return copies_b() ? inner_step() * kPanel : 0;
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
  T* const panel = scratch + a_numbers();
  RowsOf<T> y{panel + b_numbers(), columns};
  if constexpr (!kConverts) {
    if (!copies_out()) y = {out.data, out.row_stride};
  }
  const auto clear = [&](Index m, Index some) {
    for (Index r = 0; r < rows; ++r) std::fill_n(y.data + r * y.stride + m, some, T(0));
  };
  if (inner == 0) clear(0, columns);
  const Index step = inner_step();
  for (Index l = 0; l < inner; l += step) {
    stop();
    const Index length = std::min(step, inner - l);
    const RowsOf<const T> x = a_piece(by, l, length, scratch);
    for (Index m = 0; m < columns; m += kPanel) {
      const Index some = std::min(kPanel, columns - m);
      const RowsOf<T> to{y.data + m, y.stride};
      const Matrix<const Stored> piece{b.data + l * b.row_stride + m * b.col_stride, b.row_stride,
                                       b.col_stride};
      if constexpr (!kConverts) {
        if (!copies_b()) {
          if (l == 0) clear(m, some);
          add_product<T>(by, x, rows, length, {piece.data, piece.row_stride}, some, to, stop);
          continue;
        }
      }
      pack_piece<T, Stored>(by, piece, length, some, panel);
      if (l == 0) {
        multiply<T>(by, x, rows, {some, length, panel}, nullptr, to, stop);
      } else {
        add_product<T>(by, x, rows, length, {panel, kPanel}, some, to, stop);
      }
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

template class MatrixProduct<float>;
template class MatrixProduct<double>;
template class MatrixProduct<BFloat16>;
template class MatrixProduct<Float16>;

}  // namespace qkv::dense
