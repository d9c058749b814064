// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_CELLS_H_
#define QKV_CORE_CELLS_H_

#include <qkv/view.h>

// The cells of pooling: n queries (or keys) are divided among `cells` cells, some of which are
// empty if there are more cells than queries. The product (n + 1) cells must not overflow.
namespace qkv::core {

// The cell to which query (or key) x of n belongs.
inline Index cell_of(Index x, Index n, Index cells) noexcept { return x * cells / n; }

// The first x of this cell or a later one: all smaller x belong to earlier cells.
inline Index cell_begin(Index cell, Index n, Index cells) noexcept {
  return (cell * n + cells - 1) / cells;
}

}  // namespace qkv::core

#endif  // QKV_CORE_CELLS_H_
