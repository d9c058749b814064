// SPDX-License-Identifier: Apache-2.0
#include "dense/product.h"

#include <algorithm>

#include "core/integers.h"
#include "core/order.h"
#include "kernels/target.h"
#include "reference/product.h"

namespace qkv::dense {
namespace {

using kernels::kTileRows;

// kChannelBlock is also the number of rows of w that tiles process at a time: 64 rows of 1,024
// numbers stay in the second-level cache while all rows of x use them.
using core::kChannelBlock;

}  // namespace

template <class T>
Kernels<T> kernels_of(std::optional<kernels::Target> target) noexcept {
  if (!target) return {};
  return {&kernels::dot_kernels<T>(*target), &kernels::gradient_kernels<T>(*target)};
}

template <class T>
void product(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index inner,
             const RowsOf<const T>& w, Index columns, const RowsOf<T>& y,
             const core::StopPoint& stop) {
  stop();
  const Index first = std::min(kChannelBlock, inner);
  if (!by.given()) {
    reference::product(x.data, x.stride, rows, first, w.data, w.stride, columns, y.data, y.stride);
  }
  for (Index r = 0; r < rows && by.given(); r += kTileRows) {
    const Index some = std::min(kTileRows, rows - r);
    T* const to = y.data + r * y.stride;
    for (Index n = 0; n < some; ++n) std::fill_n(to + n * y.stride, columns, T(0));
    by.dot->weighted_sum({x.data + r * x.stride, x.stride}, some, w, first, columns,
                         {to, y.stride});
  }
  add_product(by, {x.data + first, x.stride}, rows, inner - first,
              {w.data + first * w.stride, w.stride}, columns, y, stop);
}

template <class T>
void add_product(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index inner,
                 const RowsOf<const T>& w, Index columns, const RowsOf<T>& y,
                 const core::StopPoint& stop) {
  for (Index i = 0; i < inner; i += kChannelBlock) {
    stop();
    const Index some = std::min(kChannelBlock, inner - i);
    const T* w_rows = w.data + i * w.stride;
    if (!by.given()) {
      reference::add_product(x.data + i, x.stride, rows, some, w_rows, w.stride, columns, y.data,
                             y.stride);
      continue;
    }
    for (Index r = 0; r < rows; r += kTileRows) {
      by.dot->add_product({x.data + r * x.stride + i, x.stride}, std::min(kTileRows, rows - r),
                          {w_rows, w.stride}, some, columns, {y.data + r * y.stride, y.stride});
    }
  }
}

namespace {

// Calls f(first, count) for pieces of at most kPanel columns. Whole registers are divided evenly
// among the pieces.
template <class F>
void for_each_panel(Index columns, const F& f) {
  constexpr Index kRegister = 16;
  const Index registers = core::divide_up(columns, kRegister);
  const Index panels = core::divide_up(columns, kernels::kPanel);
  for (Index n = 0; n < panels; ++n) {
    const Index first = registers * n / panels * kRegister;
    f(first, std::min(columns, registers * (n + 1) / panels * kRegister) - first);
  }
}

// Computes sums_i = sum_r dy_r x_ri for one column of dy, row by row, with the multiply-adds of the
// target. Rows whose dy is 0 are skipped.
template <class T>
void sum_live_rows(const Kernels<T>& by, const RowsOf<const T>& dy, const RowsOf<const T>& x,
                   Index rows, Index width, T* sums) {
  if (!by.given()) {
    reference::weighted_row_sum(dy.data, dy.stride, x.data, x.stride, rows, width, sums);
    return;
  }
  std::fill_n(sums, width, T(0));
  for (Index r = 0; r < rows; ++r) {
    const T* const dy_of_row = dy.data + r * dy.stride;
    if (*dy_of_row == T(0)) continue;
    by.dot->weighted_sum({dy_of_row, 1}, 1, {x.data + r * x.stride, x.stride}, 1, width,
                         {sums, width});
  }
}

// True if rows of this stride map to few sets of the first-level cache, which has 64 sets of lines
// of 64 bytes: rows at multiples of 512 bytes map to at most 8. A tile would wait for each of its
// rows. Other rows are better read in place: copying them took 3 to 8 % of a product's time.
template <class T>
bool share_sets(Index stride) {
  constexpr Index kApart = 512 / sizeof(T);
  return stride % kApart == 0;
}

// The stride of a copy of rows of `columns` numbers, with which the rows do not share sets.
Index copied_stride(Index columns) {
  constexpr Index kLine = 64 / sizeof(float);
  constexpr Index kApart = 512 / sizeof(double);
  const Index whole = core::round_up(columns, kLine);
  return whole % kApart == 0 ? whole + kLine : whole;
}

}  // namespace

template <class T>
void copy_to_panels(const RowsOf<const T>& x, Index rows, Index width, T* panels) {
  for_each_panel(width, [&](Index first, Index count) {
    copy_rows<T>({x.data + first, x.stride}, rows, count, panels + rows * first);
  });
}

Index transposed_product_scratch(Index columns, Index width) {
  return std::max(width, copied_stride(columns) * kGradientBlock);
}

template <class T>
bool reads_copies(Index stride) {
  constexpr Index kPages = 64;  // pages that the first-level translation cache holds for these rows
  return share_sets<T>(stride) || stride * kGradientBlock > kPages * 4096 / Index{sizeof(T)};
}

template <class T>
void transposed_product_of_panels(const Kernels<T>& by, RowsOf<const T> dy, Index columns,
                                  const BlockRows<T>& x, Index rows, Index width, bool adds,
                                  const RowsOf<T>& to, T* scratch) {
  if (share_sets<T>(dy.stride)) {
    const Index stride = copied_stride(columns);
    for (Index r = 0; r < rows; ++r) {
      std::copy_n(dy.data + r * dy.stride, columns, scratch + r * stride);
    }
    dy = {scratch, stride};
  }
  const auto product = adds ? by.gradient->transposed_sum : by.gradient->transposed_product;
  for_each_panel(width, [&](Index first, Index count) {
    const RowsOf<const T> panel = x.panel(first, rows, count);
    for (Index o = 0; o < columns; o += kTileRows) {
      product({dy.data + o, dy.stride}, std::min(kTileRows, columns - o), panel, rows, count,
              {to.data + o * to.stride + first, to.stride});
    }
  });
}

template <class T>
void add_transposed_product(const Kernels<T>& by, const RowsOf<const T>& dy, Index columns,
                            const RowsOf<const T>& x, Index rows, Index width, bool finite,
                            const RowsOf<T>& to, T* scratch) {
  if (by.given() && finite) {
    for (Index o = 0; o < columns; o += kTileRows) {
      by.gradient->transposed_sum({dy.data + o, dy.stride}, std::min(kTileRows, columns - o), x,
                                  rows, width, {to.data + o * to.stride, to.stride});
    }
    return;
  }
  for (Index o = 0; o < columns; ++o) {
    sum_live_rows<T>(by, {dy.data + o, dy.stride}, x, rows, width, scratch);
    T* const to_row = to.data + o * to.stride;
    for (Index i = 0; i < width; ++i) to_row[i] += scratch[i];
  }
}

template <class T>
bool all_finite(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index width) {
  for (Index r = 0; r < rows; ++r) {
    const T* row = x.data + r * x.stride;
    if (by.given()) {
      if (!by.gradient->all_finite(row, width)) return false;
    } else {
      T sum = 0;  // x - x is 0 only for finite x
      for (Index i = 0; i < width; ++i) sum += row[i] - row[i];
      if (!(sum == T(0))) return false;
    }
  }
  return true;
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define QKV_DENSE_INSTANCES(T)                                                                    \
  template Kernels<T> kernels_of(std::optional<kernels::Target>) noexcept;                        \
  template void product(const Kernels<T>&, const RowsOf<const T>&, Index, Index,                  \
                        const RowsOf<const T>&, Index, const RowsOf<T>&, const core::StopPoint&); \
  template void add_product(const Kernels<T>&, const RowsOf<const T>&, Index, Index,              \
                            const RowsOf<const T>&, Index, const RowsOf<T>&,                      \
                            const core::StopPoint&);                                              \
  template void copy_to_panels(const RowsOf<const T>&, Index, Index, T*);                         \
  template bool reads_copies<T>(Index);                                                           \
  template void transposed_product_of_panels(const Kernels<T>&, RowsOf<const T>, Index,           \
                                             const BlockRows<T>&, Index, Index, bool,             \
                                             const RowsOf<T>&, T*);                               \
  template void add_transposed_product(const Kernels<T>&, const RowsOf<const T>&, Index,          \
                                       const RowsOf<const T>&, Index, Index, bool,                \
                                       const RowsOf<T>&, T*);                                     \
  template bool all_finite(const Kernels<T>&, const RowsOf<const T>&, Index, Index)
QKV_DENSE_INSTANCES(float);
QKV_DENSE_INSTANCES(double);
#undef QKV_DENSE_INSTANCES
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace qkv::dense
