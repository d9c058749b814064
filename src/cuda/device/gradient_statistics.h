// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_GRADIENT_STATISTICS_H_
#define QKV_CUDA_DEVICE_GRADIENT_STATISTICS_H_

#include "cuda/device/arrays.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_results.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/gradient_shape.h"
#include "cuda/device/words.h"

// Statistics of each query for the gradient kernels, from the results of the forward pass.
namespace qkv::cuda {

QKV_DEVICE bool is_finite(float x) { return size_of(x) < -minus_infinity(); }

QKV_DEVICE bool has_large_lse(float lse) { return size_of(lse) > kLargeLse && is_finite(lse); }

// The statistics of a row with a large lse, from its largest score m and the sum l of exp2(factor
// (s - m)). If rounding explains how lse differs from the lse that follows from m and l, statistics
// are computed from m and l; else from lse, which may cover more keys than the call has.
QKV_DEVICE RowStatistics large_statistics(const ForwardArguments& a, const BlockPlace& place,
                                          float m, float l, float factor, float lse, float delta) {
  const bool has_sink = a.sinks.data != nullptr;
  const float sink = has_sink ? sink_of(a, place.h) : 0.0F;
  const RowResult row = finish_row(m, l, factor, has_sink, sink);
  const float apart = size_of(rounded_sum(row.lse, -lse));
  if (apart <= rounded_product(kLseRounding, rounded_sum(size_of(lse), kLargeLse))) {
    return {m, row.lowered, row.one_over_sum, delta};
  }
  const float power = rounded_product(-lse, kLog2E);
  if (l == 0) return {0, power, 1, delta};
  return {m, rounded_sum(rounded_product(m, factor), power), 1, delta};
}

// Stores the statistics of the block's queries. `products` are dout . out of this thread's rows.
// Unless has_dsinks, rows without live keys are treated as others. sum(state), which sums the
// exponentials of the block's scores, is called if a row's statistics do not follow from lse alone.
template <class Shape, class Sum>
QKV_DEVICE void store_statistics(const ForwardArguments& a, const DeviceArray& dlse,
                                 bool has_dsinks, const BlockPlace& place, float factor,
                                 const float (&products)[2], const Sum& sum) {
  static_assert(Shape::kRowTiles == 1);
  float lse[2], own_dlse[2] = {0, 0};
  bool may_be_empty[2];  // lse may come from the sink alone
  bool any_asked = false;
  QKV_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int i = place.first + row_in_block<Shape>(0, half);
    const auto of_row = [&](const DeviceArray& x) {
      return real_at(x.type, x.data, offset_of(a, x, place.b, place.h) + (place.q0 + i) * x.row);
    };
    lse[half] = i < place.Tq ? of_row(a.lse) : 0.0F;
    may_be_empty[half] =
        has_dsinks && i < place.Tq && (lse[half] == sink_of(a, place.h) || !is_finite(lse[half]));
    any_asked = any_asked || has_large_lse(lse[half]) || may_be_empty[half];
    if (i < place.Tq && dlse.data != nullptr) own_dlse[half] = of_row(dlse);
  }
  SoftmaxState<Shape> state;
  clear_state<Shape>(state);
  // The vote is also a barrier: all threads have finished with shared memory.
  if (any_thread(any_asked)) sum(state);
  QKV_UNROLL
  for (int half = 0; half < 2; ++half) {
    float l = state.l[half];
    l = rounded_sum(l, exchange(l, 1));
    l = rounded_sum(l, exchange(l, 2));
    const int i = place.first + row_in_block<Shape>(0, half);
    if (i >= place.Tq || thread_index() % 4 != 0) continue;
    const float delta =
        dlse.data != nullptr ? rounded_sum(products[half], -own_dlse[half]) : products[half];
    RowStatistics row{0, rounded_product(-lse[half], kLog2E), 1, delta};
    if (may_be_empty[half] && l == 0) {
      row = {minus_infinity(), 0, 0, -own_dlse[half]};  // dout . out counts as 0 for any dout
    } else if (has_large_lse(lse[half])) {
      row = large_statistics(a, place, state.m[half], l, factor, lse[half], delta);
    }
    statistics_of(a, place, i) = row;
  }
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_GRADIENT_STATISTICS_H_
