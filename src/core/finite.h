// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_FINITE_H_
#define QKV_CORE_FINITE_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include <qkv/view.h>

namespace qkv::core {

// Whether none of n contiguous numbers is NaN or infinite: their exponents, without branches, so
// that the loop becomes vector code.
template <class T>
bool are_finite(const T* x, Index n) noexcept {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  constexpr Bits kExponent = sizeof(T) == 4 ? Bits{0x7F800000U} : Bits(0x7FF0000000000000U);
  Bits odd = 0;
  for (Index i = 0; i < n; ++i) {
    odd |= static_cast<Bits>((std::bit_cast<Bits>(x[i]) & kExponent) == kExponent);
  }
  return odd == 0;
}

}  // namespace qkv::core

#endif  // QKV_CORE_FINITE_H_
