// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_ROWS_H_
#define QKV_LAYERS_ROWS_H_

#include <type_traits>

#include <qkv/view.h>

namespace qkv::layers {

// An array [..,C] of any strides as rows of C channels, counted in C order over the leading axes.
// T is const for a ConstView.
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

 private:
  T* data_;
  Dims shape_;
  Dims strides_;
  int axes_;
  Index count_ = 1;
};

}  // namespace qkv::layers

#endif  // QKV_LAYERS_ROWS_H_
