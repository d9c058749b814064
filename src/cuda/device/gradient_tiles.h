// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_GRADIENT_TILES_H_
#define QKV_CUDA_DEVICE_GRADIENT_TILES_H_

#include "cuda/device/forward_options.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_results.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/gradient_arguments.h"
#include "cuda/device/row_statistics.h"
#include "cuda/device/words.h"

// Tiles of weights and of gradients of scores, and their products with rows of k, q and dout.
namespace qkv::cuda {

// ---- weights and gradients of scores ----------------------------------------------------------

// Weights below 2^-72 are 0 (docs/semantics.md, "Edges").
inline constexpr float kLeastWeight = 0x1p-72F;

// In a tile of weights, the weight of a masked pair: -0. Other weights are not negative.
QKV_DEVICE float masked_weight() { return bits_to_float(kMasked << 16); }

// The statistics of a thread's rows that the gradient kernels read.
template <class Shape>
struct GradientRows {
  OwnStatistics<Shape> own;
  float delta[2 * Shape::kRowTiles];
};

template <class Shape>
QKV_DEVICE GradientRows<Shape> load_gradient_rows(const ForwardArguments& a,
                                                  const BlockPlace& place, float factor) {
  GradientRows<Shape> rows;
  rows.own = load_statistics<Shape>(a, place, factor);
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) {
    const int i = place.first + row_in_block<Shape>(r / 2, r % 2);
    rows.delta[r] = i < place.Tq ? statistics_of(a, place, i).delta : 0.0F;
  }
  return rows;
}

// Computes the products q k^T in `w` and dout v^T in `ds` of the tiles in shared memory; without
// values, `ds` is 0.
template <class Shape, class Tiles>
QKV_DEVICE void multiply_both(bool has_values, ScoreTile<Shape>& w, ScoreTile<Shape>& ds) {
  if (has_values) {
    multiply_rows<Shape, Tiles>(opaque(Shape::kDout), opaque(Shape::kV), ds);
  } else {
    clear_sums(ds.at);
  }
  multiply_rows<Shape, Tiles>(opaque(Shape::kQ), opaque(Shape::kK), w);
}

// Replaces the products q k^T in `w` by weights, and dout v^T in `ds` by the gradients of q k^T
// without the factor `scale`:
//   ds = w (z dout . v - delta) slope      z: dropout      slope: of a soft-cap, else 1
// or, if kOfProducts is false, by the gradients of final scores, which lack the factor `slope`. In
// `w`, dropped weights are 0, and the others lack dropout's factor. Returns whether this thread has
// a masked pair: its weight is -0 and its gradient 0.
template <class Shape, bool kOfProducts = true>
QKV_DEVICE bool make_gradients(const ForwardArguments& a, const BlockPlace& place, bool inside,
                               int first_key, const GradientRows<Shape>& rows, float factor,
                               ScoreTile<Shape>& w, ScoreTile<Shape>& ds) {
  static_assert(Shape::kRowTiles * Shape::kKeyTiles * 4 <= 32);
  const auto bit = [](int m, int n, int e) { return 1U << ((m * Shape::kKeyTiles + n) * 4 + e); };
  std::uint32_t kept = ~0U;
  if (a.drops) {
    for_each_dropped<Shape>(a, place, first_key / Shape::kKeys,
                            [&](int m, int n, int e) { kept &= ~bit(m, n, e); });
  }
  const auto is_kept = [&](int r, int n, int e) {
    return (kept & bit(r / 2, n, r % 2 * 2 + e)) != 0;
  };
  for_each_score<Shape>(ds, [&](int r, int n, int e, float& x) {
    x = fused(x, is_kept(r, n, e) ? a.kept_scale : 0.0F, -rows.delta[r]);
  });
  finish_scores<Shape, true>(a, place, inside, first_key, w, [&](int m, int n, int e, float slope) {
    if constexpr (kOfProducts) ds.at[m][n][e] = rounded_product(ds.at[m][n][e], slope);
  });
  bool any_masked = false;
  for_each_power<Shape>(rows.own, factor, w, [&](int r, int n, int e, float& x, float power) {
    const bool masked = x == minus_infinity();
    any_masked = any_masked || masked;
    const float product = rounded_product(exp2_of(power), rows.own.factor[r]);
    const float weight = product < kLeastWeight ? 0.0F : product;
    float& d = ds.at[r / 2][n][r % 2 * 2 + e];
    d = masked ? 0.0F : rounded_product(weight, d);
    x = masked ? masked_weight() : is_kept(r, n, e) ? weight : 0.0F;
  });
  return any_masked;
}

// ---- sums over queries ------------------------------------------------------------------------

// Writes this thread's part of x to a tile in shared memory, rounded to 16 bits.
template <class Shape, class Tiles>
QKV_DEVICE void store_pairs(std::uint32_t tile, const ScoreTile<Shape>& x) {
  const PairPlaces<Shape, 2> places(tile);
  for_each_pair<Shape>([&](int m, int half, int n, int, int) {
    store_shared(places.at(m, half, n),
                 rounded_pair(Tiles{}, x.at[m][n][2 * half], x.at[m][n][2 * half + 1]));
  });
}

// The bits of one number in a tile that store_pairs() has written.
template <class Shape>
QKV_DEVICE std::uint32_t pair_bits(std::uint32_t tile, int row, int j) {
  const std::uint32_t at = staged<Shape, 2>(tile, row, j);
  return load_shared(at & ~3U) >> (at % 4 * 8) & 0xFFFFU;
}

// A thread's sums over queries: element 2 * half + e of channel tile c is the sum for key
// own_key(half) and channel (own_chunk() + c) * 8 + 2 * (lane % 4) + e.
template <class Shape>
using KeySums = float[Shape::kOwnChannelTiles][4];

template <class Shape>
QKV_DEVICE int own_key(int half) {
  const int t = thread_index();
  return t / kLanes % Shape::kKeyGroups * 16 + t % kLanes / 4 + 8 * half;
}
template <class Shape>
QKV_DEVICE int own_chunk() {
  return thread_index() / kLanes / Shape::kKeyGroups * Shape::kOwnChannelTiles;
}

// sums += p^T x, for a tile p of pairs in shared memory and a tile of kRows rows x.
template <class Shape, class Tiles>
QKV_DEVICE void add_column_products(std::uint32_t p_tile, std::uint32_t x_tile,
                                    KeySums<Shape>& sums) {
  const int lane = thread_index() % kLanes;
  const int key = thread_index() / kLanes % Shape::kKeyGroups * 16 + lane / 8 % 2 * 8;
  const std::uint32_t x_row = other_chunk(
      shared_chunk<Shape>(x_tile, lane / 8 % 2 * 8 + lane % 8, lane / 16), own_chunk<Shape>());
  QKV_UNROLL
  for (int i = 0; i < Shape::kRows; i += 16) {
    std::uint32_t p[4];
    load_transposed(p, staged<Shape, 2>(p_tile, i + lane / 16 * 8 + lane % 8, key));
    QKV_UNROLL
    for (int c = 0; c < Shape::kOwnChannelTiles; c += 2) {
      std::uint32_t x[4];
      load_transposed(x, other_chunk(x_row, c) + i * Shape::kPitch);
      multiply_add(Tiles{}, sums[c], p, x[0], x[1]);
      multiply_add(Tiles{}, sums[c + 1], p, x[2], x[3]);
    }
  }
}

// ---- rows that are not finite -----------------------------------------------------------------

// Adds p * x for each number x of the tile `x_tile` that is infinite or NaN, and each number p of
// `p_tile` whose pair is not marked as masked in the tile of weights. The caller must then set
// these x to 0: otherwise the matrix product would multiply them by the 0 of masked pairs, which is
// NaN.
template <class Shape, class Tiles>
QKV_DEVICE void add_non_finite_keys(std::uint32_t p_tile, std::uint32_t x_tile,
                                    RowSums<Shape>& sums) {
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) {
    const int row = row_in_block<Shape>(r / 2, r % 2);
    QKV_ROLLED
    for (int j = 0; j < Shape::kKeys; ++j) {
      if (pair_bits<Shape>(Shape::kWeights, row, j) == kMasked) continue;
      const auto bits = static_cast<std::uint16_t>(pair_bits<Shape>(p_tile, row, j));
      add_non_finite_row<Shape, Tiles>(x_tile, j, 0, widened(Tiles{}, bits), r % 2, sums[r / 2]);
    }
  }
}
template <class Shape, class Tiles>
QKV_DEVICE void add_non_finite_queries(std::uint32_t p_tile, std::uint32_t x_tile,
                                       KeySums<Shape>& sums) {
  QKV_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int key = own_key<Shape>(half);
    QKV_ROLLED
    for (int i = 0; i < Shape::kRows; ++i) {
      if (pair_bits<Shape>(Shape::kWeights, i, key) == kMasked) continue;
      const auto bits = static_cast<std::uint16_t>(pair_bits<Shape>(p_tile, i, key));
      add_non_finite_row<Shape, Tiles>(x_tile, i, own_chunk<Shape>(), widened(Tiles{}, bits), half,
                                       sums);
    }
  }
}

// ---- results ----------------------------------------------------------------------------------

// Stores `low` and `high` in channels `channel` and `channel` + 1 of a row of `to`; with `adds`,
// adds them to what is there. Rounds once.
template <class Tiles>
QKV_DEVICE void store_gradients(const DeviceArray& to, bool adds, std::uint16_t* row, int channel,
                                int width, float low, float high) {
  if (adds) {
    const std::uint16_t* const at = row + channel * to.col;
    if (channel < width) low = rounded_sum(low, widened(Tiles{}, at[0]));
    if (channel + 1 < width) high = rounded_sum(high, widened(Tiles{}, at[to.col]));
  }
  store_channels(to, row, channel, width, rounded_pair(Tiles{}, low, high));
}

template <class Tiles>
QKV_DEVICE void store_narrow(const DeviceArray& to, bool adds, std::int64_t at, float x) {
  auto* const place = static_cast<std::uint16_t*>(const_cast<void*>(to.data)) + at;
  if (adds) x = rounded_sum(x, widened(Tiles{}, *place));
  *place = static_cast<std::uint16_t>(rounded_pair(Tiles{}, x, 0));
}

// Stores a number in `to`; with `adds`, adds it to what is there. Rounds once.
QKV_DEVICE void store_real(const DeviceArray& to, bool adds, std::int64_t at, float x) {
  switch (to.type) {
    case Element::kBFloat16:
      return store_narrow<BFloat16Tiles>(to, adds, at, x);
    case Element::kFloat16:
      return store_narrow<Float16Tiles>(to, adds, at, x);
    default: {
      auto* const place = static_cast<float*>(const_cast<void*>(to.data)) + at;
      *place = adds ? rounded_sum(x, *place) : x;
    }
  }
}

// The address of row `first` of a head's gradients.
QKV_DEVICE std::uint16_t* gradient_rows(const ForwardArguments& a, const DeviceArray& to, int b,
                                        int head, std::int64_t first) {
  return const_cast<std::uint16_t*>(rows_of(a, to, b, head, first).data);
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_GRADIENT_TILES_H_
