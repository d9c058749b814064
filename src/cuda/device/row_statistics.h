// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_ROW_STATISTICS_H_
#define QKV_CUDA_DEVICE_ROW_STATISTICS_H_

#include "cuda/device/arguments.h"
#include "cuda/device/arrays.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/words.h"

// Weights computed again from scores and what is known of each row, for sums over queries, entropy
// and gradients.
namespace qkv::cuda {

// The statistics of a thread's rows: a weight is factor * 2^power, where power is
// exponent factor * s - shift.
template <class Shape>
struct OwnStatistics {
  float shift[2 * Shape::kRowTiles];
  float m[2 * Shape::kRowTiles];
  float factor[2 * Shape::kRowTiles];
};

template <class Shape>
QKV_DEVICE OwnStatistics<Shape> load_statistics(const ForwardArguments& a, const BlockPlace& place,
                                                float factor) {
  OwnStatistics<Shape> rows;
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) {
    const int i = place.first + row_in_block<Shape>(r / 2, r % 2);
    RowStatistics own{minus_infinity(), 0, 0, 0};
    if (i < place.Tq) own = statistics_of(a, place, i);
    const float shift = own.m == minus_infinity() ? 0.0F : rounded_product(own.m, factor);
    rows.m[r] = own.m;
    rows.shift[r] = rounded_sum(shift, -own.lowered);
    rows.factor[r] = own.factor;
  }
  return rows;
}

// Calls set(r, n, e, x, power) for each of a thread's scores x. `power` (see OwnStatistics) depends
// on x and the row's statistics only, not on other rows.
template <class Shape, class Set>
QKV_DEVICE void for_each_power(const OwnStatistics<Shape>& rows, float factor, ScoreTile<Shape>& s,
                               const Set& set) {
  bool any_large = false;
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) any_large = any_large || is_large(rows.shift[r]);
  if (any_lane(any_large)) {
    for_each_score<Shape>(s, [&](int r, int n, int e, float& x) {
      const float own = rounded_product(rows.m[r], factor);
      const float large = rounded_sum(rounded_product(rounded_sum(x, -rows.m[r]), factor),
                                      rounded_sum(own, -rows.shift[r]));
      set(r, n, e, x, is_large(rows.shift[r]) ? large : fused(x, factor, -rows.shift[r]));
    });
  } else {
    for_each_score<Shape>(s, [&](int r, int n, int e, float& x) {
      set(r, n, e, x, fused(x, factor, -rows.shift[r]));
    });
  }
}

// Whether causal mask, window and lengths allow all pairs of a tile, and all rows of the tile are
// queries. Rows beyond the last query have empty bounds, which mask their scores.
template <class Shape>
QKV_DEVICE bool is_inside(const BlockPlace& place, const BlockBounds& bounds, int first_key) {
  return first_key >= bounds.last_begin && first_key + Shape::kKeys <= bounds.first_end &&
         place.first + Shape::kRows <= place.Tq;
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_ROW_STATISTICS_H_
