// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_ROW_PLACES_H_
#define QKV_ATTENTION_TILES_ROW_PLACES_H_

#include "core/problem.h"

namespace qkv::attn {

using core::Problem;

// The batch entries begin .. end-1.
struct Entries {
  Index begin = 0;
  Index end = 0;
  Index size() const noexcept { return end - begin; }
};

// Computes row indices in an array with one row per (b, head, row): [B, heads, rows], or for packed
// sequences [heads, rows of all sequences].
struct RowPlaces {
  Index heads = 0;
  Index rows = 0;
  bool packed = false;
  Index first = 0;  // batch entry at which the array begins

  static RowPlaces of_queries(const Problem& p) { return {p.H, p.q_rows, p.packed()}; }
  static RowPlaces of_keys(const Problem& p) { return {p.G, p.k_rows, p.packed()}; }
  Index of(Index b, Index head, Index row) const noexcept {
    return ((packed ? 0 : (b - first) * heads) + head) * rows + row;
  }
  RowPlaces from(Index b) const noexcept { return {heads, rows, packed, b}; }
  Index entries(Index B) const noexcept { return packed ? 1 : B; }
  Index count(Index B) const noexcept { return entries(B) * heads * rows; }
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_ROW_PLACES_H_
