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

// Matrix products of the layers, on the tiles of attention: no threads, no allocation. T is float
// or double. A row's bits do not depend on the other rows of a call, nor on strides; on targets
// with fused multiply-adds (all but SSE4) they are those of reference/product.h.
namespace qkv::dense {

using kernels::RowsOf;

// The loops of a CPU target; all null if plain loops are requested.
template <class T>
struct Kernels {
  const kernels::DotKernels<T>* dot = nullptr;
  const kernels::GradientKernels<T>* gradient = nullptr;

  bool given() const noexcept { return dot != nullptr; }
};

// Of a target that this CPU supports, or of none.
template <class T>
Kernels<T> kernels_of(std::optional<kernels::Target> target) noexcept;

// y_ro = sum_i x_ri w_io, in the order of a score: x [rows,inner], w [inner,columns],
// y [rows,columns].
template <class T>
void product(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index inner,
             const RowsOf<const T>& w, Index columns, const RowsOf<T>& y,
             const core::StopPoint& stop);

// y_ro += sum_i x_ri w_io, likewise: blocks of core::kChannelBlock terms, each from zero, are added
// to y_ro one by one. So a product can be continued after whole blocks of terms.
template <class T>
void add_product(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index inner,
                 const RowsOf<const T>& w, Index columns, const RowsOf<T>& y,
                 const core::StopPoint& stop);

// Rows whose products are summed from zero before they are added (core/order.h).
using core::kGradientBlock;

// n <= kPanel contiguous numbers of each row.
template <class T>
void copy_rows(const RowsOf<const T>& from, Index rows, Index n, T* to) {
  if (n == kernels::kPanel) {  // a constant length: no call per row
    for (Index r = 0; r < rows; ++r) {
      std::copy_n(from.data + r * from.stride, kernels::kPanel, to + r * kernels::kPanel);
    }
    return;
  }
  for (Index r = 0; r < rows; ++r) std::copy_n(from.data + r * from.stride, n, to + r * n);
}

// to_oi += sum_r dy_ro x_ri over r of one block of at most kGradientBlock rows, ascending from
// zero: dy [rows,columns], x [rows,width], to [columns,width]. Where dy_ro is 0 nothing is added
// when x is not `finite`. `scratch` holds transposed_product_scratch() numbers.
Index transposed_product_scratch(Index columns, Index width);
template <class T>
void add_transposed_product(const Kernels<T>& by, const RowsOf<const T>& dy, Index columns,
                            const RowsOf<const T>& x, Index rows, Index width, bool finite,
                            const RowsOf<T>& to, T* scratch);

// Whether rows of x this far apart are better copied by copy_to_panels for the products below: they
// map to few sets of the first-level cache, or lie on many pages.
template <class T>
bool reads_copies(Index stride);
template <class T>
void copy_to_panels(const RowsOf<const T>& x, Index rows, Index width, T* panels);

// A block of rows of x where they are, or what copy_to_panels made of them: panels of at most
// kPanel columns, each with its rows contiguous, rows * width numbers.
template <class T>
struct BlockRows {
  RowsOf<const T> in_place{};
  const T* panels = nullptr;

  RowsOf<const T> panel(Index first, Index rows, Index count) const {
    if (panels != nullptr) return {panels + rows * first, count};
    return {in_place.data + first, in_place.stride};
  }
};

// to_oi += sum_r dy_ro x_ri as above for a finite x, panel by panel; without `adds` to_oi = 0 + the
// sum, and what was there is not read. Pays off from kStripColumns columns on.
inline constexpr Index kStripColumns = 24;
template <class T>
void transposed_product_of_panels(const Kernels<T>& by, RowsOf<const T> dy, Index columns,
                                  const BlockRows<T>& x, Index rows, Index width, bool adds,
                                  const RowsOf<T>& to, T* scratch);

// Whether no value of x [rows,width] is NaN or infinite.
template <class T>
bool all_finite(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index width);

}  // namespace qkv::dense

#endif  // QKV_DENSE_PRODUCT_H_
