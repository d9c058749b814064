// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_DENSE_PRODUCT_H_
#define QKV_DENSE_PRODUCT_H_

#include <algorithm>
#include <optional>

#include <qkv/view.h>

#include "core/order.h"
#include "core/stop.h"
#include "kernels/dot_kernels.h"
#include "kernels/gradient_kernels.h"
#include "kernels/target.h"

// Matrix products of the layers, by the kernels of attention, without threads or allocation. T is
// float or double. A row's bits do not depend on the other rows of a call, nor on strides. On
// targets with fused multiply-adds (all but SSE4) results are bit-identical to reference/product.h.
namespace qkv::dense {

using kernels::RowsOf;

// The kernels of a CPU target; all null if plain loops are requested.
template <class T>
struct Kernels {
  const kernels::DotKernels<T>* dot = nullptr;
  const kernels::GradientKernels<T>* gradient = nullptr;

  bool given() const noexcept { return dot != nullptr; }
};

// Returns the kernels of a target that this CPU supports; all null if there is no target.
template <class T>
Kernels<T> kernels_of(std::optional<kernels::Target> target) noexcept;

// Computes y_ro = sum_i x_ri w_io, summed in the order of a dot-product score: x [rows,inner], w
// [inner,columns], y [rows,columns].
template <class T>
void product(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index inner,
             const RowsOf<const T>& w, Index columns, const RowsOf<T>& y,
             const core::StopPoint& stop);

// Computes y_ro += sum_i x_ri w_io: blocks of core::kChannelBlock terms, each from zero, are added
// to y_ro one by one, in ascending order. So a product can be continued after whole blocks of
// terms.
template <class T>
void add_product(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index inner,
                 const RowsOf<const T>& w, Index columns, const RowsOf<T>& y,
                 const core::StopPoint& stop);

// The number of rows of x whose products are summed from zero before that sum is added.
using core::kGradientBlock;

// Copies n <= kPanel contiguous numbers of each row to rows of n numbers without gaps.
template <class T>
void copy_rows(const RowsOf<const T>& from, Index rows, Index n, T* to) {
  if (n == kernels::kPanel) {  // a constant length saves a call per row
    for (Index r = 0; r < rows; ++r) {
      std::copy_n(from.data + r * from.stride, kernels::kPanel, to + r * kernels::kPanel);
    }
    return;
  }
  for (Index r = 0; r < rows; ++r) std::copy_n(from.data + r * from.stride, n, to + r * n);
}

// The number of elements of scratch memory that add_transposed_product or
// transposed_product_of_panels needs.
Index transposed_product_scratch(Index columns, Index width);
// Computes to_oi += sum_r dy_ro x_ri over the rows r of one block, in ascending order from zero: dy
// [rows,columns], x [rows,width], to [columns,width], at most kGradientBlock rows. If `finite` is
// false, x may hold NaN or infinities, and a dy_ro of 0 adds nothing.
template <class T>
void add_transposed_product(const Kernels<T>& by, const RowsOf<const T>& dy, Index columns,
                            const RowsOf<const T>& x, Index rows, Index width, bool finite,
                            const RowsOf<T>& to, T* scratch);

// True if rows of x with this stride should be copied by copy_to_panels for the products below,
// because they map to few sets of the first-level cache or lie on many pages.
template <class T>
bool reads_copies(Index stride);
template <class T>
void copy_to_panels(const RowsOf<const T>& x, Index rows, Index width, T* panels);

// A block of rows of x, either in place or as copied by copy_to_panels: panels of at most kPanel
// columns, each with its rows contiguous, rows * width numbers.
template <class T>
struct BlockRows {
  RowsOf<const T> in_place{};
  const T* panels = nullptr;

  RowsOf<const T> panel(Index first, Index rows, Index count) const {
    if (panels != nullptr) return {panels + rows * first, count};
    return {in_place.data + first, in_place.stride};
  }
};

// The least number of columns for which transposed_product_of_panels pays off.
inline constexpr Index kStripColumns = 24;
// Computes to_oi += sum_r dy_ro x_ri as add_transposed_product does, for a finite x, panel by
// panel. Without `adds`, to_oi = 0 + the sum, and the earlier contents are not read.
template <class T>
void transposed_product_of_panels(const Kernels<T>& by, RowsOf<const T> dy, Index columns,
                                  const BlockRows<T>& x, Index rows, Index width, bool adds,
                                  const RowsOf<T>& to, T* scratch);

// True if all values of x [rows,width] are finite.
template <class T>
bool all_finite(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index width);

}  // namespace qkv::dense

#endif  // QKV_DENSE_PRODUCT_H_
