// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_LENGTH_H_
#define QKV_CORE_LENGTH_H_

#include <algorithm>
#include <cmath>
#include <limits>

#include <qkv/view.h>

#include "core/order.h"

namespace qkv::core {

// The Euclidean norm of value(0) .. value(n-1), in float64. Squares are summed in kRowSums partial
// sums, which are added in ascending order. Values are scaled by a power of two if squares overflow
// or underflow.
template <class F>
double euclidean_length(Index n, const F& value) {
  const auto squares = [&](int power) {
    double partial[kRowSums] = {};
    for (Index c = 0; c < n; ++c) {
      const double x = power == 0 ? double{value(c)} : std::ldexp(double{value(c)}, power);
      partial[c % kRowSums] += x * x;
    }
    double sum = 0;
    for (const double part : partial) sum += part;
    return sum;
  };
  const double sum = squares(0);
  constexpr double kSmall = 0x1p-900;
  if (sum >= kSmall && sum <= std::numeric_limits<double>::max()) return std::sqrt(sum);
  double most = 0;
  for (Index c = 0; c < n; ++c) most = std::max(most, std::fabs(double{value(c)}));
  if (most == 0 || !std::isfinite(most)) return std::sqrt(sum);  // 0, infinity or NaN
  const int power = -std::ilogb(most);
  return std::ldexp(std::sqrt(squares(power)), -power);
}

}  // namespace qkv::core

#endif  // QKV_CORE_LENGTH_H_
