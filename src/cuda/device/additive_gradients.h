// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_ADDITIVE_GRADIENTS_H_
#define QKV_CUDA_DEVICE_ADDITIVE_GRADIENTS_H_

#include <cstdint>

#include "cuda/device/additive_arguments.h"
#include "cuda/device/additive_pairs.h"
#include "cuda/device/additive_shape.h"
#include "cuda/device/arrays.h"
#include "cuda/device/forward_options.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/gradient_statistics.h"
#include "cuda/device/gradient_tiles.h"
#include "cuda/device/row_statistics.h"
#include "cuda/device/words.h"

// The gradients of the additive score, in float32, of any number of channels and units. One kernel
// prepares what the others need of each query; one owns queries and sums over keys, one owns keys
// and sums over the queries of the heads that read them. For a tile of pairs both compute scores
// and their gradients g, scale included, and then, over the same chunks of units again,
//   dx_iu = 4 v_u sum_j g_ij r (1 - r)      dy_ju = 4 v_u sum_i g_ij r (1 - r)
// since 1 - tanh^2 = 4 r (1 - r). Sums over more than a tile are in memory, where the block that
// owns them adds to them; they are -0 in rows without an unmasked pair, which keeps NaN and
// infinity in other arrays out of what follows from dx and dy: device/additive_products.h.
namespace qkv::cuda {

using PairTile = ScoreTile<AdditiveGradientShape>;

// ---- numbers of a head ------------------------------------------------------------------------

struct FloatRows {
  const float* data;
  std::int64_t row;
  std::int64_t col;
};

QKV_DEVICE FloatRows float_rows(const ForwardArguments& a, const DeviceArray& x, int b, int head,
                                std::int64_t first) {
  return {static_cast<const float*>(x.data) + offset_of(a, x, b, head) + first * x.row, x.row,
          x.col};
}

// Copies channels c0 .. c0+kChannels-1 of 64 rows from row `first` on to shared memory. What is
// outside of the matrix becomes 0. place(row, c) is the address of an element.
template <class Place>
QKV_DEVICE void load_block(const FloatRows& x, int first, int limit, int c0, int width,
                           const Place& place) {
  using Shape = AdditiveGradientShape;
  static_assert(Shape::kRows == Shape::kKeys && Shape::kThreads % Shape::kChannels == 0);
  const int c = thread_index() % Shape::kChannels;
  QKV_ROLLED
  for (int row = thread_index() / Shape::kChannels; row < Shape::kRows;
       row += Shape::kThreads / Shape::kChannels) {
    float value = 0;
    if (first + row < limit && c0 + c < width) {
      value = x.data[(first + row) * x.row + (c0 + c) * x.col];
    }
    store_shared(place(row, c), float_to_bits(value));
  }
}
QKV_DEVICE std::uint32_t dout_place(int row, int c) {
  using Shape = AdditiveGradientShape;
  return Shape::kDout + static_cast<std::uint32_t>(row * Shape::kRowPitch + c * 4);
}
QKV_DEVICE std::uint32_t value_place(int key, int c) {
  using Shape = AdditiveGradientShape;
  return Shape::kV + static_cast<std::uint32_t>(c * Shape::kRightPitch + key_place(key) * 4);
}

// ---- gradients of scores ------------------------------------------------------------------------

// Computes dout . v of the block's pairs; channels ascend.
QKV_DEVICE void multiply_values(const FloatRows& dout, const FloatRows& v, const BlockPlace& place,
                                int first_key, int E, PairTile& ds) {
  using Shape = AdditiveGradientShape;
  const std::uint32_t own_row = dout_place(row_in_block<Shape>(0, 0), 0);
  const auto own_key = static_cast<std::uint32_t>(thread_index() % 4 * 16);
  for_each_score<Shape>(ds, [](int, int, int, float& x) { x = 0; });
  QKV_ROLLED
  for (int c0 = 0; c0 < E; c0 += Shape::kChannels) {
    sync_threads();  // all have finished with the last channels
    load_block(dout, place.first, place.Tq, c0, E, dout_place);
    load_block(v, first_key, place.Tk, c0, E, value_place);
    sync_threads();
    QKV_ROLLED
    for (int c = 0; c < Shape::kChannels; c += 4) {
      const auto at = static_cast<std::uint32_t>(c * 4);
      const Words4 left[2] = {load_shared_words(own_row + at),
                              load_shared_words(own_row + 8 * Shape::kRowPitch + at)};
      QKV_UNROLL
      for (int n = 0; n < 4; ++n) {
        const std::uint32_t row =
            Shape::kV + own_key + static_cast<std::uint32_t>((c + n) * Shape::kRightPitch);
        QKV_UNROLL
        for (int part = 0; part < Shape::kKeys / 16; ++part) {
          const Words4 right = load_shared_words(row + static_cast<std::uint32_t>(part * 64));
          QKV_UNROLL
          for (int m = 0; m < 4; ++m) {
            QKV_UNROLL
            for (int half = 0; half < 2; ++half) {
              float& x = tile_element<Shape>(ds, half, part, m);
              x = fused(bits_to_float(left[half].w[n]), bits_to_float(right.w[m]), x);
            }
          }
        }
      }
    }
  }
}

// Whether a weight is that of a masked pair.
QKV_DEVICE bool is_masked_weight(float w) {
  return float_to_bits(w) == float_to_bits(masked_weight());
}

// Replaces sums over units in `w` by weights, and dout . v in `ds` by the gradients of these sums,
// as make_gradients() does. Masked pairs have -0 in both, and no others have it in `ds`. Returns
// whether there are any.
QKV_DEVICE bool make_pair_gradients(const ForwardArguments& a, const BlockPlace& place,
                                    const BlockBounds& bounds, int first_key,
                                    const GradientRows<AdditiveGradientShape>& rows, float factor,
                                    PairTile& w, PairTile& ds) {
  using Shape = AdditiveGradientShape;
  const bool masks = make_gradients<Shape>(a, place, is_inside<Shape>(place, bounds, first_key),
                                           first_key, rows, factor, w, ds);
  for_each_score<Shape>(ds, [&](int r, int n, int e, float& x) {
    const bool masked = is_masked_weight(w.at[0][n][r * 2 + e]);
    x = masked ? masked_weight() : rounded_sum(rounded_product(x, a.scale), 0);
  });
  return masks;
}

// Sums the exponentials of the scores of the block's queries.
QKV_DEVICE void sum_pair_exponentials(const AdditiveArguments& x, const BlockPlace& place,
                                      const ProjectedRows& left, const ProjectedRows& right,
                                      float factor, SoftmaxState<AdditiveGradientShape>& state) {
  using Shape = AdditiveGradientShape;
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

// Adds factor * x to a sum of a row that has an unmasked pair: the sum is not -0.
QKV_DEVICE void add_to_sum(float factor, float x, float& sum) {
  sum = rounded_sum(fused(factor, x, sum), 0);
}

// Whether row `half` of this thread has an unmasked pair in a tile of gradients of scores.
QKV_DEVICE bool has_pairs(const PairTile& g, int half) {
  using Shape = AdditiveGradientShape;
  int any = 0;
  QKV_UNROLL
  for (int n = 0; n < Shape::kKeyTiles; ++n) {
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) any |= is_masked_weight(g.at[0][n][2 * half + e]) ? 0 : 1;
  }
  any |= exchange(any, 1);
  return (any | exchange(any, 2)) != 0;
}

// Calls add(quad, half, slopes, units) with the sums over a row's columns of g r (1 - r) and of g
// (1/2 - r), of unit lane % 4 of each quad of a chunk: those of a thread ascend, then the four
// threads. Rows without an unmasked pair are left out.
template <bool kPlain, class Add>
QKV_DEVICE void sum_units(int quads, PairTile& g, const Add& add) {
  using Shape = AdditiveGradientShape;
  const bool is_live[2] = {has_pairs(g, 0), has_pairs(g, 1)};
  const int own_unit = thread_index() % 4;
  float slopes[2], units[2], own_slopes[2] = {0, 0}, own_units[2] = {0, 0};
  for_each_denominator<Shape, kPlain>(
      quads, [&](int) { slopes[0] = slopes[1] = units[0] = units[1] = 0; },
      [&](int half, int part, int n, float denominator) {
        const float own = tile_element<Shape>(g, half, part, n);
        float r = reciprocal(denominator);
        // Projections of a masked pair may be NaN. If those of another are, its g is.
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

// The number of unit lane % 4 of a quad in a row of sums with the layout of projections.
QKV_DEVICE float& own_sum(const AdditiveArguments& x, const Projections& sums, int entry, int head,
                          int quad, std::int64_t row) {
  const std::int64_t at = (static_cast<std::int64_t>(entry) * sums.heads + head) * x.quads + quad;
  return sums.data[(at * sums.rows + row) * 4 + thread_index() % 4];
}

// Sets the sums of 64 rows to -0: what is known of rows without an unmasked pair.
QKV_DEVICE void clear_rows(const AdditiveArguments& x, const Projections& sums, int entry, int head,
                           std::int64_t first, int count) {
  using Shape = AdditiveGradientShape;
  QKV_ROLLED
  for (int quad = 0; quad < x.quads; ++quad) {
    QKV_ROLLED
    for (int n = thread_index() / 4; n < smaller(count, Shape::kRows); n += Shape::kThreads / 4) {
      own_sum(x, sums, entry, head, quad, first + n) = masked_weight();
    }
  }
}

// ---- the kernels --------------------------------------------------------------------------------

// Where a block's arrays are.
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
  using Shape = AdditiveGradientShape;
  const ForwardArguments& a = g.pairs.call;
  BlockPlace place;
  if (!find_place<Shape>(a, a.row_blocks, place)) return;
  float products[2] = {0, 0};
  if (g.dout.data != nullptr) {
    const FloatRows dout = float_rows(a, g.dout, place.b, place.h, place.q0);
    const FloatRows out = float_rows(a, a.out, place.b, place.h, place.q0);
    QKV_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int i = place.first + row_in_block<Shape>(0, half);
      float sum = 0;
      if (i < place.Tq) {
        QKV_ROLLED
        for (int c = thread_index() % 4; c < a.E; c += 4) {
          sum = fused(dout.data[i * dout.row + c * dout.col], out.data[i * out.row + c * out.col],
                      sum);
        }
      }
      sum = rounded_sum(sum, exchange(sum, 1));
      products[half] = rounded_sum(sum, exchange(sum, 2));
    }
  }
  const float factor = exponent_factor<true>(a);
  store_statistics<Shape>(
      a, g.dlse, false, place, factor, products, [&](SoftmaxState<Shape>& state) {
        const PairRows rows = pair_rows(g.pairs, place);
        sum_pair_exponentials(g.pairs, place, rows.left, rows.right, factor, state);
      });
}

// Sums over the keys of the block's queries, tile after tile from key 0 on: dx, and for du.
QKV_DEVICE void additive_gradients_queries(const AdditiveGradientArguments& g) {
  using Shape = AdditiveGradientShape;
  const AdditiveArguments& x = g.pairs;
  const ForwardArguments& a = x.call;
  BlockPlace place;
  if (!find_place<Shape>(a, a.row_blocks, place)) return;
  const PairRows rows = pair_rows(x, place);
  const bool has_dout = g.dout.data != nullptr;
  const FloatRows v = float_rows(a, a.v, place.b, value_head_of(a, rows.key_head), place.k0);
  const FloatRows dout = float_rows(a, g.dout, place.b, place.h, place.q0);
  const std::int64_t first_row = place.q0 + place.first;
  for (const Projections* sums : {&g.left, &g.units}) {
    clear_rows(x, *sums, rows.entry, place.h, first_row, place.Tq - place.first);
  }
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
    add_to_sum(rounded_product(4, v_u), slopes, own_sum(x, g.left, rows.entry, place.h, at, row));
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
    multiply_values(dout, v, place, first_key, has_dout ? a.E : 0, ds);
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

// Writes this thread's pairs to shared memory, [kRows, kKeys].
QKV_DEVICE std::uint32_t pair_place(int row, int key) {
  using Shape = AdditiveGradientShape;
  return Shape::kPairs + static_cast<std::uint32_t>(row * Shape::kPairPitch + key * 4);
}
QKV_DEVICE void store_pair_tile(const PairTile& x) {
  using Shape = AdditiveGradientShape;
  for_each_pair<Shape>([&](int m, int half, int n, int row, int key) {
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) {
      store_shared(pair_place(row, key + e), float_to_bits(x.at[m][n][2 * half + e]));
    }
  });
}
// Reads it with rows and columns exchanged.
QKV_DEVICE void load_transposed_tile(PairTile& x) {
  using Shape = AdditiveGradientShape;
  static_assert(Shape::kRows == Shape::kKeys);
  for_each_pair<Shape>([&](int m, int half, int n, int key, int row) {
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) {
      x.at[m][n][2 * half + e] = bits_to_float(load_shared(pair_place(row + e, key)));
    }
  });
}

// Adds the products of the weights in shared memory and the block's rows of dout to the sums of the
// tile's keys; queries ascend. kMasks: masked pairs, whose dout may be infinite or NaN, add
// nothing.
template <bool kMasks>
QKV_DEVICE void add_value_gradients(const FloatRows& dout, const BlockPlace& place, int first_key,
                                    int E, const FloatRows& sums) {
  using Shape = AdditiveGradientShape;
  const int own_key = thread_index() / 8 * 4;
  const int own_channel = thread_index() % 8 * 4;
  static_assert(Shape::kThreads / 8 * 4 == Shape::kKeys && Shape::kChannels == 32);
  QKV_ROLLED
  for (int c0 = 0; c0 < E; c0 += Shape::kChannels) {
    sync_threads();  // weights are there, and all have finished with the last channels
    load_block(dout, place.first, place.Tq, c0, E, dout_place);
    sync_threads();
    float products[4][4];
    clear_sums(products);
    QKV_ROLLED
    for (int i = 0; i < Shape::kRows; ++i) {
      const Words4 w = load_shared_words(pair_place(i, own_key));
      const Words4 x = load_shared_words(dout_place(i, own_channel));
      QKV_UNROLL
      for (int n = 0; n < 4; ++n) {
        if (kMasks && is_masked_weight(bits_to_float(w.w[n]))) continue;
        QKV_UNROLL
        for (int c = 0; c < 4; ++c) {
          products[n][c] = fused(bits_to_float(w.w[n]), bits_to_float(x.w[c]), products[n][c]);
        }
      }
    }
    QKV_UNROLL
    for (int n = 0; n < 4; ++n) {
      const int key = first_key + own_key + n;
      QKV_UNROLL
      for (int c = 0; c < 4; ++c) {
        const int channel = c0 + own_channel + c;
        if (key >= place.Tk || channel >= E) continue;
        float* const to = const_cast<float*>(sums.data) + key * sums.row + channel * sums.col;
        *to = rounded_sum(*to, products[n][c]);
      }
    }
  }
}

// Calls f(key, channel) for the elements of 64 keys of values.
template <class F>
QKV_DEVICE void for_each_value(const BlockPlace& place, int first_key, int E, const F& f) {
  using Shape = AdditiveGradientShape;
  QKV_ROLLED
  for (int n = thread_index(); n < Shape::kKeys * E; n += Shape::kThreads) {
    const int key = first_key + n / E;
    if (key < place.Tk) f(key, n % E);
  }
}

// Sums over the queries of the block's keys, head after head of their group, from query 0 on: dy
// and dv.
QKV_DEVICE void additive_gradients_keys(const AdditiveGradientArguments& g) {
  using Shape = AdditiveGradientShape;
  const AdditiveArguments& x = g.pairs;
  const ForwardArguments& a = x.call;
  BlockPlace place;
  int first_key = 0;
  if (!find_key_place<Shape>(a, a.G, place, first_key)) return;
  const int key_head = place.h;
  const int value_head = value_head_of(a, key_head);
  const int group = a.H / a.G;
  const bool has_dout = g.dout.data != nullptr;
  const bool of_keys = g.right.data != nullptr;
  const bool of_values = g.dv.data != nullptr;
  const float factor = exponent_factor<true>(a);
  const FloatRows v = float_rows(a, a.v, place.b, value_head, place.k0);
  const FloatRows value_sums = float_rows(a, g.value_sums, place.b, value_head, place.k0);
  const auto value_sum = [&](int key, int channel) -> float& {
    return const_cast<float*>(value_sums.data)[key * value_sums.row + channel * value_sums.col];
  };
  if (of_values) {
    for_each_value(place, first_key, a.E, [&](int key, int c) { value_sum(key, c) = 0; });
  }
  if (of_keys) {
    const bool per_head = x.right.heads == a.H;
    const int entry = a.starts_q.data == nullptr ? place.b : 0;
    const int heads = per_head ? group : 1;
    QKV_ROLLED
    for (int n = 0; n < heads; ++n) {
      clear_rows(x, g.right, entry, key_head * heads + n, place.k0 + first_key,
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
                 own_sum(x, g.right, rows.entry, rows.right_head, chunk * kUnitQuads + quad, key));
    };
    QKV_ROLLED
    for (place.first = 0; place.first < place.Tq; place.first += Shape::kRows) {
      sync_threads();  // all have finished with the last queries, their bounds and options
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
      multiply_values(dout, v, place, first_key, has_dout && of_keys ? a.E : 0, ds);
      wait_copies<0>();
      sync_threads();  // options are there
      const bool masks =
          make_pair_gradients(a, place, bounds, first_key, statistics, factor, w, ds);
      // The vote is also a barrier: all have finished with the projections.
      const bool any_masks = any_thread(masks);
      if (of_values && has_dout) {
        store_pair_tile(w);
        if (any_masks) {
          add_value_gradients<true>(dout, place, first_key, a.E, value_sums);
        } else {
          add_value_gradients<false>(dout, place, first_key, a.E, value_sums);
        }
        sync_threads();  // all have finished with the weights
      }
      if (!of_keys) continue;
      store_pair_tile(ds);
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
  const FloatRows dv = float_rows(a, g.dv, place.b, value_head, place.k0);
  for_each_value(place, first_key, a.E, [&](int key, int c) {
    float* const to = const_cast<float*>(dv.data) + key * dv.row + c * dv.col;
    const float sum = rounded_product(value_sum(key, c), a.kept_scale);
    *to = g.adds ? rounded_sum(sum, *to) : sum;
  });
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_ADDITIVE_GRADIENTS_H_
