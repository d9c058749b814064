// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_GRADIENTS_H_
#define QKV_CUDA_DEVICE_GRADIENTS_H_

#include "cuda/device/arrays.h"
#include "cuda/device/forward_options.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_results.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/gradient_arguments.h"
#include "cuda/device/gradient_scales.h"
#include "cuda/device/gradient_shape.h"
#include "cuda/device/gradient_statistics.h"
#include "cuda/device/gradient_tiles.h"
#include "cuda/device/row_statistics.h"
#include "cuda/device/words.h"

// The gradients of q, k and v on tensor cores (Dao et al. 2022, appendix B.2), in three kernels.
// One stores the statistics of each query; in the next, each block sums over the keys of its
// queries; in the last, over the queries that read its keys. Scores are computed again, in the
// tiles and order of the forward kernels, and weights from lse. No thread adds to what another has
// written, so results do not differ from run to run.
namespace qkv::cuda {

// ---- what is needed of each query -------------------------------------------------------------

// Sets `products` to the dot products of this thread's two rows of the tile at kQ with the same
// rows of the tile at kDout.
template <class Shape, class Tiles>
QKV_DEVICE void multiply_equal_rows(float (&products)[2]) {
  static_assert(Shape::kRowTiles == 1);
  const int lane = thread_index() % kLanes;
  const int first = thread_index() / kLanes * Shape::kWarpRows;
  const std::uint32_t left = shared_chunk<Shape>(Shape::kQ, first + lane % 16, lane / 16);
  const std::uint32_t right =
      shared_chunk<Shape>(Shape::kDout, first + lane / 16 * 8 + lane % 8, lane / 8 % 2);
  float sums[2][4] = {};
  QKV_UNROLL
  for (int c = 0; c < Shape::kWidth / 16; ++c) {
    std::uint32_t x[4], y[4];
    load_matrices(x, other_chunk(left, 2 * c));
    load_matrices(y, other_chunk(right, 2 * c));
    multiply_add(Tiles{}, sums[0], x, y[0], y[1]);
    multiply_add(Tiles{}, sums[1], x, y[2], y[3]);
  }
  // One lane of a quad holds the diagonal element of each of the quad's rows.
  const bool holds = lane % 4 == lane / 8;
  QKV_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float own = lane / 4 % 2 == 0 ? sums[half][2 * half] : sums[half][2 * half + 1];
    float x = holds ? own : 0.0F;
    x = rounded_sum(x, exchange(x, 1));
    products[half] = rounded_sum(x, exchange(x, 2));
  }
}

// Sums the exponentials of the scores of the block's queries in `state`, as the forward pass does.
template <class Shape, class Tiles>
QKV_DEVICE void sum_exponentials(const ForwardArguments& a, const BlockPlace& place, float factor,
                                 SoftmaxState<Shape>& state) {
  const DeviceRows q = rows_of(a, a.q, place.b, place.h, place.q0);
  const DeviceRows k = rows_of(a, a.k, place.b, key_head_of(a, place), place.k0);
  if (thread_index() == 0) store_option_offsets<Shape>(a, place);
  const BlockBounds bounds = find_bounds<Shape>(a, place);
  load_rows<Shape, Shape::kRows>(Shape::kQ, q, place.first, place.Tq, a.D);
  commit_copies();
  const int begin = bounds.last_end == 0 ? 0 : bounds.first_begin / Shape::kKeys;
  const int end = (bounds.last_end + Shape::kKeys - 1) / Shape::kKeys;
  QKV_ROLLED
  for (int tile = begin; tile < end; ++tile) {
    const int first_key = tile * Shape::kKeys;
    sync_threads();  // all threads have finished with the previous k and its options
    load_rows<Shape, Shape::kKeys>(Shape::kK, k, first_key, place.Tk, a.D);
    stage_options<Shape>(a, place, first_key);
    commit_copies();
    wait_copies<0>();
    sync_threads();  // all parts are there
    ScoreTile<Shape> s;
    multiply_keys<Shape, Tiles>(s);
    finish_scores<Shape, true>(a, place, is_inside<Shape>(place, bounds, first_key), first_key, s);
    float shrink[2 * Shape::kRowTiles];
    update_softmax<Shape>(factor, s, state, shrink);
  }
  wait_copies<0>();
}

template <class Shape, class Tiles>
QKV_DEVICE void prepare_gradients(const GradientArguments& g) {
  const ForwardArguments& a = g.call;
  BlockPlace place;
  if (!find_place<Shape>(a, a.row_blocks, place)) return;
  const int rows = g.dout.data == nullptr ? 0 : place.Tq;
  load_rows<Shape, Shape::kRows>(Shape::kQ, rows_of(a, g.dout, place.b, place.h, place.q0),
                                 place.first, rows, a.E);
  load_rows<Shape, Shape::kRows>(Shape::kDout, rows_of(a, a.out, place.b, place.h, place.q0),
                                 place.first, rows, a.E);
  commit_copies();
  wait_copies<0>();
  sync_threads();  // both tiles are there
  float products[2];
  multiply_equal_rows<Shape, Tiles>(products);
  const float factor = exponent_factor<true>(a);
  store_statistics<Shape>(
      a, g.dlse, g.dsinks.data != nullptr, place, factor, products,
      [&](SoftmaxState<Shape>& state) { sum_exponentials<Shape, Tiles>(a, place, factor, state); });
}

// ---- gradients of queries ---------------------------------------------------------------------

template <class Shape, class Tiles>
QKV_DEVICE void query_gradients(const GradientArguments& g) {
  const ForwardArguments& a = g.call;
  BlockPlace place;
  if (!find_place<Shape>(a, a.row_blocks, place)) return;
  const int key_head = key_head_of(a, place);
  const bool has_dout = g.dout.data != nullptr;
  const DeviceRows q = rows_of(a, a.q, place.b, place.h, place.q0);
  const DeviceRows k = rows_of(a, a.k, place.b, key_head, place.k0);
  const DeviceRows v = rows_of(a, a.v, place.b, value_head_of(a, key_head), place.k0);
  const DeviceRows dout = rows_of(a, g.dout, place.b, place.h, place.q0);
  if (thread_index() == 0) store_option_offsets<Shape>(a, place);
  const float factor = exponent_factor<true>(a);
  const GradientRows<Shape> rows = load_gradient_rows<Shape>(a, place, factor);
  RowSums<Shape> dq;
  clear_sums(dq);
  RowTops<Shape> tops;
  if constexpr (kIsNarrow<Tiles>) clear_tops<Shape>(tops);

  const BlockBounds bounds = find_bounds<Shape>(a, place);
  const int begin = bounds.last_end > 0 ? bounds.first_begin / Shape::kKeys : 0;
  const int end = (bounds.last_end + Shape::kKeys - 1) / Shape::kKeys;
  const auto load_values = [&](int first_key) {
    if (has_dout) load_rows<Shape, Shape::kKeys>(Shape::kV, v, first_key, place.Tk, a.E);
    stage_options<Shape>(a, place, first_key);
  };
  load_rows<Shape, Shape::kRows>(Shape::kQ, q, place.first, place.Tq, a.D);
  if (has_dout) load_rows<Shape, Shape::kRows>(Shape::kDout, dout, place.first, place.Tq, a.E);
  if (begin < end) {
    load_rows<Shape, Shape::kKeys>(Shape::kK, k, begin * Shape::kKeys, place.Tk, a.D);
    load_values(begin * Shape::kKeys);
  }
  commit_copies();
  QKV_ROLLED
  for (int tile = begin; tile < end; ++tile) {
    const int first_key = tile * Shape::kKeys;
    ScoreTile<Shape> w, ds;
    wait_copies<0>();
    sync_threads();  // all parts of the tile are there
    multiply_both<Shape, Tiles>(has_dout, w, ds);
    const bool masks = make_gradients<Shape>(a, place, is_inside<Shape>(place, bounds, first_key),
                                             first_key, rows, factor, w, ds);
    // The vote is also a barrier: all threads have finished with v and the options.
    const bool careful =
        any_thread(masks) && any_thread(has_non_finite<Shape, Tiles, Shape::kKeys>(Shape::kK));
    if (tile + 1 < end) load_values(first_key + Shape::kKeys);
    commit_copies();
    if constexpr (kIsNarrow<Tiles>) scale_rows<Shape>(tops, ds, dq);
    if (careful) {
      store_pairs<Shape, Tiles>(Shape::kWeights, w);
      store_pairs<Shape, Tiles>(Shape::kGradients, ds);
      sync_warp();
      add_non_finite_keys<Shape, Tiles>(Shape::kGradients, Shape::kK, dq);
      sync_threads();  // all threads have read the keys
      clear_non_finite<Shape, Tiles, Shape::kKeys>(Shape::kK);
      sync_threads();
    }
    add_products<Shape, Tiles>(ds, opaque(Shape::kK), dq);
    sync_threads();  // all threads have finished with k
    if (tile + 1 < end) {
      load_rows<Shape, Shape::kKeys>(Shape::kK, k, first_key + Shape::kKeys, place.Tk, a.D);
    }
    commit_copies();
  }
  wait_copies<0>();
  std::uint16_t* const to = gradient_rows(a, g.dq, place.b, place.h, place.q0);
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) {
    const int i = place.first + row_in_block<Shape>(r / 2, r % 2);
    if (i >= place.Tq) continue;
    float scale = a.scale;
    if constexpr (kIsNarrow<Tiles>) {
      scale = rounded_product(scale, rounded_product(tops.top[r], 1 / kScoreScale));
    }
    QKV_UNROLL
    for (int c = 0; c < Shape::kChannelTiles; ++c) {
      const float(&x)[4] = dq[r / 2][c];
      store_gradients<Tiles>(g.dq, g.adds, to + i * g.dq.row, c * 8 + thread_index() % 4 * 2, a.D,
                             rounded_product(x[r % 2 * 2], scale),
                             rounded_product(x[r % 2 * 2 + 1], scale));
    }
  }
}

// ---- gradients of keys and values -------------------------------------------------------------

// Stores the sums of the block's keys, multiplied by factor_of(half) for key own_key(half).
template <class Shape, class Tiles, class Factor>
QKV_DEVICE void store_key_sums(const GradientArguments& g, const BlockPlace& place,
                               const DeviceArray& to, int head, int first_key, int width,
                               const Factor& factor_of, const KeySums<Shape>& sums) {
  std::uint16_t* const rows = gradient_rows(g.call, to, place.b, head, place.k0);
  QKV_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int j = first_key + own_key<Shape>(half);
    if (j >= place.Tk) continue;
    const float factor = factor_of(half);
    QKV_UNROLL
    for (int c = 0; c < Shape::kOwnChannelTiles; ++c) {
      const int channel = (own_chunk<Shape>() + c) * 8 + thread_index() % 4 * 2;
      store_gradients<Tiles>(to, g.adds, rows + j * to.row, channel, width,
                             rounded_product(sums[c][2 * half], factor),
                             rounded_product(sums[c][2 * half + 1], factor));
    }
  }
}

template <class Shape, class Tiles>
QKV_DEVICE void key_gradients(const GradientArguments& g) {
  const ForwardArguments& a = g.call;
  BlockPlace place;
  int first_key = 0;
  if (!find_key_place<Shape>(a, a.G, place, first_key)) return;
  const int key_head = place.h;
  const int value_head = value_head_of(a, key_head);
  const int group = a.H / a.G;
  const bool has_dout = g.dout.data != nullptr;
  const bool has_dk = g.dk.data != nullptr;
  const bool sums_dv = has_dout && g.dv.data != nullptr;
  const float factor = exponent_factor<true>(a);
  KeySums<Shape> dk, dv;
  clear_sums(dk);
  clear_sums(dv);
  if constexpr (kIsNarrow<Tiles>) clear_column_tops<Shape>();

  load_rows<Shape, Shape::kKeys>(Shape::kK, rows_of(a, a.k, place.b, key_head, place.k0), first_key,
                                 place.Tk, a.D);
  if (has_dout && has_dk) {
    load_rows<Shape, Shape::kKeys>(Shape::kV, rows_of(a, a.v, place.b, value_head, place.k0),
                                   first_key, place.Tk, a.E);
  }
  QKV_ROLLED
  for (place.h = key_head * group; place.h < (key_head + 1) * group; ++place.h) {
    const DeviceRows q = rows_of(a, a.q, place.b, place.h, place.q0);
    const DeviceRows dout = rows_of(a, g.dout, place.b, place.h, place.q0);
    QKV_ROLLED
    for (place.first = 0; place.first < place.Tq; place.first += Shape::kRows) {
      sync_threads();  // all threads have finished with the previous queries, bounds and options
      if (place.first == 0 && thread_index() == 0) store_option_offsets<Shape>(a, place);
      const BlockBounds bounds = find_bounds<Shape>(a, place);
      if (bounds.last_end <= first_key || bounds.first_begin >= first_key + Shape::kKeys) continue;
      load_rows<Shape, Shape::kRows>(Shape::kQ, q, place.first, place.Tq, a.D);
      if (has_dout) load_rows<Shape, Shape::kRows>(Shape::kDout, dout, place.first, place.Tq, a.E);
      stage_options<Shape>(a, place, first_key);
      commit_copies();
      const GradientRows<Shape> rows = load_gradient_rows<Shape>(a, place, factor);
      ScoreTile<Shape> w, ds;
      wait_copies<0>();
      sync_threads();  // all parts are there
      multiply_both<Shape, Tiles>(has_dout && has_dk, w, ds);
      const bool masks = make_gradients<Shape>(a, place, is_inside<Shape>(place, bounds, first_key),
                                               first_key, rows, factor, w, ds);
      if constexpr (kIsNarrow<Tiles>) {
        for_each_score<Shape>(
            w, [](int, int, int, float& x) { x = rounded_product(x, kWeightScale<Tiles>); });
        if (has_dk) scale_columns<Shape>(ds, dk);
      }
      store_pairs<Shape, Tiles>(opaque(Shape::kWeights), w);
      if (has_dk) store_pairs<Shape, Tiles>(opaque(Shape::kGradients), ds);
      // The vote is also a barrier: all pairs are there.
      if (any_thread(masks)) {
        const bool non_finite_q = has_non_finite<Shape, Tiles, Shape::kRows>(Shape::kQ);
        const bool non_finite_dout =
            sums_dv && has_non_finite<Shape, Tiles, Shape::kRows>(Shape::kDout);
        if (any_thread(non_finite_q || non_finite_dout)) {
          if (has_dk) add_non_finite_queries<Shape, Tiles>(Shape::kGradients, Shape::kQ, dk);
          if (sums_dv) add_non_finite_queries<Shape, Tiles>(Shape::kWeights, Shape::kDout, dv);
          sync_threads();  // all threads have read the rows
          clear_non_finite<Shape, Tiles, Shape::kRows>(Shape::kQ);
          if (sums_dv) clear_non_finite<Shape, Tiles, Shape::kRows>(Shape::kDout);
          sync_threads();
        }
      }
      if (has_dk)
        add_column_products<Shape, Tiles>(opaque(Shape::kGradients), opaque(Shape::kQ), dk);
      if (sums_dv)
        add_column_products<Shape, Tiles>(opaque(Shape::kWeights), opaque(Shape::kDout), dv);
    }
  }
  wait_copies<0>();
  sync_threads();  // tops are there, also if no query reads these keys
  if (has_dk) {
    const auto scale_of = [&](int half) {
      if constexpr (!kIsNarrow<Tiles>) return a.scale;
      const float top = bits_to_float(load_shared(top_place<Shape>(own_key<Shape>(half))));
      return rounded_product(a.scale, rounded_product(top, 1 / kScoreScale));
    };
    store_key_sums<Shape, Tiles>(g, place, g.dk, key_head, first_key, a.D, scale_of, dk);
  }
  if (g.dv.data != nullptr) {
    const float scale = rounded_product(a.kept_scale, 1 / kWeightScale<Tiles>);
    store_key_sums<Shape, Tiles>(
        g, place, g.dv, value_head, first_key, a.E, [&](int) { return scale; }, dv);
  }
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_GRADIENTS_H_
