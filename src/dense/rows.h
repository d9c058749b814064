// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_DENSE_ROWS_H_
#define QKV_DENSE_ROWS_H_

#include <type_traits>

#include <qkv/view.h>

#include "dense/product.h"

namespace qkv::dense {

// An array [..,C] as rows of C channels, counted in C order over the leading axes.
template <class T>
class Rows {
 public:
  template <class AnyView>
  explicit Rows(const AnyView& view)
      : data_(view.template as<std::remove_const_t<T>>()),
        shape_(view.shape()),
        strides_(view.strides()),
        axes_(view.rank() - 1) {
    for (int axis = 0; axis < axes_; ++axis) count_ *= shape_[axis];
    find_row_stride();
  }
  Index count() const noexcept { return count_; }
  Index channels() const noexcept { return shape_[axes_]; }
  Index stride() const noexcept { return strides_[axes_]; }
  T* row(Index index) const noexcept {
    Index offset = 0;
    for (int axis = axes_ - 1; axis >= 0; --axis) {
      offset += (index % shape_[axis]) * strides_[axis];
      index /= shape_[axis];
    }
    return data_ + offset;
  }
  // True if kernels can read and write the rows in place: the rows are evenly spaced, with
  // contiguous channels.
  bool even() const noexcept { return even_; }
  // The rows from `first` on, if even().
  RowsOf<T> from(Index first) const noexcept { return {data_ + first * row_stride_, row_stride_}; }

 private:
  void find_row_stride() {
    even_ = channels() <= 1 || stride() == 1;
    row_stride_ = 0;
    Index inside = 1;  // number of rows of the inner axes
    for (int axis = axes_ - 1; axis >= 0; --axis) {
      if (shape_[axis] == 1) continue;
      if (inside == 1) {
        row_stride_ = strides_[axis];
      } else if (strides_[axis] != row_stride_ * inside) {
        even_ = false;
      }
      inside *= shape_[axis];
    }
  }

  T* data_;
  Dims shape_;
  Dims strides_;
  int axes_;
  Index count_ = 1;
  bool even_ = false;
  Index row_stride_ = 0;
};

}  // namespace qkv::dense

#endif  // QKV_DENSE_ROWS_H_
