// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_ADDITIVE_GRADIENTS_H_
#define QKV_CUDA_DEVICE_ADDITIVE_GRADIENTS_H_

#include <cstdint>

#include "cuda/device/additive_arguments.h"
#include "cuda/device/additive_pairs.h"
#include "cuda/device/additive_shape.h"
#include "cuda/device/arrays.h"
#include "cuda/device/float_tiles.h"
#include "cuda/device/forward_options.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/gradient_statistics.h"
#include "cuda/device/gradient_tiles.h"
#include "cuda/device/row_statistics.h"
#include "cuda/device/words.h"

// The gradients dx, dy and dv (of values) of the additive score, in float32, of any number of
// channels and units, by four kernels: `project` computes the projections x and y; `prepare` the
// statistics of each query; `queries` owns queries and sums over keys; `keys` owns keys and sums
// over the queries of the heads that read them. `queries` and `keys` compute scores and their
// gradients g, scale included, for a tile of pairs, and then, with r = 1 / (1 + e^2(x + y)) and
// over the same chunks of units again,
//   dx_iu = 4 v_u sum_j g_ij r (1 - r)      dy_ju = 4 v_u sum_i g_ij r (1 - r)
// since 1 - tanh^2 = 4 r (1 - r). Sums over more than a tile are in memory, where the block that
// owns them adds to them. Rows of dx and dy without an unmasked pair are -0, so that NaN and
// infinity in other arrays do not reach gradients through them (device/additive_products.h).
namespace qkv::cuda {

// ---- gradients of scores ------------------------------------------------------------------------

// Sums the exponentials of the scores of the block's queries.
QKV_DEVICE void sum_pair_exponentials(const AdditiveArguments& x, const BlockPlace& place,
                                      const ProjectedRows& left, const ProjectedRows& right,
                                      float factor, SoftmaxState<FloatGradientShape>& state) {
  using Shape = FloatGradientShape;
  const ForwardArguments& a = x.call;
  if (thread_index() == 0) store_option_offsets<Shape>(a, place);
  const BlockBounds bounds = find_bounds<Shape>(a, place);
  const int begin = bounds.last_end == 0 ? 0 : bounds.first_begin / Shape::kKeys;
  const int end = (bounds.last_end + Shape::kKeys - 1) / Shape::kKeys;
  const auto copy = [&](int tile, int chunk) {
    copy_chunk<Shape>(x, left, place.first, right, tile * Shape::kKeys, chunk);
  };
  if (begin < end) copy(begin, 0);
  commit_copies();
  QKV_ROLLED
  for (int tile = begin; tile < end; ++tile) {
    const int first_key = tile * Shape::kKeys;
    PairTile s;
    sum_pairs<Shape>(
        x, place.h, [&](int chunk) { copy(tile, chunk); },
        [&] { stage_options<Shape>(a, place, first_key); },
        [&] {
          if (tile + 1 < end) copy(tile + 1, 0);
        },
        s);
    wait_copies<0>();
    sync_threads();  // options are there
    finish_scores<Shape, true>(a, place, is_inside<Shape>(place, bounds, first_key), first_key, s);
    float shrink[2];
    update_softmax<Shape>(factor, s, state, shrink);
  }
  wait_copies<0>();
}

// ---- sums over pairs ----------------------------------------------------------------------------

// Adds factor * x to a sum of a row that has an unmasked pair; the result is never -0.
QKV_DEVICE void add_to_sum(float factor, float x, float& sum) {
  sum = rounded_sum(fused(factor, x, sum), 0);
}

// Whether row `half` of this thread has an unmasked pair in a tile of gradients of scores.
QKV_DEVICE bool has_pairs(const PairTile& g, int half) {
  using Shape = FloatGradientShape;
  int any = 0;
  QKV_UNROLL
  for (int n = 0; n < Shape::kKeyTiles; ++n) {
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) any |= is_masked_weight(g.at[0][n][2 * half + e]) ? 0 : 1;
  }
  any |= exchange(any, 1);
  return (any | exchange(any, 2)) != 0;
}

// Calls add(quad, half, slopes, units) for each quad of units of a chunk and each row that has an
// unmasked pair. For unit lane % 4 of the quad, `slopes` is the sum of g r (1 - r) over the row's
// columns, and `units` is the sum of g (1/2 - r). A thread adds its own columns in ascending order;
// then the sums of the four threads of a row are added.
template <bool kPlain, class Add>
QKV_DEVICE void sum_units(int quads, PairTile& g, const Add& add) {
  using Shape = FloatGradientShape;
  const bool is_live[2] = {has_pairs(g, 0), has_pairs(g, 1)};
  const int own_unit = thread_index() % 4;
  float slopes[2], units[2], own_slopes[2] = {0, 0}, own_units[2] = {0, 0};
  for_each_denominator<Shape, kPlain>(
      quads, [&](int) { slopes[0] = slopes[1] = units[0] = units[1] = 0; },
      [&](int half, int part, int n, float denominator) {
        const float own = tile_element<Shape>(g, half, part, n);
        float r = reciprocal(denominator);
        // Projections of a masked pair may be NaN. An unmasked pair with a NaN projection has a g
        // of NaN anyway.
        if (!kPlain && is_masked_weight(own)) r = 0;
        slopes[half] = fused(own, rounded_product(r, rounded_sum(1, -r)), slopes[half]);
        units[half] = fused(own, rounded_sum(0.5F, -r), units[half]);
      },
      [&](int unit) {
        QKV_UNROLL
        for (int half = 0; half < 2; ++half) {
          QKV_UNROLL
          for (int mask = 1; mask < 4; mask *= 2) {
            slopes[half] = rounded_sum(slopes[half], exchange(slopes[half], mask));
            units[half] = rounded_sum(units[half], exchange(units[half], mask));
          }
          if (unit % 4 == own_unit) {
            own_slopes[half] = slopes[half];
            own_units[half] = units[half];
          }
          if (unit % 4 == 3 && is_live[half]) {
            add(unit / 4, half, own_slopes[half], own_units[half]);
          }
        }
      });
}
template <class Add>
QKV_DEVICE void add_units(int quads, bool plain, PairTile& g, const Add& add) {
  if (plain) {
    sum_units<true>(quads, g, add);
  } else {
    sum_units<false>(quads, g, add);
  }
}

// The element of `sums` for a row and for unit lane % 4 of a quad.
QKV_DEVICE float& own_sum(const AdditiveArguments& x, const Projections& sums, int entry, int head,
                          int quad, std::int64_t row) {
  const std::int64_t at = (static_cast<std::int64_t>(entry) * sums.heads + head) * x.quads + quad;
  return sums.data[(at * sums.rows + row) * 4 + thread_index() % 4];
}

// Sets the sums of `count` rows, at most 64, to -0, the mark of a row without an unmasked pair.
QKV_DEVICE void clear_rows(const AdditiveArguments& x, const Projections& sums, int entry, int head,
                           std::int64_t first, int count) {
  using Shape = FloatGradientShape;
  QKV_ROLLED
  for (int quad = 0; quad < x.quads; ++quad) {
    QKV_ROLLED
    for (int n = thread_index() / 4; n < smaller(count, Shape::kRows); n += Shape::kThreads / 4) {
      own_sum(x, sums, entry, head, quad, first + n) = masked_weight();
    }
  }
}

// ---- the kernels --------------------------------------------------------------------------------

// A block's entry and heads in the projections, and its projected rows.
struct PairRows {
  int entry;
  int key_head;
  int right_head;
  ProjectedRows left, right;
};
QKV_DEVICE PairRows pair_rows(const AdditiveArguments& x, const BlockPlace& place) {
  PairRows rows;
  rows.entry = x.call.starts_q.data == nullptr ? place.b : 0;
  rows.key_head = key_head_of(x.call, place);
  rows.right_head = x.right.heads == x.call.H ? place.h : rows.key_head;
  rows.left = projected_rows(x, x.left, rows.entry, place.h, place.q0, place.Tq);
  rows.right = projected_rows(x, x.right, rows.entry, rows.right_head, place.k0, place.Tk);
  return rows;
}

QKV_DEVICE void additive_gradients_project(const AdditiveGradientArguments& g) { project(g.pairs); }

QKV_DEVICE void additive_gradients_prepare(const AdditiveGradientArguments& g) {
  using Shape = FloatGradientShape;
  const ForwardArguments& a = g.pairs.call;
  BlockPlace place;
  if (!find_place<Shape>(a, a.row_blocks, place)) return;
  float products[2];
  multiply_outputs(a, g.dout, place, products);
  const float factor = exponent_factor<true>(a);
  store_statistics<Shape>(
      a, g.dlse, false, place, factor, products, [&](SoftmaxState<Shape>& state) {
        const PairRows rows = pair_rows(g.pairs, place);
        sum_pair_exponentials(g.pairs, place, rows.left, rows.right, factor, state);
      });
}

// Computes dx of the block's queries, and the sums of g (1/2 - r) from which du is computed. These
// are sums over keys, in tiles in ascending order.
QKV_DEVICE void additive_gradients_queries(const AdditiveGradientArguments& g) {
  using Shape = FloatGradientShape;
  const AdditiveArguments& x = g.pairs;
  const ForwardArguments& a = x.call;
  BlockPlace place;
  if (!find_place<Shape>(a, a.row_blocks, place)) return;
  const PairRows rows = pair_rows(x, place);
  const bool has_dout = g.dout.data != nullptr;
  const FloatRows v = float_rows(a, a.v, place.b, value_head_of(a, rows.key_head), place.k0);
  const FloatRows dout = float_rows(a, g.dout, place.b, place.h, place.q0);
  const std::int64_t first_row = place.q0 + place.first;
  clear_rows(x, g.dleft, rows.entry, place.h, first_row, place.Tq - place.first);
  clear_rows(x, g.units, rows.entry, place.h, first_row, place.Tq - place.first);
  if (thread_index() == 0) store_option_offsets<Shape>(a, place);
  const float factor = exponent_factor<true>(a);
  const GradientRows<Shape> statistics = load_gradient_rows<Shape>(a, place, factor);
  const BlockBounds bounds = find_bounds<Shape>(a, place);
  const int begin = bounds.last_end > 0 ? bounds.first_begin / Shape::kKeys : 0;
  const int end = (bounds.last_end + Shape::kKeys - 1) / Shape::kKeys;
  const auto copy = [&](int tile, int chunk) {
    copy_chunk<Shape>(x, rows.left, place.first, rows.right, tile * Shape::kKeys, chunk);
  };
  const auto add = [&](int chunk, int quad, int half, float slopes, float units) {
    const std::int64_t row = first_row + row_in_block<Shape>(0, half);
    const float v_u = unit_parameter(Shape::kUnits, quad * 4 + thread_index() % 4);
    const int at = chunk * kUnitQuads + quad;
    add_to_sum(rounded_product(4, v_u), slopes, own_sum(x, g.dleft, rows.entry, place.h, at, row));
    add_to_sum(1, units, own_sum(x, g.units, rows.entry, place.h, at, row));
  };
  if (begin < end) copy(begin, 0);
  commit_copies();
  QKV_ROLLED
  for (int tile = begin; tile < end; ++tile) {
    const int first_key = tile * Shape::kKeys;
    PairTile w, ds;
    const auto copy_of_tile = [&](int chunk) { copy(tile, chunk); };
    sum_pairs<Shape>(
        x, place.h, copy_of_tile, [&] { stage_options<Shape>(a, place, first_key); },
        [&] { copy(tile, 0); }, w);
    // The tiles of dout and v overwrite projections that are no longer needed. The next chunk is
    // being copied elsewhere.
    multiply_float_rows<Shape>(
        dout, v, place, first_key, has_dout ? a.E : 0, [] {}, ds);
    wait_copies<0>();
    sync_threads();  // options are there
    make_pair_gradients(a, place, bounds, first_key, statistics, factor, w, ds);
    for_each_chunk<Shape>(
        x, place.h, copy_of_tile, [] {},
        [&] {
          if (tile + 1 < end) copy(tile + 1, 0);
        },
        [&](int chunk, int quads, bool plain) {
          add_units(quads, plain, ds, [&](int quad, int half, float slopes, float units) {
            add(chunk, quad, half, slopes, units);
          });
        });
  }
  wait_copies<0>();
}

// Computes dy and dv of the block's keys: sums over the queries of each head of the group, heads
// and queries ascending.
QKV_DEVICE void additive_gradients_keys(const AdditiveGradientArguments& g) {
  using Shape = FloatGradientShape;
  const AdditiveArguments& x = g.pairs;
  const ForwardArguments& a = x.call;
  BlockPlace place;
  int first_key = 0;
  if (!find_key_place<Shape>(a, a.G, place, first_key)) return;
  const int key_head = place.h;
  const int value_head = value_head_of(a, key_head);
  const int group = a.H / a.G;
  const bool has_dout = g.dout.data != nullptr;
  const bool of_keys = g.dright.data != nullptr;
  const bool of_values = g.dv.data != nullptr;
  const float factor = exponent_factor<true>(a);
  const FloatRows v = float_rows(a, a.v, place.b, value_head, place.k0);
  const FloatRows value_sums = float_rows(a, g.value_sums, place.b, value_head, place.k0);
  const RowRange keys{first_key, place.Tk};
  if (of_values) clear_elements(keys, a.E, value_sums);
  if (of_keys) {
    const bool per_head = x.right.heads == a.H;
    const int entry = a.starts_q.data == nullptr ? place.b : 0;
    const int heads = per_head ? group : 1;
    QKV_ROLLED
    for (int n = 0; n < heads; ++n) {
      clear_rows(x, g.dright, entry, key_head * heads + n, place.k0 + first_key,
                 place.Tk - first_key);
    }
  }
  QKV_ROLLED
  for (place.h = key_head * group; place.h < (key_head + 1) * group; ++place.h) {
    const PairRows rows = pair_rows(x, place);
    const FloatRows dout = float_rows(a, g.dout, place.b, place.h, place.q0);
    const auto add = [&](int chunk, int quad, int half, float slopes, float) {
      const std::int64_t key = place.k0 + first_key + row_in_block<Shape>(0, half);
      const float v_u = unit_parameter(Shape::kUnits, quad * 4 + thread_index() % 4);
      add_to_sum(rounded_product(4, v_u), slopes,
                 own_sum(x, g.dright, rows.entry, rows.right_head, chunk * kUnitQuads + quad, key));
    };
    QKV_ROLLED
    for (place.first = 0; place.first < place.Tq; place.first += Shape::kRows) {
      sync_threads();  // all threads have finished with the previous queries, bounds and options
      if (place.first == 0 && thread_index() == 0) store_option_offsets<Shape>(a, place);
      const BlockBounds bounds = find_bounds<Shape>(a, place);
      if (bounds.last_end <= first_key || bounds.first_begin >= first_key + Shape::kKeys) continue;
      const auto copy = [&](int chunk) {
        copy_chunk<Shape>(x, rows.left, place.first, rows.right, first_key, chunk);
      };
      // Keys are the rows of these chunks, and queries the columns.
      const auto copy_exchanged = [&](int chunk) {
        copy_chunk<Shape>(x, rows.right, first_key, rows.left, place.first, chunk);
      };
      copy(0);
      commit_copies();
      const GradientRows<Shape> statistics = load_gradient_rows<Shape>(a, place, factor);
      PairTile w, ds;
      sum_pairs<Shape>(
          x, place.h, copy, [&] { stage_options<Shape>(a, place, first_key); },
          [&] {
            if (of_keys) copy_exchanged(0);
          },
          w);
      multiply_float_rows<Shape>(
          dout, v, place, first_key, has_dout && of_keys ? a.E : 0, [] {}, ds);
      wait_copies<0>();
      sync_threads();  // options are there
      const bool masks =
          make_pair_gradients(a, place, bounds, first_key, statistics, factor, w, ds);
      // The vote is also a barrier: all have finished with the projections.
      const bool any_masks = any_thread(masks);
      if (of_values && has_dout) {
        store_pair_tile<Summed::kQueries>(w);
        add_pair_products(any_masks, dout, {place.first, place.Tq}, keys, a.E, value_sums);
        sync_threads();  // all have finished with the weights
      }
      if (!of_keys) continue;
      store_pair_tile<Summed::kQueries>(ds);
      sync_threads();  // all gradients are there
      load_transposed_tile(ds);
      for_each_chunk<Shape>(
          x, place.h, copy_exchanged, [] {}, [] {},
          [&](int chunk, int quads, bool plain) {
            add_units(quads, plain, ds, [&](int quad, int half, float slopes, float units) {
              add(chunk, quad, half, slopes, units);
            });
          });
    }
  }
  wait_copies<0>();
  if (!of_values) return;
  sync_threads();  // all sums are there
  finish_elements(keys, a.E, value_sums, a.kept_scale, g.adds,
                  float_rows(a, g.dv, place.b, value_head, place.k0));
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_ADDITIVE_GRADIENTS_H_
