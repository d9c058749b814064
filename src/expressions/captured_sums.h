// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_EXPRESSIONS_CAPTURED_SUMS_H_
#define QKV_EXPRESSIONS_CAPTURED_SUMS_H_

#include <algorithm>
#include <vector>

#include "expressions/node.h"

namespace qkv::expressions {

// Sums of a captured array's gradient, float64 in C order, for a box of its elements: size(axis)
// indices from begin(axis) on, for each axis.
class CapturedSums {
 public:
  explicit CapturedSums(const detail::CapturedArray& array) : array_(&array) {}

  const detail::CapturedArray* array() const noexcept { return array_; }
  Index begin(int axis) const noexcept { return begin_[axis]; }
  Index size(int axis) const noexcept { return size_[axis]; }
  Index stride(int axis) const noexcept { return stride_[axis]; }  // in sums()
  double* sums() noexcept { return sums_.data(); }
  const double* sums() const noexcept { return sums_.data(); }

  // Sets the box, and its sums to 0. An empty box has one unused sum.
  void start(const Dims& begin, const Dims& size) {
    begin_ = begin;
    size_ = size;
    stride_ = contiguous_strides(size);
    Index count = 1;
    for (int axis = 0; axis < size.rank(); ++axis) count *= size[axis];
    sums_.assign(static_cast<std::size_t>(std::max(count, Index{1})), 0.0);
  }
  // Sets the box to the whole array, and its sums to 0.
  void start_with_all() {
    Dims begin = array_->view.shape();
    for (int axis = 0; axis < begin.rank(); ++axis) begin[axis] = 0;
    start(begin, array_->view.shape());
  }
  // Adds the sums to `other`, whose box must contain this one.
  void add_to(CapturedSums& other) const {
    const int rank = size_.rank();
    const Index width = rank == 0 ? 1 : size_[rank - 1];
    for (const Index size : size_) {
      if (size == 0) return;
    }
    const Index rows = static_cast<Index>(sums_.size()) / width;
    const double* from = sums_.data();
    for (Index row = 0; row < rows; ++row, from += width) {
      Index offset = rank == 0 ? 0 : begin_[rank - 1] - other.begin_[rank - 1];
      Index rest = row;
      for (int axis = rank - 2; axis >= 0; --axis) {
        offset += (begin_[axis] + rest % size_[axis] - other.begin_[axis]) * other.stride_[axis];
        rest /= size_[axis];
      }
      double* const to = other.sums_.data() + offset;
      for (Index n = 0; n < width; ++n) to[n] += from[n];
    }
  }

 private:
  const detail::CapturedArray* array_;
  Dims begin_, size_, stride_;
  std::vector<double> sums_;
};

}  // namespace qkv::expressions

#endif  // QKV_EXPRESSIONS_CAPTURED_SUMS_H_
