// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_GRADIENT_SCALES_H_
#define QKV_CUDA_DEVICE_GRADIENT_SCALES_H_

#include <type_traits>

#include "cuda/device/arrays.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/gradient_tiles.h"
#include "cuda/device/words.h"

// float16 has numbers from 2^-24 to 2^16 only. Before weights and gradients of scores are rounded
// to it, they are multiplied by powers of two, and sums are divided by these powers in the end. The
// power is fixed for weights. For gradients of scores it follows the largest gradient so far of the
// row (for dq) or column (for dk), as the softmax follows the largest score: where a tile has a
// larger gradient, the sums so far are scaled down. bfloat16 needs none of this.
namespace qkv::cuda {

template <class Tiles>
inline constexpr bool kIsNarrow = std::is_same_v<Tiles, Float16Tiles>;

// The factor of weights, which are at most 1.
template <class Tiles>
inline constexpr float kWeightScale = kIsNarrow<Tiles> ? 0x1p14F : 1.0F;

// Gradients of scores are multiplied by 2^13 / top, where `top` is top_of(the largest size of a
// gradient so far).
inline constexpr float kScoreScale = 0x1p13F;
inline constexpr float kLeastTop = 0x1p-60F;
inline constexpr float kMostTop = 0x1p60F;

// The largest power of two that is at most x, but not below kLeastTop nor above kMostTop. x is
// never NaN, because max_of() of a NaN and a number is the number.
QKV_DEVICE float top_of(float x) {
  const float power = bits_to_float(float_to_bits(x) & 0x7F800000U);
  if (!(power > kLeastTop)) return kLeastTop;
  return power < kMostTop ? power : kMostTop;
}
// 1 / x, where x is a power of two that top_of() returns.
QKV_DEVICE float inverse_of(float x) { return bits_to_float(0x7F000000U - float_to_bits(x)); }

// ---- rows -------------------------------------------------------------------------------------

template <class Shape>
struct RowTops {
  float top[2 * Shape::kRowTiles];
};

template <class Shape>
QKV_DEVICE void clear_tops(RowTops<Shape>& tops) {
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) tops.top[r] = kLeastTop;
}

// Updates `tops` with the rows of the tile `ds`, multiplies each row of `ds` by 2^13 / top, and
// scales the sums over earlier tiles down where top has grown.
template <class Shape>
QKV_DEVICE void scale_rows(RowTops<Shape>& tops, ScoreTile<Shape>& ds, RowSums<Shape>& sums) {
  float largest[2 * Shape::kRowTiles], shrink[2 * Shape::kRowTiles];
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) largest[r] = 0;
  for_each_score<Shape>(
      ds, [&](int r, int, int, float& x) { largest[r] = max_of(largest[r], size_of(x)); });
  bool changes = false;
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) {
    largest[r] = max_of(largest[r], exchange(largest[r], 1));
    largest[r] = max_of(largest[r], exchange(largest[r], 2));
    const float before = tops.top[r];
    tops.top[r] = max_of(before, top_of(largest[r]));
    shrink[r] = rounded_product(before, inverse_of(tops.top[r]));
    changes = changes || shrink[r] != 1.0F;
  }
  if (any_lane(changes)) multiply_sums<Shape>(shrink, sums);
  for_each_score<Shape>(ds, [&](int r, int, int, float& x) {
    x = rounded_product(x, rounded_product(kScoreScale, inverse_of(tops.top[r])));
  });
}

// ---- columns ----------------------------------------------------------------------------------

// In shared memory, from Shape::kTops on, for each key: `top`; the factor by which the last tile
// has scaled the sums; and the largest number of each warp's queries in that tile.
template <class Shape>
QKV_DEVICE std::uint32_t top_place(int key) {
  return Shape::kTops + key * 4;
}
template <class Shape>
QKV_DEVICE std::uint32_t shrink_place(int key) {
  return top_place<Shape>(Shape::kKeys + key);
}
template <class Shape>
QKV_DEVICE std::uint32_t largest_place(int warp, int key) {
  return top_place<Shape>((2 + warp) * Shape::kKeys + key);
}

template <class Shape>
QKV_DEVICE void clear_column_tops() {
  const int t = thread_index();
  if (t < Shape::kKeys) store_shared(top_place<Shape>(t), float_to_bits(kLeastTop));
}

// Does for the columns of the tile `ds` what scale_rows() does for rows. All threads of the block
// must call this function, which has two barriers.
template <class Shape>
QKV_DEVICE void scale_columns(ScoreTile<Shape>& ds, KeySums<Shape>& sums) {
  const int t = thread_index();
  const int lane = t % kLanes;
  QKV_UNROLL
  for (int n = 0; n < Shape::kKeyTiles; ++n) {
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) {
      float largest = max_of(size_of(ds.at[0][n][e]), size_of(ds.at[0][n][2 + e]));
      QKV_UNROLL
      for (int mask = 4; mask < kLanes; mask *= 2) {
        largest = max_of(largest, exchange(largest, mask));
      }
      if (lane >= 4) continue;
      store_shared(largest_place<Shape>(t / kLanes, n * 8 + lane * 2 + e), float_to_bits(largest));
    }
  }
  sync_threads();  // all warps' largest numbers are there
  if (t < Shape::kKeys) {
    float largest = 0;
    QKV_UNROLL
    for (int warp = 0; warp < Shape::kWarps; ++warp) {
      largest = max_of(largest, bits_to_float(load_shared(largest_place<Shape>(warp, t))));
    }
    const float before = bits_to_float(load_shared(top_place<Shape>(t)));
    const float top = max_of(before, top_of(largest));
    store_shared(top_place<Shape>(t), float_to_bits(top));
    store_shared(shrink_place<Shape>(t), float_to_bits(rounded_product(before, inverse_of(top))));
  }
  sync_threads();  // all tops are there
  QKV_UNROLL
  for (int n = 0; n < Shape::kKeyTiles; ++n) {
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) {
      const float top = bits_to_float(load_shared(top_place<Shape>(n * 8 + lane % 4 * 2 + e)));
      const float scale = rounded_product(kScoreScale, inverse_of(top));
      ds.at[0][n][e] = rounded_product(ds.at[0][n][e], scale);
      ds.at[0][n][2 + e] = rounded_product(ds.at[0][n][2 + e], scale);
    }
  }
  QKV_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float shrink = bits_to_float(load_shared(shrink_place<Shape>(own_key<Shape>(half))));
    QKV_UNROLL
    for (int c = 0; c < Shape::kOwnChannelTiles; ++c) {
      sums[c][2 * half] = rounded_product(sums[c][2 * half], shrink);
      sums[c][2 * half + 1] = rounded_product(sums[c][2 * half + 1], shrink);
    }
  }
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_GRADIENT_SCALES_H_
