// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_DENSE_PRODUCT_H_
#define QKV_DENSE_PRODUCT_H_

#include <string_view>

#include <qkv/view.h>

#include "core/order.h"
#include "core/stop.h"
#include "kernels/dot_kernels.h"
#include "kernels/gradient_kernels.h"

// Matrix products of the layers, on the tiles of attention: no threads, no allocation. T is float
// or double. A row's bits do not depend on the other rows of a call, nor on strides; on targets
// with fused multiply-adds (all but SSE4) they are those of reference/product.h.
namespace qkv::dense {

using kernels::RowsOf;

// The loops of a CPU target; none of them where plain loops are asked for.
template <class T>
struct Kernels {
  const kernels::DotKernels<T>* dot = nullptr;
  const kernels::GradientKernels<T>* gradient = nullptr;

  bool given() const noexcept { return dot != nullptr; }
};

// Of a target that qkv::cpu_targets() lists.
template <class T>
Kernels<T> kernels_of(std::string_view target) noexcept;

// y_ro += sum_i x_ri w_io, i ascending, starting from y_ro: x [rows,inner], w [inner,columns],
// y [rows,columns].
template <class T>
void add_product(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index inner,
                 const RowsOf<const T>& w, Index columns, const RowsOf<T>& y,
                 const core::StopPoint& stop);

// Rows whose products are summed from zero before they are added (core/order.h).
using core::kGradientBlock;

// The same in pieces of w that are copied to `scratch`, kProductScratch numbers: rows of a matrix
// may stand so far apart that they share places in the caches. Worth it from kCopyRows rows on.
inline constexpr Index kCopyRows = 24;
inline constexpr Index kProductScratch = 256 * kernels::kPanel;
template <class T>
void add_product_by_copies(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index inner,
                           const RowsOf<const T>& w, Index columns, const RowsOf<T>& y, T* scratch,
                           const core::StopPoint& stop);

// to_oi += sum_r dy_ro x_ri over r of one block of at most kGradientBlock rows, ascending from
// zero: dy [rows,columns], x [rows,width], to [columns,width]. Where dy_ro is 0 nothing is added
// when x is not `finite`. `scratch` holds transposed_product_scratch() numbers.
Index transposed_product_scratch(Index columns, Index width);
template <class T>
void add_transposed_product(const Kernels<T>& by, const RowsOf<const T>& dy, Index columns,
                            const RowsOf<const T>& x, Index rows, Index width, bool finite,
                            const RowsOf<T>& to, T* scratch);

// Whether no value of x [rows,width] is NaN or infinite.
template <class T>
bool all_finite(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index width);

}  // namespace qkv::dense

#endif  // QKV_DENSE_PRODUCT_H_
