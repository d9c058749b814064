// SPDX-License-Identifier: Apache-2.0
#include "layers/row_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "reference/scalar.h"
#include "reference/sum.h"

namespace qkv::layers {
namespace {

template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

// Replaces x in the row by exp(x - max) and returns the sum of the row, in the kernels' order.
template <class T>
T exponentials(T* row, Index n, T least, T max) {
  T partial[core::kPartialSums] = {};
  for (Index j = 0; j < n; ++j) {
    row[j] = reference::exp_from<T>(least, row[j] - max);
    partial[j % core::kPartialSums] += row[j];
  }
  return reference::tree_sum(partial);
}

}  // namespace

template <class T>
void RowKernels<T>::softmax(T* row, Index n, T least, T* max, T* sum) const {
  if (kernels_ != nullptr) {
    kernels_->softmax({row, n}, 1, n, least, max, sum);
    return;
  }
  *max = -kInfinity<T>;
  bool nan = false;
  for (Index j = 0; j < n; ++j) {
    *max = row[j] > *max ? row[j] : *max;  // ignores NaN
    nan = nan || std::isnan(row[j]);
  }
  if (*max > -kInfinity<T>) {
    *sum = exponentials(row, n, least, *max);
    return;
  }
  *sum = nan ? std::numeric_limits<T>::quiet_NaN() : T(0);
  std::fill_n(row, n, T(0));
}

template <class T>
void RowKernels<T>::weights(const T* row, Index n, T max, T sum, T* w) const {
  if (kernels_ != nullptr) {
    kernels_->weights(row, n, core::kNormalExponent<T>, max, sum, w);
    return;
  }
  for (Index j = 0; j < n; ++j) {
    w[j] = reference::exp_from<T>(core::kNormalExponent<T>, row[j] - max) / sum;
  }
}

template <class T>
void RowKernels<T>::divide(T* e, Index n, T sum) const {
  if (kernels_ != nullptr) {
    kernels_->divide(e, sum, n, e);
    return;
  }
  for (Index j = 0; j < n; ++j) e[j] /= sum;
}

template <class T>
void RowKernels<T>::drop(T* x, const core::DropoutRow& row, Index first, Index n) const {
  if (kernels_ != nullptr) {
    kernels_->drop(x, row, first, n);
    return;
  }
  for (Index j = 0; j < n; j += 4) {
    const auto group = static_cast<std::uint32_t>((first + j) / 4);
    const auto words = core::philox4x32_10({group, row.i, row.h, row.b}, {row.key[0], row.key[1]});
    for (std::size_t word = 0; word < 4; ++word) {
      if (words[word] < row.threshold) x[j + static_cast<Index>(word)] = T(0);
    }
  }
}

template class RowKernels<float>;
template class RowKernels<double>;

}  // namespace qkv::layers
