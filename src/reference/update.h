// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_UPDATE_H_
#define QKV_REFERENCE_UPDATE_H_

#include <bit>
#include <cmath>
#include <cstddef>

#include <qkv/view.h>

#include "core/adam_factors.h"
#include "core/order.h"

// The update of n parameters by an optimiser. No multiplication is fused with an addition, so that
// the results of every implementation are bit-identical.
namespace qkv::reference {

// Adam (Kingma, Ba 2015, algorithm 1) and AdamW (Loshchilov, Hutter 2019, algorithm 2). The factors
// are members of f:
//   g' = gradient g
//   m <- beta1 m + (1 - beta1) g',  v <- beta2 v + (1 - beta2) g'^2
//   w <- decay_factor w - m_rate m / (sqrt(v v_factor) + epsilon)
template <class T>
void adam(const core::AdamFactors<T>& f, const T* g, T* m, T* v, T* w, Index n) {
  for (Index i = 0; i < n; ++i) {
    const T gradient = f.gradient * g[i];
    m[i] = f.beta1 * m[i] + f.one_minus_beta1 * gradient;
    v[i] = f.beta2 * v[i] + f.one_minus_beta2 * (gradient * gradient);
    w[i] = f.decay_factor * w[i] - f.m_rate * m[i] / (std::sqrt(v[i] * f.v_factor) + f.epsilon);
  }
}

// Computes sum_i x_i^2 in float64: term i is added to sum i mod 16, and the sums are added as a
// tree.
template <class T>
double squares(const T* x, Index n) {
  double sums[core::kRowSums] = {};
  for (Index i = 0; i < n; ++i) {
    const auto value = static_cast<double>(x[i]);
    sums[i % core::kRowSums] += value * value;
  }
  for (Index width = core::kRowSums / 2; width > 0; width /= 2) {
    for (Index t = 0; t < width; ++t) sums[t] += sums[t + width];
  }
  return sums[0];
}

// Returns the sum of element i over `count` arrays ("sets"), added as the tree ((0+1)+(2+3))+...
template <class T>
T tree_sum_of_sets(T* const* sets, Index count, Index i) {
  if (count == 1) return sets[0][i];
  const auto half = static_cast<Index>(std::bit_floor(static_cast<std::size_t>(count - 1)));
  return tree_sum_of_sets(sets, half, i) + tree_sum_of_sets(sets + half, count - half, i);
}

// Sums elements first .. first+n-1 of all `count` arrays into array 0.
template <class T>
void sum_sets(T* const* sets, Index count, Index first, Index n) {
  for (Index i = first; i < first + n; ++i) sets[0][i] = tree_sum_of_sets(sets, count, i);
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_UPDATE_H_
