// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_KERNELS_GRADIENT_KERNELS_H_
#define QKV_KERNELS_GRADIENT_KERNELS_H_

#include "kernels/dot_kernels.h"

// The further loops of the backward pass of dot-product attention for one CPU target, on plain
// pointers: no threads, no allocation, no failure. T is float or double.
namespace qkv::kernels {

// Arrays with one number per query: see attention/backward/gradient_call.h.
template <class T>
struct QueryState {
  const T* lse = nullptr;
  const T* factor = nullptr;
  const T* delta = nullptr;
};

template <class T>
struct GradientKernels {
  // Computes acc_rc += sum_n w_nr x_nc for any number of columns r of `w` (with two-way dot
  // products at most kTileRows): the sum starts from zero, n ascends.
  void (*transposed_sum)(const RowsOf<const T>& w, Index rows, const RowsOf<const T>& x,
                         Index count, Index width, const RowsOf<T>& acc);
  // Computes the sums of transposed_sum, but as acc_rc = 0 + the sum: acc is not read.
  void (*transposed_product)(const RowsOf<const T>& w, Index rows, const RowsOf<const T>& x,
                             Index count, Index width, const RowsOf<T>& acc);
  // Computes in place, for each row of n keys (a multiple of 16):
  //   s_n  -> w_n = exp(s_n - lse) * factor
  //   dw_n -> w_n (dw_n - delta) * scale
  // and 0 for both where s_n is -inf, whatever dw_n is.
  void (*score_gradients)(const RowsOf<T>& s, const RowsOf<T>& dw, Index rows, Index n,
                          const QueryState<T>& queries, T scale);
  // to_r = sum_n a_rn b_rn, in the order of a score.
  void (*row_dots)(const RowsOf<const T>& a, const RowsOf<const T>& b, Index rows, Index n, T* to);
  // to_r = sum_n a_rn b_n, in parallel sums whose order depends on n alone: faster for wide rows.
  void (*dots)(const RowsOf<const T>& a, Index rows, const T* b, Index n, T* to);
  // Returns sum_n x_n. The order depends on n alone.
  T (*sum)(const T* x, Index n);
  // Returns sum_n x_n |distance + n|. The order depends on n alone.
  T (*distance_sum)(const T* x, Index distance, Index n);
  // Whether all n values are finite.
  bool (*all_finite)(const T* x, Index n);
  // to_n += x_n.
  void (*add)(T* to, const T* x, Index n);
  // to_n *= x_n.
  void (*multiply)(T* to, const T* x, Index n);
  // to_n = 0 where s_n is -inf, that is, where the pair is masked.
  void (*clear_masked)(T* to, const T* s, Index n);
  // w_n = w_n z_n, and 0 where z_n is 0, whatever w_n is.
  void (*keep)(T* w, const T* z, Index n);
  // Rounds rows of n values, a multiple of kPanel, to BF16 and joins rows 2m and 2m + 1. Null
  // except for products of BF16 (kernels/dot2_kernels.h).
  void (*join_rows)(const RowsOf<const T>& w, Index rows, Index n, const RowsOf<T>& to) = nullptr;
};

// The kernels of a target for which is_supported() is true.
template <class T>
const GradientKernels<T>& gradient_kernels(Target target) noexcept;

}  // namespace qkv::kernels

#endif  // QKV_KERNELS_GRADIENT_KERNELS_H_
