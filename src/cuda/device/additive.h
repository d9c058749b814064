// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_ADDITIVE_H_
#define QKV_CUDA_DEVICE_ADDITIVE_H_

#include "cuda/device/additive_arguments.h"
#include "cuda/device/additive_pairs.h"
#include "cuda/device/additive_shape.h"
#include "cuda/device/float_forward.h"
#include "cuda/device/float_tiles.h"
#include "cuda/device/forward_options.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/words.h"

// The forward pass of the additive score, in float32.
//
// A block computes queries as float_forward() does (device/float_forward.h), with other scores.
namespace qkv::cuda {

// ---- the kernel -----------------------------------------------------------------------------

template <class Shape>
QKV_DEVICE void additive(const AdditiveArguments& x) {
  const ForwardArguments& a = x.call;
  BlockPlace place;
  if (!find_place<Shape>(a, a.row_blocks, place)) return;
  const int key_head = key_head_of(a, place);
  const FloatRows v = float_rows(a, a.v, place.b, value_head_of(a, key_head), place.k0);
  const int entry = a.starts_q.data == nullptr ? place.b : 0;
  const ProjectedRows left = projected_rows(x, x.left, entry, place.h, place.q0, place.Tq);
  const ProjectedRows right = projected_rows(
      x, x.right, entry, x.right.heads == a.H ? place.h : key_head, place.k0, place.Tk);
  if (thread_index() == 0) store_option_offsets<Shape>(a, place);
  const float factor = exponent_factor<true>(a);
  RowState<Shape> state;
  clear_state<Shape>(state);

  const BlockBounds bounds = find_bounds<Shape>(a, place);
  const int first_tile = bounds.last_end > 0 ? bounds.first_begin / Shape::kKeys : 0;
  const int end_tile = (bounds.last_end + Shape::kKeys - 1) / Shape::kKeys;
  const auto copy = [&](int tile, int chunk) {
    copy_chunk<Shape>(x, left, place.first, right, tile * Shape::kKeys, chunk);
  };
  if (first_tile < end_tile) copy(first_tile, 0);
  commit_copies();
  QKV_ROLLED
  for (int tile = first_tile; tile < end_tile; ++tile) {
    const int j = tile * Shape::kKeys;
    ScoreTile<Shape> s;
    sum_pairs<Shape>(
        x, place.h, [&](int chunk) { copy(tile, chunk); },
        [&] {
          load_values<Shape>(a, place, v, j);
          stage_options<Shape>(a, place, j);
        },
        [&] {
          if (tile + 1 < end_tile) copy(tile + 1, 0);
        },
        s);
    wait_copies<0>();
    sync_threads();  // values and options are there, and all threads have finished with the chunk
    attend_tile<Shape>(a, place, bounds, tile, factor, s, state);
  }
  wait_copies<0>();
  store_rows<Shape>(a, place, factor, state);
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_ADDITIVE_H_
