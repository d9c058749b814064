// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_FLOAT_GRADIENTS_H_
#define QKV_CUDA_DEVICE_FLOAT_GRADIENTS_H_

#include "cuda/device/arrays.h"
#include "cuda/device/float_shape.h"
#include "cuda/device/float_tiles.h"
#include "cuda/device/forward_options.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/gradient_arguments.h"
#include "cuda/device/gradient_statistics.h"
#include "cuda/device/gradient_tiles.h"
#include "cuda/device/words.h"

// The gradients of q, k and v of dot products in float32, of any number of channels. One kernel
// stores the statistics of each query; in the next, each block sums over the keys of its queries;
// in the last, over the queries that read its keys. Sums are in global memory: one block adds all
// terms of a sum, one tile of pairs after another.
namespace qkv::cuda {

// Sums the exponentials of the scores of the block's queries in `state`, as the forward pass does.
QKV_DEVICE void sum_float_exponentials(const ForwardArguments& a, const BlockPlace& place,
                                       float factor, SoftmaxState<FloatGradientShape>& state) {
  using Shape = FloatGradientShape;
  const FloatRows q = float_rows(a, a.q, place.b, place.h, place.q0);
  const FloatRows k = float_rows(a, a.k, place.b, key_head_of(a, place), place.k0);
  if (thread_index() == 0) store_option_offsets<Shape>(a, place);
  const BlockBounds bounds = find_bounds<Shape>(a, place);
  const int begin = bounds.last_end == 0 ? 0 : bounds.first_begin / Shape::kKeys;
  const int end = (bounds.last_end + Shape::kKeys - 1) / Shape::kKeys;
  QKV_ROLLED
  for (int tile = begin; tile < end; ++tile) {
    const int first_key = tile * Shape::kKeys;
    PairTile s;
    multiply_float_rows<Shape>(
        q, k, place, first_key, a.D,
        [&] {
          stage_options<Shape>(a, place, first_key);
          commit_copies();
        },
        s);
    wait_copies<0>();
    sync_threads();  // options are there
    finish_scores<Shape, true>(a, place, is_inside<Shape>(place, bounds, first_key), first_key, s);
    float shrink[2];
    update_softmax<Shape>(factor, s, state, shrink);
  }
}

QKV_DEVICE void float_gradients_prepare(const FloatGradientArguments& x) {
  using Shape = FloatGradientShape;
  const GradientArguments& g = x.gradients;
  const ForwardArguments& a = g.call;
  BlockPlace place;
  if (!find_place<Shape>(a, a.row_blocks, place)) return;
  float products[2];
  multiply_outputs(a, g.dout, place, products);
  const float factor = exponent_factor<true>(a);
  store_statistics<Shape>(
      a, g.dlse, g.dsinks.data != nullptr, place, factor, products,
      [&](SoftmaxState<Shape>& state) { sum_float_exponentials(a, place, factor, state); });
}

// Computes the weights and the gradients of scores of a tile of pairs, and returns whether any
// thread has a masked pair. On return, no thread reads the rows in shared memory any more.
QKV_DEVICE bool make_float_pairs(const GradientArguments& g, const BlockPlace& place,
                                 const BlockBounds& bounds, int first_key, float factor,
                                 const GradientRows<FloatGradientShape>& rows, PairTile& w,
                                 PairTile& ds) {
  using Shape = FloatGradientShape;
  const ForwardArguments& a = g.call;
  const int key_head = key_head_of(a, place);
  multiply_float_rows<Shape>(
      float_rows(a, a.q, place.b, place.h, place.q0),
      float_rows(a, a.k, place.b, key_head, place.k0), place, first_key, a.D,
      [&] {
        stage_options<Shape>(a, place, first_key);
        commit_copies();
      },
      w);
  multiply_float_rows<Shape>(
      float_rows(a, g.dout, place.b, place.h, place.q0),
      float_rows(a, a.v, place.b, value_head_of(a, key_head), place.k0), place, first_key,
      g.dout.data != nullptr ? a.E : 0, [] {}, ds);
  wait_copies<0>();
  sync_threads();  // options are there
  return any_thread(make_pair_gradients(a, place, bounds, first_key, rows, factor, w, ds));
}

QKV_DEVICE void float_gradients_queries(const FloatGradientArguments& x) {
  using Shape = FloatGradientShape;
  const GradientArguments& g = x.gradients;
  const ForwardArguments& a = g.call;
  BlockPlace place;
  if (!find_place<Shape>(a, a.row_blocks, place)) return;
  const FloatRows k = float_rows(a, a.k, place.b, key_head_of(a, place), place.k0);
  const FloatRows sums = float_rows(a, x.q_sums, place.b, place.h, place.q0);
  const RowRange queries{place.first, place.Tq};
  clear_elements(queries, a.D, sums);
  if (thread_index() == 0) store_option_offsets<Shape>(a, place);
  const float factor = exponent_factor<true>(a);
  const GradientRows<Shape> rows = load_gradient_rows<Shape>(a, place, factor);
  const BlockBounds bounds = find_bounds<Shape>(a, place);
  const int begin = bounds.last_end > 0 ? bounds.first_begin / Shape::kKeys : 0;
  const int end = (bounds.last_end + Shape::kKeys - 1) / Shape::kKeys;
  QKV_ROLLED
  for (int tile = begin; tile < end; ++tile) {
    const int first_key = tile * Shape::kKeys;
    PairTile w, ds;
    const bool masks = make_float_pairs(g, place, bounds, first_key, factor, rows, w, ds);
    store_pair_tile<Summed::kKeys>(ds);
    add_pair_products(masks, k, {first_key, place.Tk}, queries, a.D, sums);
  }
  if (!g.adds) return;
  sync_threads();  // all sums are there
  finish_elements(queries, a.D, sums, 1, true, float_rows(a, g.dq, place.b, place.h, place.q0));
}

QKV_DEVICE void float_gradients_keys(const FloatGradientArguments& x) {
  using Shape = FloatGradientShape;
  const GradientArguments& g = x.gradients;
  const ForwardArguments& a = g.call;
  BlockPlace place;
  int first_key = 0;
  if (!find_key_place<Shape>(a, a.G, place, first_key)) return;
  const int key_head = place.h;
  const int value_head = value_head_of(a, key_head);
  const int group = a.H / a.G;
  const bool has_dout = g.dout.data != nullptr;
  const bool has_dk = g.dk.data != nullptr;
  const bool has_dv = g.dv.data != nullptr;
  const float factor = exponent_factor<true>(a);
  const RowRange keys{first_key, place.Tk};
  const FloatRows key_sums = float_rows(a, x.k_sums, place.b, key_head, place.k0);
  const FloatRows value_sums = float_rows(a, x.v_sums, place.b, value_head, place.k0);
  if (has_dk) clear_elements(keys, a.D, key_sums);
  if (has_dv) clear_elements(keys, a.E, value_sums);
  QKV_ROLLED
  for (place.h = key_head * group; place.h < (key_head + 1) * group; ++place.h) {
    const FloatRows q = float_rows(a, a.q, place.b, place.h, place.q0);
    const FloatRows dout = float_rows(a, g.dout, place.b, place.h, place.q0);
    QKV_ROLLED
    for (place.first = 0; place.first < place.Tq; place.first += Shape::kRows) {
      sync_threads();  // all have finished with the previous queries, their bounds and options
      if (place.first == 0 && thread_index() == 0) store_option_offsets<Shape>(a, place);
      const BlockBounds bounds = find_bounds<Shape>(a, place);
      if (bounds.last_end <= first_key || bounds.first_begin >= first_key + Shape::kKeys) continue;
      const GradientRows<Shape> rows = load_gradient_rows<Shape>(a, place, factor);
      const RowRange queries{place.first, place.Tq};
      PairTile w, ds;
      const bool masks = make_float_pairs(g, place, bounds, first_key, factor, rows, w, ds);
      if (has_dv && has_dout) {
        store_pair_tile<Summed::kQueries>(w);
        add_pair_products(masks, dout, queries, keys, a.E, value_sums);
        sync_threads();  // all have finished with the weights
      }
      if (!has_dk) continue;
      store_pair_tile<Summed::kQueries>(ds);
      add_pair_products(masks, q, queries, keys, a.D, key_sums);
    }
  }
  sync_threads();  // all sums are there
  if (has_dk && g.adds) {
    finish_elements(keys, a.D, key_sums, 1, true, float_rows(a, g.dk, place.b, key_head, place.k0));
  }
  if (has_dv) {
    finish_elements(keys, a.E, value_sums, a.kept_scale, g.adds,
                    float_rows(a, g.dv, place.b, value_head, place.k0));
  }
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_FLOAT_GRADIENTS_H_
