// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_CELLS_H_
#define QKV_CORE_CELLS_H_

#include <qkv/view.h>

// Pooling: which of `cells` cells each of n queries, or keys, belongs to. Some are empty if there
// are more cells than queries. (n + 1) cells does not overflow.
namespace qkv::core {

inline Index cell_of(Index x, Index n, Index cells) noexcept { return x * cells / n; }

// The first x of this cell and all after it: those below belong to earlier cells.
inline Index cell_begin(Index cell, Index n, Index cells) noexcept {
  return (cell * n + cells - 1) / cells;
}

}  // namespace qkv::core

#endif  // QKV_CORE_CELLS_H_
