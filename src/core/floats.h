// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_FLOATS_H_
#define QKV_CORE_FLOATS_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <qkv/view.h>

#include "core/order.h"

// Tests for non-finite numbers in rows, the Euclidean norm of a row, and rounding to odd.
namespace qkv::core {

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

// Returns 1 for NaN and infinities, else 0. It has no branches, so that loops become vector code.
template <class T>
BitsOf<T> exponent_is_full(T x) noexcept {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  constexpr auto kFull = std::bit_cast<BitsOf<T>>(std::numeric_limits<T>::infinity());
  return static_cast<BitsOf<T>>((std::bit_cast<BitsOf<T>>(x) & kFull) == kFull);
}

// True if all of n contiguous numbers are finite.
template <class T>
bool are_finite(const T* x, Index n) noexcept {
  BitsOf<T> non_finite = 0;
  for (Index i = 0; i < n; ++i) non_finite |= exponent_is_full(x[i]);
  return non_finite == 0;
}

// Finds, row by row, which of `count` columns hold a non-finite number.
template <class T, Index count>
class NonFiniteColumns {
 public:
  void add(const T* row) noexcept {
    for (Index n = 0; n < count; ++n) non_finite_[n] |= exponent_is_full(row[n]);
  }
  bool is_non_finite(Index n) const noexcept { return non_finite_[n] != 0; }

 private:
  BitsOf<T> non_finite_[count] = {};
};

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

// Converts a float64 to float32, rounding to odd: exact values are unchanged, others become the
// neighbour whose last bit is 1. If the float32 is then rounded to nearest even in a type with at
// least two fewer bits, the result is the float64 rounded once (Boldo and Melquiond 2008), which
// two roundings to nearest do not give. Conversions of float64 to bfloat16 and float16 use it.
inline float round_to_odd(double value) noexcept {
  const auto nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  // The number is too large, so step towards zero: the magnitude is the bits without the sign, and
  // one step is a decrement. This also brings an overflow to infinity back to the largest finite
  // number.
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1U);
}

}  // namespace qkv::core

#endif  // QKV_CORE_FLOATS_H_
