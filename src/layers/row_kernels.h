// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_ROW_KERNELS_H_
#define QKV_LAYERS_ROW_KERNELS_H_

#include <qkv/view.h>

#include "core/order.h"
#include "core/philox.h"
#include "kernels/dot_kernels.h"

namespace qkv::layers {

// Row operations of the layers: by the kernels of a CPU target, or in plain loops.
template <class T>
class RowKernels {
 public:
  // A row's length is a multiple of this.
  static constexpr Index kWhole = core::kPartialSums;

  // Null: plain loops.
  explicit RowKernels(const kernels::DotKernels<T>* by) : kernels_(by) {}

  // The row's maximum; replaces its n numbers by exp(x - maximum), 0 where x - maximum < least;
  // their sum is NaN if one was NaN or +inf, and 0 if all were -inf.
  void softmax(T* row, Index n, T least, T* max, T* sum) const;
  // w_j = exp(x_j - max) / sum for n numbers, any n; 0 for -inf.
  void weights(const T* row, Index n, T max, T sum, T* w) const;
  // e_j = e_j / sum for n numbers, any n: the bits of weights() after softmax().
  void divide(T* e, Index n, T sum) const;
  // x_j = 0 where element first + j is dropped; first and n are multiples of kWhole.
  void drop(T* x, const core::DropoutRow& row, Index first, Index n) const;

 private:
  const kernels::DotKernels<T>* kernels_;
};

extern template class RowKernels<float>;
extern template class RowKernels<double>;

}  // namespace qkv::layers

#endif  // QKV_LAYERS_ROW_KERNELS_H_
