// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_ROW_PLACES_H_
#define QKV_ATTENTION_TILES_ROW_PLACES_H_

#include "core/masks.h"
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

// Maximum and sum of the softmax of every row of queries, sink included: arrays that `places`
// indexes.
template <class T>
struct RowStates {
  T* max = nullptr;
  T* sum = nullptr;
  RowPlaces places;

  template <class AnyArena>
  static RowStates take(AnyArena& arena, const Problem& p) {
    RowStates states;
    states.places = RowPlaces::of_queries(p);
    const Index count = states.places.count(p.B);
    states.max = arena.template take<T>(count).data();
    states.sum = arena.template take<T>(count).data();
    return states;
  }
  // The index of a query of a sequence whose first row is q0.
  Index index(Index q0, const core::QueryAt& at) const noexcept {
    return places.of(at.b, at.h, q0 + at.i);
  }
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_ROW_PLACES_H_
