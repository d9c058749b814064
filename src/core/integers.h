// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_INTEGERS_H_
#define QKV_CORE_INTEGERS_H_

#include <optional>

#include <qkv/view.h>

// Arithmetic of sizes and indices: rounded division, and results that are absent on overflow.
namespace qkv::core {

// n / d, rounded up: the number of blocks of d that cover n. The sum n + d - 1 must not overflow.
constexpr Index divide_up(Index n, Index d) noexcept { return (n + d - 1) / d; }

// The least multiple of `step` that is not below n.
constexpr Index round_up(Index n, Index step) noexcept { return divide_up(n, step) * step; }

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

// The cells of pooling: n queries (or keys) are divided among `cells` cells, some of which are
// empty if there are more cells than queries. cell_of() returns the cell of query (or key) x. The
// product (n + 1) cells must not overflow.
inline Index cell_of(Index x, Index n, Index cells) noexcept { return x * cells / n; }

// Returns the first query (or key) that is in this cell or a later one. All before it are in
// earlier cells.
inline Index cell_begin(Index cell, Index n, Index cells) noexcept {
  return (cell * n + cells - 1) / cells;
}

}  // namespace qkv::core

#endif  // QKV_CORE_INTEGERS_H_
