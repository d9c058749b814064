// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_CHECKED_H_
#define QKV_CORE_CHECKED_H_

#include <optional>

#include <qkv/view.h>

// Signed 64-bit arithmetic; nullopt on overflow.
namespace qkv::core {

inline std::optional<Index> checked_multiply(Index a, Index b) noexcept {
  Index result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

inline std::optional<Index> checked_add(Index a, Index b) noexcept {
  Index result = 0;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

inline std::optional<Index> checked_subtract(Index a, Index b) noexcept {
  Index result = 0;
  if (__builtin_sub_overflow(a, b, &result)) return std::nullopt;
  return result;
}

}  // namespace qkv::core

#endif  // QKV_CORE_CHECKED_H_
