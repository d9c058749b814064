// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_FORWARD_H_
#define QKV_CUDA_DEVICE_FORWARD_H_

#include "cuda/device/arguments.h"
#include "cuda/device/arrays.h"
#include "cuda/device/forward_options.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_shape.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/words.h"

// The forward pass on tensor cores with mma.sync and cp.async, for GPUs of compute capability 8.0
// and newer: FlashAttention-2 (Dao 2023), with the options of this library.
//
// A block of four warps computes kRows queries of one head. It takes the keys in tiles of kKeys,
// ascending from key 0 of the sequence, skips tiles that no query of it may attend to, and carries
// for each query the largest score m, the sum l and the weighted sum of values o. A tile without a
// live key of a query leaves its m, l and o as they are, so a query's bits do not depend on the
// other queries of the block. The threads of a quad (four lanes) share the rows lane / 4 and
// lane / 4 + 8 of a tile of 16 queries; each holds columns 2 * (lane % 4) and the next of every 8.
namespace qkv::cuda {

// ---- results --------------------------------------------------------------------------------

// The results of a row, from its largest score m and the sum l of exp2(factor (s - m)).
struct RowResult {
  float factor;  // of o
  float lse;
  float row_max;
  float lowered;  // of RowStatistics
  float one_over_sum;
};

QKV_DEVICE RowResult finish_row(float m, float l, float factor, bool has_sink, float sink) {
  const bool empty = l == 0;
  float top = empty ? minus_infinity() : rounded_product(m, factor);  // in powers of two
  float largest = empty ? minus_infinity() : m * (factor * kLn2);
  float lowered = 0;
  float sum = l;
  if (has_sink && sink != minus_infinity()) {
    if (empty) return {0, sink, sink, 0, 0};
    const float own = sink * kLog2E;
    const float both = max_of(top, own);
    lowered = rounded_sum(top, -both);
    sum = fused(l, exp2_of(lowered), exp2_of(rounded_sum(own, -both)));
    top = both;
    largest = max_of(largest, sink);
  } else if (empty) {
    return {0, minus_infinity(), minus_infinity(), 0, 0};
  }
  if (sum != sum) return {sum, sum, sum, sum, sum};
  return {divide(exp2_of(lowered), sum), rounded_product(rounded_sum(top, log2_of(sum)), kLn2),
          largest, lowered, divide(1, sum)};
}

template <class Shape, class Tiles>
QKV_DEVICE void store_results(const ForwardArguments& a, const BlockPlace& place, float factor,
                              RowState<Shape>& state) {
  const int lane = thread_index() % kLanes;
  const bool has_sink = a.sinks.data != nullptr;
  const float sink = has_sink ? real_at(a.sinks.type, a.sinks.data, place.h * a.sinks.head) : 0.0F;
  auto* out = static_cast<std::uint16_t*>(const_cast<void*>(a.out.data)) +
              offset_of(a, a.out, place.b, place.h) + place.q0 * a.out.row;
  const auto first_of = [&](const DeviceArray& x) {
    return static_cast<float*>(const_cast<void*>(x.data)) + offset_of(a, x, place.b, place.h) +
           place.q0 * x.row;
  };
  float* lse = first_of(a.lse);
  float* row_max = first_of(a.row_max);
  QKV_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QKV_UNROLL
    for (int half = 0; half < 2; ++half) {
      float l = state.l[2 * m + half];
      l = rounded_sum(l, exchange(l, 1));
      l = rounded_sum(l, exchange(l, 2));
      const int i = place.first + row_in_block<Shape>(m, half);
      if (i >= place.Tq) continue;
      const RowResult row = finish_row(state.m[2 * m + half], l, factor, has_sink, sink);
      if (a.statistics != nullptr && lane % 4 == 0) {
        statistics_of(a, place, i) = {state.m[2 * m + half], row.lowered, row.one_over_sum, 0};
      }
      if (a.lse.data != nullptr && lane % 4 == 0) lse[i * a.lse.row] = row.lse;
      if (a.row_max.data != nullptr && lane % 4 == 0) row_max[i * a.row_max.row] = row.row_max;
      if (a.out.data == nullptr) continue;
      const float weight = rounded_product(row.factor, a.kept_scale);
      QKV_UNROLL
      for (int c = 0; c < Shape::kChannelTiles; ++c) {
        const float(&o)[4] = state.o[m][c];
        const int channel = c * 8 + lane % 4 * 2;
        // A row without live keys is 0, also if the scratch it came from is not.
        const bool zero = l == 0;
        const std::uint32_t pair = zero
                                       ? 0U
                                       : rounded_pair(Tiles{}, rounded_product(o[2 * half], weight),
                                                      rounded_product(o[2 * half + 1], weight));
        const std::int64_t at = i * a.out.row + channel * a.out.col;
        if (a.out.vectors && channel + 1 < a.E) {
          *reinterpret_cast<std::uint32_t*>(out + at) = pair;
          continue;
        }
        if (channel < a.E) out[at] = static_cast<std::uint16_t>(pair);
        if (channel + 1 < a.E) out[at + a.out.col] = static_cast<std::uint16_t>(pair >> 16);
      }
    }
  }
}

// ---- the kernel -----------------------------------------------------------------------------

// kEvery: with all options; else only causal mask, window and lengths, and a scale above 0.
template <class Shape, class Tiles, bool kEvery>
QKV_DEVICE void forward(const ForwardArguments& a) {
  BlockPlace place;
  if (!find_place<Shape>(a, a.row_blocks, place)) return;
  const int key_head = static_cast<int>(static_cast<std::int64_t>(place.h) * a.G / a.H);
  const int value_head =
      static_cast<int>(static_cast<std::int64_t>(key_head) * a.value_heads / a.G);
  const DeviceRows q = rows_of(a, a.q, place.b, place.h, place.q0);
  const DeviceRows k = rows_of(a, a.k, place.b, key_head, place.k0);
  const DeviceRows v = rows_of(a, a.v, place.b, value_head, place.k0);
  if constexpr (kEvery) {
    if (thread_index() == 0) store_option_offsets<Shape>(a, place);
  }

  RowState<Shape> state;
  QKV_UNROLL
  for (int n = 0; n < 2 * Shape::kRowTiles; ++n) {
    state.m[n] = minus_infinity();
    state.l[n] = 0;
  }
  QKV_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QKV_UNROLL
    for (int c = 0; c < Shape::kChannelTiles; ++c) {
      QKV_UNROLL
      for (int e = 0; e < 4; ++e) state.o[m][c][e] = 0;
    }
  }

  const bool asks =
      kEvery && (a.bias.data != nullptr || a.keep.data != nullptr || a.padding.data != nullptr);
  const float factor = exponent_factor<kEvery>(a);

  const BlockBounds bounds = find_bounds<Shape>(a, place);
  const int first_tile = bounds.last_end > 0 ? bounds.first_begin / Shape::kKeys : 0;
  const int end_tile = (bounds.last_end + Shape::kKeys - 1) / Shape::kKeys;
  load_rows<Shape, Shape::kRows>(Shape::kQ, q, place.first, place.Tq, a.D);
  load_rows<Shape, Shape::kKeys>(Shape::kK, k, first_tile * Shape::kKeys, place.Tk, a.D);
  commit_copies();
  QKV_ROLLED
  for (int tile = first_tile; tile < end_tile; ++tile) {
    const int j = tile * Shape::kKeys;
    ScoreTile<Shape> s;
    wait_copies<0>();
    sync_threads();  // k is there, and all have finished with the last v and its options
    load_rows<Shape, Shape::kKeys>(Shape::kV, v, j, place.Tk, a.E);
    if constexpr (kEvery) stage_options<Shape>(a, place, j);
    commit_copies();
    multiply_keys<Shape, Tiles>(s);
    wait_copies<0>();
    sync_threads();  // v and the options are there, and all have finished with k
    if (tile + 1 < end_tile) {
      load_rows<Shape, Shape::kKeys>(Shape::kK, k, j + Shape::kKeys, place.Tk, a.D);
    }
    commit_copies();
    const bool inside = j >= bounds.last_begin && j + Shape::kKeys <= bounds.first_end;
    finish_scores<Shape, kEvery>(a, place, inside, j, s);
    const bool careful = (!inside || asks) && any_thread(has_non_finite<Shape, Tiles>());
    if (careful) mark_masked<Shape>(s);
    update_softmax<Shape>(factor, s, state);
    if constexpr (kEvery) {
      if (a.drops) drop_weights<Shape>(a, place, tile, s);
    }
    if (careful) {
      add_non_finite<Shape, Tiles>(s, state);
      sync_threads();  // all have read the values
      clear_non_finite<Shape, Tiles>();
      sync_threads();
    }
    multiply_values<Shape, Tiles>(s, state);
  }
  wait_copies<0>();
  store_results<Shape, Tiles>(a, place, factor, state);
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_FORWARD_H_
