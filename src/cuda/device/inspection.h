// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_INSPECTION_H_
#define QKV_CUDA_DEVICE_INSPECTION_H_

#include <cstdint>

#include "cuda/device/arguments.h"
#include "cuda/device/arrays.h"
#include "cuda/device/forward_options.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_shape.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/row_statistics.h"
#include "cuda/device/words.h"

// A second pass over a call's pairs, for results that the forward kernels do not compute: sums of
// weights over queries, the entropy, and the weights themselves. Scores are computed again, in the
// same tiles and order as in the forward kernels and so with the same bits, and weights from what
// the forward pass has stored of each row. No thread adds to what another has written, so results
// do not differ from run to run.
namespace qkv::cuda {

// Weights below 2^-72 of the row's largest are 0 (docs/semantics.md, "Edges").
inline constexpr float kLeastPower = -72;

// Replaces each score by its `power` (see OwnStatistics), or by -inf where the weight is 0. A row
// that is NaN has a NaN power for each key that is not masked.
template <class Shape>
QKV_DEVICE void make_powers(const OwnStatistics<Shape>& rows, float factor, ScoreTile<Shape>& s) {
  for_each_power<Shape>(rows, factor, s, [](int, int, int, float& x, float power) {
    const bool masked = x == minus_infinity();
    x = masked || power < kLeastPower ? minus_infinity() : power;
  });
}

// Waits for the started copies of q, k and options, then computes the powers of a tile in `s`.
template <class Shape, class Tiles>
QKV_DEVICE void powers_of_tile(const ForwardArguments& a, const BlockPlace& place,
                               const BlockBounds& bounds, int first_key,
                               const OwnStatistics<Shape>& rows, float factor,
                               ScoreTile<Shape>& s) {
  wait_copies<0>();
  sync_threads();  // all parts are there
  multiply_keys<Shape, Tiles>(s);
  finish_scores<Shape, true>(a, place, is_inside<Shape>(place, bounds, first_key), first_key, s);
  make_powers<Shape>(rows, factor, s);
}

QKV_DEVICE float weight_of(float power, float factor) {
  return power == minus_infinity() ? 0.0F : rounded_product(exp2_of(power), factor);
}

// ---- sums over queries ------------------------------------------------------------------------

// |v_j|, computed from elements divided by the largest one, so that no square overflows.
QKV_DEVICE float norm_of(const DeviceRows& v, int j, int E, bool is_bfloat16) {
  const auto element = [&](int c) {
    const std::uint16_t bits = v.data[j * v.row + c * v.col];
    return size_of(is_bfloat16 ? widened(BFloat16Tiles{}, bits) : widened(Float16Tiles{}, bits));
  };
  float largest = 0;
  QKV_ROLLED
  for (int c = 0; c < E; ++c) {
    const float x = element(c);
    if (!(x <= largest)) largest = x;  // also if x is NaN
    if (largest != largest) return largest;
  }
  if (largest == 0 || largest == -minus_infinity()) return largest;
  float sum = 0;
  QKV_ROLLED
  for (int c = 0; c < E; ++c) {
    const float x = divide(element(c), largest);
    sum = fused(x, x, sum);
  }
  return rounded_product(largest, square_root(sum));
}

// Sums weights over the queries, for each of the block's kKeys keys: over a thread's rows ascending
// in i, then over the lanes of a warp, then over the warps.
template <class Shape, class Tiles>
QKV_DEVICE void sum_columns(const ForwardArguments& a) {
  BlockPlace place;
  int first_key = 0;
  if (!find_key_place<Shape>(a, a.H, place, first_key)) return;
  const int t = thread_index();
  const int key_head = key_head_of(a, place);
  const DeviceRows q = rows_of(a, a.q, place.b, place.h, place.q0);
  const DeviceRows k = rows_of(a, a.k, place.b, key_head, place.k0);
  if (t == 0) store_option_offsets<Shape>(a, place);
  const float factor = exponent_factor<true>(a);
  float sums[Shape::kKeyTiles][2];
  QKV_UNROLL
  for (int n = 0; n < Shape::kKeyTiles; ++n) sums[n][0] = sums[n][1] = 0;

  load_rows<Shape, Shape::kKeys>(Shape::kK, k, first_key, place.Tk, a.D);
  QKV_ROLLED
  for (place.first = 0; place.first < place.Tq; place.first += Shape::kRows) {
    sync_threads();  // all threads have finished with the previous q, its bounds and options
    const BlockBounds bounds = find_bounds<Shape>(a, place);
    if (bounds.last_end <= first_key || bounds.first_begin >= first_key + Shape::kKeys) continue;
    load_rows<Shape, Shape::kRows>(Shape::kQ, q, place.first, place.Tq, a.D);
    stage_options<Shape>(a, place, first_key);
    commit_copies();
    const OwnStatistics<Shape> rows = load_statistics<Shape>(a, place, factor);
    ScoreTile<Shape> s;
    powers_of_tile<Shape, Tiles>(a, place, bounds, first_key, rows, factor, s);
    for_each_score<Shape>(s, [&](int r, int n, int e, float& x) {
      sums[n][e] = rounded_sum(sums[n][e], weight_of(x, rows.factor[r]));
    });
  }
  wait_copies<0>();
  QKV_UNROLL
  for (int n = 0; n < Shape::kKeyTiles; ++n) {
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) {
      // Lanes with equal lane % 4 have the same keys.
      QKV_UNROLL
      for (int mask = 4; mask < kLanes; mask *= 2) {
        sums[n][e] = rounded_sum(sums[n][e], exchange(sums[n][e], mask));
      }
      if (t % kLanes < 4) {
        const int j = n * 8 + t % 4 * 2 + e;
        store_shared(Shape::kWeights + (t / kLanes * Shape::kKeys + j) * 4,
                     float_to_bits(sums[n][e]));
      }
    }
  }
  sync_threads();
  const int j = first_key + t;
  if (t >= Shape::kKeys || j >= place.Tk) return;
  float sum = 0;
  QKV_UNROLL
  for (int warp = 0; warp < Shape::kWarps; ++warp) {
    sum = rounded_sum(sum,
                      bits_to_float(load_shared(Shape::kWeights + (warp * Shape::kKeys + t) * 4)));
  }
  const auto store = [&](const DeviceArray& x, float value) {
    static_cast<float*>(const_cast<void*>(
        x.data))[offset_of(a, x, place.b, place.h) + (place.k0 + j) * x.row] = value;
  };
  if (a.column_sums.data != nullptr) store(a.column_sums, sum);
  if (a.value_sums.data == nullptr) return;
  const DeviceRows v = rows_of(a, a.v, place.b, value_head_of(a, key_head), place.k0);
  // A key that no query may attend to has the sum 0, whatever its value is.
  store(a.value_sums,
        sum == 0 ? 0.0F : rounded_product(norm_of(v, j, a.E, a.v.type == Element::kBFloat16), sum));
}

// ---- results of rows --------------------------------------------------------------------------

// Stores a tile of weights; `to` is the address of the weight of query 0 and key 0.
template <class Shape>
QKV_DEVICE void store_weights(const ForwardArguments& a, const BlockPlace& place, float* to,
                              int first_key, const ScoreTile<Shape>& w) {
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) {
    const int i = place.first + row_in_block<Shape>(r / 2, r % 2);
    if (i >= place.Tq) continue;
    float* row = to + i * a.weights.row;
    QKV_UNROLL
    for (int n = 0; n < Shape::kKeyTiles; ++n) {
      QKV_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int j = first_key + n * 8 + thread_index() % 4 * 2 + e;
        if (j < place.Tk) row[j * a.weights.col] = w.at[r / 2][n][r % 2 * 2 + e];
      }
    }
  }
}

// Stores the entropy and the weights, if requested, of the block's queries.
template <class Shape, class Tiles>
QKV_DEVICE void inspect_rows(const ForwardArguments& a) {
  BlockPlace place;
  if (!find_place<Shape>(a, a.inspected_blocks, place)) return;
  const int lane = thread_index() % kLanes;
  const int key_head = key_head_of(a, place);
  const DeviceRows q = rows_of(a, a.q, place.b, place.h, place.q0);
  const DeviceRows k = rows_of(a, a.k, place.b, key_head, place.k0);
  if (thread_index() == 0) store_option_offsets<Shape>(a, place);
  const float factor = exponent_factor<true>(a);
  const OwnStatistics<Shape> rows = load_statistics<Shape>(a, place, factor);
  float powers[2 * Shape::kRowTiles];  // sum of weight * power
  float sums[2 * Shape::kRowTiles];    // sum of weights
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) powers[r] = sums[r] = 0;
  float* weights = static_cast<float*>(const_cast<void*>(a.weights.data)) +
                   offset_of(a, a.weights, place.b, place.h);

  const BlockBounds bounds = find_bounds<Shape>(a, place);
  load_rows<Shape, Shape::kRows>(Shape::kQ, q, place.first, place.Tq, a.D);
  // If weights are stored, all tiles are visited: the weights of masked pairs are stored as 0.
  const bool all = a.weights.data != nullptr;
  const int begin = all || bounds.last_end == 0 ? 0 : bounds.first_begin / Shape::kKeys;
  const int end = ((all ? place.Tk : bounds.last_end) + Shape::kKeys - 1) / Shape::kKeys;
  QKV_ROLLED
  for (int tile = begin; tile < end; ++tile) {
    const int first_key = tile * Shape::kKeys;
    sync_threads();  // all threads have finished with the previous k and its options
    load_rows<Shape, Shape::kKeys>(Shape::kK, k, first_key, place.Tk, a.D);
    stage_options<Shape>(a, place, first_key);
    commit_copies();
    ScoreTile<Shape> s;
    powers_of_tile<Shape, Tiles>(a, place, bounds, first_key, rows, factor, s);
    for_each_score<Shape>(s, [&](int r, int, int, float& x) {
      const float weight = weight_of(x, rows.factor[r]);
      sums[r] = rounded_sum(sums[r], weight);
      powers[r] = fused(weight, x == minus_infinity() ? 0.0F : x, powers[r]);
      x = weight;
    });
    if (all) store_weights<Shape>(a, place, weights, first_key, s);
  }
  wait_copies<0>();
  if (a.entropy.data == nullptr) return;
  auto* entropy = static_cast<float*>(const_cast<void*>(a.entropy.data)) +
                  offset_of(a, a.entropy, place.b, place.h) + place.q0 * a.entropy.row;
  QKV_UNROLL
  for (int r = 0; r < 2 * Shape::kRowTiles; ++r) {
    QKV_UNROLL
    for (int mask = 1; mask < 4; mask *= 2) {
      powers[r] = rounded_sum(powers[r], exchange(powers[r], mask));
      sums[r] = rounded_sum(sums[r], exchange(sums[r], mask));
    }
    const int i = place.first + row_in_block<Shape>(r / 2, r % 2);
    if (i >= place.Tq || lane % 4 != 0) continue;
    // -sum w ln w for w = factor 2^power.
    const float logs = fused(sums[r], log2_of(rows.factor[r]), powers[r]);
    entropy[i * a.entropy.row] = rows.factor[r] == 0 ? 0.0F : rounded_product(-logs, kLn2);
  }
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_INSPECTION_H_
