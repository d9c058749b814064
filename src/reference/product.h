// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_PRODUCT_H_
#define QKV_REFERENCE_PRODUCT_H_

#include <algorithm>

#include <qkv/view.h>

#include "reference/scalar.h"

// The products of the layers as plain loops. Results of dense/ are bit-identical, except on SSE4.
namespace qkv::reference {

// Computes y_ro = sum_i x_ri w_io, summed in the order of a score.
template <class T>
void product(const T* x, Index x_stride, Index rows, Index inner, const T* w, Index w_stride,
             Index columns, T* y, Index y_stride) {
  for (Index r = 0; r < rows; ++r) {
    const T* x_row = x + r * x_stride;
    for (Index o = 0; o < columns; ++o) {
      y[r * y_stride + o] = sum_of_products<T>(
          inner, [&](Index i) { return x_row[i]; }, [&](Index i) { return w[i * w_stride + o]; });
    }
  }
}

// Computes y_ro += sum_i x_ri w_io: the blocks of the sum, each from zero, are added to y_ro one by
// one, in ascending order.
template <class T>
void add_product(const T* x, Index x_stride, Index rows, Index inner, const T* w, Index w_stride,
                 Index columns, T* y, Index y_stride) {
  for (Index r = 0; r < rows; ++r) {
    for (Index begin = 0; begin < inner; begin += core::kChannelBlock) {
      const T* x_block = x + r * x_stride + begin;
      const Index terms = std::min(core::kChannelBlock, inner - begin);
      const T* w_block = w + begin * w_stride;
      for (Index o = 0; o < columns; ++o) {
        y[r * y_stride + o] += sum_of_products<T>(
            terms, [&](Index i) { return x_block[i]; },
            [&](Index i) { return w_block[i * w_stride + o]; });
      }
    }
  }
}

// Computes sums_i = sum_r dy_r x_ri for `width` columns i, over ascending r from zero, where dy_r
// is at dy[r * dy_stride]: one row of the product dy^T x. A dy_r of 0 adds nothing, whatever x
// holds: padding may hold NaN.
template <class T>
void weighted_row_sum(const T* dy, Index dy_stride, const T* x, Index x_stride, Index rows,
                      Index width, T* sums) {
  for (Index i = 0; i < width; ++i) sums[i] = T(0);
  for (Index r = 0; r < rows; ++r) {
    const T factor = dy[r * dy_stride];
    if (factor == T(0)) continue;
    const T* x_row = x + r * x_stride;
    for (Index i = 0; i < width; ++i) sums[i] = fused_multiply_add(factor, x_row[i], sums[i]);
  }
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_PRODUCT_H_
