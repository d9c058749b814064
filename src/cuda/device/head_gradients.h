// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_HEAD_GRADIENTS_H_
#define QKV_CUDA_DEVICE_HEAD_GRADIENTS_H_

#include "cuda/device/arrays.h"
#include "cuda/device/forward_options.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_results.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/gradient_arguments.h"
#include "cuda/device/gradient_shape.h"
#include "cuda/device/gradient_tiles.h"
#include "cuda/device/thread_sums.h"
#include "cuda/device/words.h"

// The gradients of sinks and of ALiBi's slopes: sums over the queries of a head. A query's term for
// its sink follows from the query's statistics. A query's term for its slope is a sum over keys,
// which distance_gradients() has computed.
namespace qkv::cuda {

// ---- slopes: the sum over keys ----------------------------------------------------------------

// The sum of ds |i + o - j| over the keys of query i, which dalibi subtracts.
QKV_DEVICE float& slope_term(const GradientArguments& g, const BlockPlace& place, int i) {
  return g.slope_terms[row_number(g.call, place, i)];
}

// Sums ds |i + o - j| over keys for each of the block's queries: a thread's keys ascending, then
// the four threads of a row.
template <class Shape, class Tiles>
QKV_DEVICE void distance_gradients(const GradientArguments& g) {
  const ForwardArguments& a = g.call;
  BlockPlace place;
  if (!find_place<Shape>(a, a.row_blocks, place)) return;
  const int key_head = key_head_of(a, place);
  const bool has_dout = g.dout.data != nullptr;
  const DeviceRows k = rows_of(a, a.k, place.b, key_head, place.k0);
  const DeviceRows v = rows_of(a, a.v, place.b, value_head_of(a, key_head), place.k0);
  if (thread_index() == 0) store_option_offsets<Shape>(a, place);
  const float factor = exponent_factor<true>(a);
  const GradientRows<Shape> rows = load_gradient_rows<Shape>(a, place, factor);
  const BlockBounds bounds = find_bounds<Shape>(a, place);
  const int begin = bounds.last_end > 0 ? bounds.first_begin / Shape::kKeys : 0;
  const int end = (bounds.last_end + Shape::kKeys - 1) / Shape::kKeys;
  load_rows<Shape, Shape::kRows>(Shape::kQ, rows_of(a, a.q, place.b, place.h, place.q0),
                                 place.first, place.Tq, a.D);
  if (has_dout) {
    load_rows<Shape, Shape::kRows>(Shape::kDout, rows_of(a, g.dout, place.b, place.h, place.q0),
                                   place.first, place.Tq, a.E);
  }
  commit_copies();
  float sums[2 * Shape::kRowTiles] = {};
  QKV_ROLLED
  for (int tile = begin; tile < end; ++tile) {
    const int first_key = tile * Shape::kKeys;
    sync_threads();  // all threads have finished with the previous keys and their options
    load_rows<Shape, Shape::kKeys>(Shape::kK, k, first_key, place.Tk, a.D);
    if (has_dout) load_rows<Shape, Shape::kKeys>(Shape::kV, v, first_key, place.Tk, a.E);
    stage_options<Shape>(a, place, first_key);
    commit_copies();
    ScoreTile<Shape> w, ds;
    wait_copies<0>();
    sync_threads();  // all parts of the tile are there
    multiply_both<Shape, Tiles>(has_dout, w, ds);
    make_gradients<Shape, false>(a, place, is_inside<Shape>(place, bounds, first_key), first_key,
                                 rows, factor, w, ds);
    for_each_score<Shape>(ds, [&](int r, int n, int e, float& x) {
      const int row = row_in_block<Shape>(r / 2, r % 2);
      const int j = first_key + n * 8 + thread_index() % 4 * 2 + e;
      sums[r] = fused(x, distance_of(place, row, j), sums[r]);
    });
  }
  wait_copies<0>();
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) {
    sums[r] = rounded_sum(sums[r], exchange(sums[r], 1));
    sums[r] = rounded_sum(sums[r], exchange(sums[r], 2));
    const int i = place.first + row_in_block<Shape>(r / 2, r % 2);
    if (i < place.Tq && thread_index() % 4 == 0) slope_term(g, place, i) = sums[r];
  }
}

// ---- the sum over queries -----------------------------------------------------------------------

// The term of a query in dsinks: the weight of the sink, whose value is 0, times -delta.
QKV_DEVICE float sink_term(const RowStatistics& row, float sink, float factor) {
  if (sink == minus_infinity()) return 0;
  if (row.m == minus_infinity()) return -row.delta;  // no key: the sink has all the weight
  const float above = rounded_sum(rounded_product(sink, kLog2E), -rounded_product(row.m, factor));
  float weight = rounded_product(exp2_of(rounded_sum(above, row.lowered)), row.factor);
  if (weight < kLeastWeight) weight = 0;
  return -rounded_product(weight, row.delta);
}

enum class HeadGradient { kSlopes, kSinks };

// Sums the terms of a head's queries, over all batch entries that share its slope or sink, in
// float64: a thread's terms ascending, then the threads in pairs.
template <HeadGradient kOf>
QKV_DEVICE void head_gradients(const GradientArguments& g) {
  const ForwardArguments& a = g.call;
  const DeviceArray& to = kOf == HeadGradient::kSinks ? g.dsinks : g.dalibi;
  const float factor = exponent_factor<true>(a);
  BlockPlace place;
  place.h = block_index() % a.H;
  const int entry = block_index() / a.H;
  const int end = to.entry == 0 ? a.B : entry + 1;
  float sink = 0;
  if constexpr (kOf == HeadGradient::kSinks) {
    sink = sink_of(a, place.h);
  }
  double sum = 0;
  QKV_ROLLED
  for (place.b = entry; place.b < end; ++place.b) {
    place.Tq = a.Tq;
    if (a.starts_q.data != nullptr) find_rows(a, place);
    QKV_ROLLED
    for (int i = thread_index(); i < place.Tq; i += kSummingThreads) {
      if constexpr (kOf == HeadGradient::kSinks) {
        sum += static_cast<double>(sink_term(statistics_of(a, place, i), sink, factor));
      } else {
        sum -= static_cast<double>(slope_term(g, place, i));
      }
    }
  }
  sum = sum_of_threads(sum);
  if (thread_index() > 0) return;
  store_real(to, g.adds, entry * to.entry + place.h * to.head, static_cast<float>(sum));
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_HEAD_GRADIENTS_H_
