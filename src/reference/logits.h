// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_LOGITS_H_
#define QKV_REFERENCE_LOGITS_H_

#include <cmath>
#include <limits>

#include <qkv/view.h>

#include "core/elementary.h"
#include "core/order.h"
#include "reference/sum.h"

// Functions for sampling from, and taking the argmax of, a row of n logits.
namespace qkv::reference {

// Returns the largest logit: NaN if one is NaN, -inf for n = 0.
template <class T>
T largest(const T* x, Index n) {
  T most = -std::numeric_limits<T>::infinity();
  for (Index v = 0; v < n; ++v) {
    if (std::isnan(x[v])) return x[v];
    if (x[v] > most) most = x[v];
  }
  return most;
}

// Computes sum_v exp(x_v - shift), where no x_v is above the shift. Term v is added to partial sum
// v mod 64.
template <class T>
double sum_of_exponentials(const T* x, Index n, double shift) {
  double partial[core::kPartialSums] = {};
  for (Index v = 0; v < n; ++v) {
    partial[v % core::kPartialSums] += core::portable_exp(static_cast<double>(x[v]) - shift);
  }
  return tree_sum(partial);
}

// Returns the first v in begin .. n - 1 with x_v >= least, or n if there is none.
template <class T>
Index first_from(const T* x, Index begin, Index n, T least) {
  for (Index v = begin; v < n; ++v) {
    if (x[v] >= least) return v;
  }
  return n;
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_LOGITS_H_
