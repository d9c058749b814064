// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_DENSE_PANELS_H_
#define QKV_DENSE_PANELS_H_

#include "core/integers.h"
#include "dense/product.h"

// A matrix W packed for products x W^T: its rows are cut into panels of kPanel rows, and each panel
// is stored transposed, so that the kernels read it sequentially.
namespace qkv::dense {

using kernels::kPanel;

template <class T>
struct Panels {
  Index outputs = 0;
  Index inputs = 0;
  const T* data = nullptr;  // [panels,inputs,kPanel], zeros after the last output

  // The number of elements of a matrix's panels.
  static Index size(Index outputs, Index inputs) {
    return core::round_up(outputs, kPanel) * inputs;
  }
};

// Packs panel number `panel` of w [outputs,inputs] to its place in `data`.
template <class T>
void pack_panel(const Kernels<T>& by, const RowsOf<const T>& w, Index outputs, Index inputs,
                Index panel, T* data);

// Packs panel number `panel` of a w that is stored as [inputs,outputs], so that the panel consists
// of pieces of the stored rows.
template <class T>
void copy_panel(const RowsOf<const T>& w, Index inputs, Index outputs, Index panel, T* data);

// Computes y [rows,outputs], y_ro = sum_i x_ri w_oi + b_o, with b = bias (null: no bias). i ascends
// in blocks of core::kChannelBlock, as in an attention score; the bias is added last.
template <class T>
void multiply(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, const Panels<T>& w,
              const T* bias, const RowsOf<T>& y, const core::StopPoint& stop);

// Computes y_ro += sum_i x_ri w_o(first+i) over `inner` inputs, starting at input `first`. The
// result is bit-identical to that of add_product() on the unpacked matrix.
template <class T>
void add_multiply(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index inner,
                  const Panels<T>& w, Index first, const RowsOf<T>& y, const core::StopPoint& stop);

// multiply_by_copies() computes y_ri = sum_o x_ro w_oi, summed as in multiply(), of x [rows,inner]
// and w [inner,columns], unpacked. It copies pieces of w to `scratch` [kCopyNumbers], since rows of
// w may be so far apart that they map to one cache set. This is faster from kCopyRows rows on.
inline constexpr Index kCopyRows = 48;
inline constexpr Index kCopiedInner = 512;
static_assert(kCopiedInner % core::kChannelBlock == 0, "the terms that follow begin a block");
inline constexpr Index kCopyNumbers = kCopiedInner * kPanel;
template <class T>
void multiply_by_copies(const Kernels<T>& by, const RowsOf<const T>& x, Index rows, Index inner,
                        const RowsOf<const T>& w, Index columns, const RowsOf<T>& y, T* scratch,
                        const core::StopPoint& stop);

}  // namespace qkv::dense

#endif  // QKV_DENSE_PANELS_H_
