// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_ROUNDING_H_
#define QKV_CORE_ROUNDING_H_

#include <bit>
#include <cmath>
#include <cstdint>

namespace qkv::core {

// Converts a float64 to float32, rounding to odd: exact values are unchanged, others become the
// neighbour whose last bit is 1. If that is then rounded to nearest even in a type with at least
// two fewer bits, the result is the float64 rounded once (Boldo and Melquiond 2008), which two
// roundings to nearest do not give. It is used to convert float64 to bfloat16 and float16.
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

#endif  // QKV_CORE_ROUNDING_H_
