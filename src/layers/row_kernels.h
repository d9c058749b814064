// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_ROW_KERNELS_H_
#define QKV_LAYERS_ROW_KERNELS_H_

#include <qkv/view.h>

#include "core/order.h"
#include "core/philox.h"
#include "kernels/dot_kernels.h"

namespace qkv::layers {

// Operations on rows for the layers, by the kernels of a CPU target or in plain loops.
template <class T>
class RowKernels {
 public:
  // The row length of softmax() and drop() must be a multiple of this.
  static constexpr Index kWhole = core::kPartialSums;

  // A null `by` means plain loops.
  explicit RowKernels(const kernels::DotKernels<T>* by) : kernels_(by) {}

  // Finds the row's maximum and replaces its n numbers by exp(x - maximum), which is 0 where x -
  // maximum < least. `sum` becomes the sum of these: NaN if a number was NaN or +inf, and 0 if all
  // numbers were -inf.
  void softmax(T* row, Index n, T least, T* max, T* sum) const;
  // Computes w_j = exp(x_j - max) / sum for any n; w_j = 0 where x_j - max < kNormalExponent.
  void weights(const T* row, Index n, T max, T sum, T* w) const;
  // Computes e_j = e_j / sum for any n: after softmax() with a `least` of kNormalExponent, the
  // result is bit-identical to weights().
  void divide(T* e, Index n, T sum) const;
  // Sets x_j = 0 where element first + j is dropped; first and n are multiples of kWhole.
  void drop(T* x, const core::DropoutRow& row, Index first, Index n) const;

 private:
  const kernels::DotKernels<T>* kernels_;
};

extern template class RowKernels<float>;
extern template class RowKernels<double>;

}  // namespace qkv::layers

#endif  // QKV_LAYERS_ROW_KERNELS_H_
