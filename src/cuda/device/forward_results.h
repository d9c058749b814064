// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_FORWARD_RESULTS_H_
#define QKV_CUDA_DEVICE_FORWARD_RESULTS_H_

#include "cuda/device/arguments.h"
#include "cuda/device/arrays.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/words.h"

// The results of a row, from its state after the last tile.
namespace qkv::cuda {

// Stores the two 16-bit numbers of `pair` as channels `channel` and `channel` + 1 of a row.
// Channels from `width` on do not exist and are left out.
QKV_DEVICE void store_channels(const DeviceArray& to, std::uint16_t* row, int channel, int width,
                               std::uint32_t pair) {
  std::uint16_t* const at = row + channel * to.col;
  if (to.vectors && channel + 1 < width) {
    *reinterpret_cast<std::uint32_t*>(at) = pair;
    return;
  }
  if (channel < width) *at = static_cast<std::uint16_t>(pair);
  if (channel + 1 < width) at[to.col] = static_cast<std::uint16_t>(pair >> 16);
}

QKV_DEVICE float sink_of(const ForwardArguments& a, int h) {
  return real_at(a.sinks.type, a.sinks.data, h * a.sinks.head);
}

// The results of a row, from its largest score m and the sum l of 2^(exponent factor * (s - m)).
struct RowResult {
  float factor;  // by which o is multiplied
  float lse;
  float row_max;
  float lowered;  // as in RowStatistics
  float one_over_sum;
};

QKV_DEVICE RowResult finish_row(float m, float l, float factor, bool has_sink, float sink) {
  const bool empty = l == 0;
  float top = empty ? minus_infinity() : rounded_product(m, factor);  // as an exponent of 2
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

// Stores statistics, lse and row_max of this thread's rows, and calls store(row, m, half, weight,
// zero) for each row of out, which must write o * weight, or 0 if `zero`, to the address `row`.
template <class Shape, class T, class Store>
QKV_DEVICE void finish_rows(const ForwardArguments& a, const BlockPlace& place, float factor,
                            const RowState<Shape>& state, const Store& store) {
  const int lane = thread_index() % kLanes;
  const bool has_sink = a.sinks.data != nullptr;
  const float sink = has_sink ? sink_of(a, place.h) : 0.0F;
  auto* out = static_cast<T*>(const_cast<void*>(a.out.data)) +
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
      // A row without live keys is 0, even if its sums o are not: 0 * NaN is NaN.
      store(out + i * a.out.row, m, half, rounded_product(row.factor, a.kept_scale), l == 0);
    }
  }
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_FORWARD_RESULTS_H_
