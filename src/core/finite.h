// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_FINITE_H_
#define QKV_CORE_FINITE_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <qkv/view.h>

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
  BitsOf<T> odd = 0;
  for (Index i = 0; i < n; ++i) odd |= exponent_is_full(x[i]);
  return odd == 0;
}

// Finds, row by row, which of `count` columns hold a non-finite number ("odd" in the names here).
template <class T, Index count>
class OddColumns {
 public:
  void add(const T* row) noexcept {
    for (Index n = 0; n < count; ++n) odd_[n] |= exponent_is_full(row[n]);
  }
  bool is_odd(Index n) const noexcept { return odd_[n] != 0; }

 private:
  BitsOf<T> odd_[count] = {};
};

}  // namespace qkv::core

#endif  // QKV_CORE_FINITE_H_
