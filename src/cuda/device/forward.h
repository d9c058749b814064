// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_FORWARD_H_
#define QKV_CUDA_DEVICE_FORWARD_H_

#include "cuda/device/arguments.h"
#include "cuda/device/arrays.h"
#include "cuda/device/forward_options.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_results.h"
#include "cuda/device/forward_shape.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/words.h"

// The forward pass on tensor cores with mma.sync and cp.async, for GPUs of compute capability 8.0
// and newer: FlashAttention-2 (Dao 2023), with the options of this library.
//
// A block of four warps computes kRows queries of one head. It takes the keys in tiles of kKeys,
// ascending from key 0 of the sequence, skips tiles before and after all keys that its queries may
// attend to, and carries for each query the largest score m, the sum l of exponentials and the
// weighted sum o of values. A tile without a live key of a query leaves the query's m, l and o as
// they are, so a query's bits do not depend on the block's other queries. The threads of a quad
// (four lanes) share the rows lane / 4 and lane / 4 + 8 of a tile of 16 queries; each thread holds
// columns 2 * (lane % 4) and 2 * (lane % 4) + 1 of every 8.
namespace qkv::cuda {

template <class Shape, class Tiles>
QKV_DEVICE void store_results(const ForwardArguments& a, const BlockPlace& place, float factor,
                              const RowState<Shape>& state) {
  finish_rows<Shape, std::uint16_t>(
      a, place, factor, state, [&](std::uint16_t* out, int m, int half, float weight, bool zero) {
        QKV_UNROLL
        for (int c = 0; c < Shape::kChannelTiles; ++c) {
          const float(&o)[4] = state.o[m][c];
          const int channel = c * 8 + thread_index() % 4 * 2;
          const std::uint32_t pair =
              zero ? 0U
                   : rounded_pair(Tiles{}, rounded_product(o[2 * half], weight),
                                  rounded_product(o[2 * half + 1], weight));
          store_channels(a.out, out, channel, a.E, pair);
        }
      });
}

// ---- the kernel -----------------------------------------------------------------------------

// With kEvery, supports all options; without it, only causal mask, window, lengths, diagonals,
// sinks, and a scale that is applied in the exponent.
template <class Shape, class Tiles, bool kEvery>
QKV_DEVICE void forward(const ForwardArguments& a) {
  BlockPlace place;
  if (!find_place<Shape>(a, a.row_blocks, place)) return;
  const int key_head = key_head_of(a, place);
  const int value_head = value_head_of(a, key_head);
  const DeviceRows q = rows_of(a, a.q, place.b, place.h, place.q0);
  const DeviceRows k = rows_of(a, a.k, place.b, key_head, place.k0);
  const DeviceRows v = rows_of(a, a.v, place.b, value_head, place.k0);
  if constexpr (kEvery) {
    if (thread_index() == 0) store_option_offsets<Shape>(a, place);
  }

  const float factor = exponent_factor<kEvery>(a);
  const BlockBounds bounds = find_bounds<Shape>(a, place);
  const int first_tile = bounds.last_end > 0 ? bounds.first_begin / Shape::kKeys : 0;
  const int end_tile = (bounds.last_end + Shape::kKeys - 1) / Shape::kKeys;
  load_rows<Shape, Shape::kRows>(Shape::kQ, q, place.first, place.Tq, a.D);

  // Whether every tile is searched for infinite and NaN values, whose product with a masked pair's
  // weight, 0, would be NaN. With kEvery, options may mask pairs of any tile. Without it, at first
  // only tiles at the bounds are searched, which is enough unless a score is -inf.
  bool searches_all = kEvery;
  RowState<Shape> state;
  QKV_ROLLED
  while (true) {
    clear_state<Shape>(state);
    load_rows<Shape, Shape::kKeys>(Shape::kK, k, first_tile * Shape::kKeys, place.Tk, a.D);
    commit_copies();
    QKV_ROLLED
    for (int tile = first_tile; tile < end_tile; ++tile) {
      const int j = tile * Shape::kKeys;
      ScoreTile<Shape> s;
      wait_copies<0>();
      sync_threads();  // k is there, and all threads have finished with the previous v and options
      load_rows<Shape, Shape::kKeys>(Shape::kV, v, j, place.Tk, a.E);
      if constexpr (kEvery) stage_options<Shape>(a, place, j);
      commit_copies();
      multiply_keys<Shape, Tiles>(s);
      wait_copies<0>();
      sync_threads();  // v and the options are there, and all threads have finished with k
      if (tile + 1 < end_tile) {
        load_rows<Shape, Shape::kKeys>(Shape::kK, k, j + Shape::kKeys, place.Tk, a.D);
      }
      commit_copies();
      const bool inside = j >= bounds.last_begin && j + Shape::kKeys <= bounds.first_end;
      finish_scores<Shape, kEvery>(a, place, inside, j, s);
      const bool careful = (searches_all || !inside) &&
                           any_thread(has_non_finite<Shape, Tiles, Shape::kKeys>(Shape::kV));
      if (careful) mark_masked<Shape>(s);
      update_softmax<Shape>(factor, s, state);
      if constexpr (kEvery) {
        if (a.drops) drop_weights<Shape>(a, place, tile, s);
      }
      if (careful) {
        add_non_finite<Shape, Tiles>(s, state);
        sync_threads();  // all threads have read the values
        clear_non_finite<Shape, Tiles, Shape::kKeys>(Shape::kV);
        sync_threads();
      }
      add_products<Shape, Tiles>(s, Shape::kV, state.o);
    }
    wait_copies<0>();
    // A score of -inf, which masks its pair in any tile, may have made a sum NaN: then the block is
    // computed again, with a search in every tile.
    if (searches_all || a.out.data == nullptr || !any_thread(has_nan<Shape>(state.o))) break;
    searches_all = true;
  }
  store_results<Shape, Tiles>(a, place, factor, state);
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_FORWARD_H_
