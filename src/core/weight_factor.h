// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_WEIGHT_FACTOR_H_
#define QKV_CORE_WEIGHT_FACTOR_H_

#include <cmath>
#include <limits>

#include "core/elementary.h"
#include "core/order.h"

// The backward pass recomputes its weights from lse as exp(s_j - lse). The rounding of a large lse
// changes more than a weight's last bits: at lse = 2,000 a float32 is off by 6e-5, and so is every
// weight of the row. The forward softmax divides by a sum and has no such error. So the backward
// pass, too, divides the weights of a row with |lse| > kLargeLse by their recomputed sum.
namespace qkv::core {

template <class T>
bool has_large_lse(T lse) {
  return std::abs(lse) > T(kLargeLse) && std::isfinite(lse);
}

// Returns exp(x) as a weight: 0 where it is too small to count.
template <class T>
T weight_exp(T x) {
  return x < kLeastExponent<T> ? T(0) : portable_exp(x);
}

// The factor of the weights of a row. `sum` is the sum of exp(s_j - lse) over unmasked keys and the
// sink. The factor is 1 if the rounding of lse does not explain the sum's difference from 1,
// because lse may cover more keys than the call has.
template <class T>
T weight_factor(T lse, double sum) {
  const double bound = std::numeric_limits<T>::epsilon() * (std::abs(double{lse}) + kLargeLse);
  if (!has_large_lse(lse) || !(std::abs(portable_log(sum)) <= bound)) return T(1);
  return static_cast<T>(1 / sum);
}

}  // namespace qkv::core

#endif  // QKV_CORE_WEIGHT_FACTOR_H_
