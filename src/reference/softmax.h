// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_SOFTMAX_H_
#define QKV_REFERENCE_SOFTMAX_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include <qkv/view.h>

#include "core/order.h"
#include "core/stop.h"
#include "reference/row_sums.h"
#include "reference/scalar.h"
#include "reference/sum.h"

// The softmax of one row, alone or with its weighted sum of values, in the canonical order: keys in
// chunks of fixed length, each from the softmax state (-inf, 0, 0), merged in ascending order
// (Milakov and Gimelshein 2018).
namespace qkv::reference {

// The scores s_j of keys 0 .. count-1. Masked keys (live[j] == 0) are ignored. Exponentials below
// exp(least) are taken as 0.
template <class T>
struct Scores {
  const T* s = nullptr;
  const std::uint8_t* live = nullptr;
  Index count = 0;
  Index chunk = core::kKeyChunk;  // keys per chunk
  RealOf<T> least = core::kLeastExponent<RealOf<T>>;
};

// The softmax state of one row: weight_j = exp(s_j - max) / sum, over unmasked keys.
template <class T>
struct Softmax {
  T max = T(-kInfinity<T>);
  T sum = T(0);
  bool empty = true;  // no unmasked key, or only scores of -inf
  bool nan = false;   // an unmasked score (or the sink) is NaN or +inf
};

// The weighted sum acc_c = sum_j kept_j exp(s_j - max) v_jc. It is not computed if width is 0.
template <class T>
struct WeightedSum {
  const T* v = nullptr;                // rows of `width` values, one for each key
  const std::uint8_t* kept = nullptr;  // for each key: 0 if dropped, else 1
  Index width = 0;
  T* acc = nullptr;
  T* chunk_acc = nullptr;
  RowSums<T> sums = {};  // of a chunk
};

// Merges (max_b, sum_b) into a. Returns the factors for the weighted sums of a and b.
template <class T>
std::pair<T, T> merge(Softmax<T>& a, const T& max_b, const T& sum_b) {
  const bool b_larger = real_part(max_b) > real_part(a.max);
  const T max = b_larger ? max_b : a.max;
  const T factor_a = weight_exp<T>(a.max - max);
  const T factor_b = weight_exp<T>(max_b - max);
  a.sum = fused_multiply_add(a.sum, factor_a, sum_b * factor_b);
  a.max = max;
  return {factor_a, factor_b};
}

// Processes keys j0 .. j1-1: finds the maximum, then sums e_j = exp(s_j - max) and adds the
// weighted values to chunk_acc.
template <class T>
Softmax<T> softmax_chunk(const Scores<T>& x, Index j0, Index j1, const WeightedSum<T>& values) {
  Softmax<T> c;
  for (Index j = j0; j < j1; ++j) {
    if (!x.live[j]) continue;
    const RealOf<T> s = real_part(x.s[j]);
    c.empty = c.empty && s == -kInfinity<T>;
    c.nan = c.nan || std::isnan(s) || s == kInfinity<T>;
    if (s > real_part(c.max)) c.max = x.s[j];
  }
  if (c.empty || c.nan) return c;
  T partial[core::kPartialSums] = {};
  RowSums<T> sums = values.sums;
  sums.begin(j0, values.chunk_acc);
  core::for_each_term(sums.products(), j0, j1, [&](Index j) {
    if (!x.live[j]) return;
    const T e = exp_from<T>(x.least, x.s[j] - c.max);
    partial[j % core::kPartialSums] += e;
    if (values.width == 0) return;
    sums.add(j, values.kept[j] ? e : T(0), values.v + j * values.width);
  });
  sums.end();
  c.sum = tree_sum(partial);
  return c;
}

// Adds all keys to the softmax state, and their values to values.acc; `stop` is polled in each
// chunk.
template <class T>
void continue_softmax(const Scores<T>& x, const WeightedSum<T>& values, const core::StopPoint& stop,
                      Softmax<T>& state) {
  for (Index j0 = 0; j0 < x.count; j0 += x.chunk) {
    stop();
    std::fill(values.chunk_acc, values.chunk_acc + values.width, T(0));
    const Softmax<T> c = softmax_chunk(x, j0, std::min(x.count, j0 + x.chunk), values);
    state.empty = state.empty && c.empty;
    state.nan = state.nan || c.nan;
    if (c.empty || c.nan) continue;
    const auto [factor, chunk_factor] = merge(state, c.max, c.sum);
    for (Index n = 0; n < values.width; ++n) {
      values.acc[n] = fused_multiply_add(values.acc[n], factor, values.chunk_acc[n] * chunk_factor);
    }
  }
}

// Computes the softmax of all keys.
template <class T>
Softmax<T> softmax_row(const Scores<T>& x, const WeightedSum<T>& values = {},
                       const core::StopPoint& stop = {}) {
  Softmax<T> state;
  std::fill(values.acc, values.acc + values.width, T(0));
  continue_softmax(x, values, stop, state);
  return state;
}

// Merges the sink: one more score after all others, whose value row is 0. -inf means no sink.
// A sink of NaN or +inf makes a row NaN, unless the row is empty: then the sink is the row's lse.
template <class T>
void add_sink(const T& sink, Softmax<T>& state, const WeightedSum<T>& values) {
  const RealOf<T> s = real_part(sink);
  if (s == -kInfinity<T>) return;
  if (std::isnan(s) || s == kInfinity<T>) {
    state.nan = !state.empty;
    state.max = sink;
    state.sum = T(1);
    return;
  }
  const T factor = merge(state, sink, T(1)).first;
  for (Index n = 0; n < values.width; ++n) values.acc[n] *= factor;
}

// Returns lse = max + log(sum), or -inf for an empty row without a sink.
template <class T>
T log_sum_exp(const Softmax<T>& state) {
  if (state.nan) return T(kNaN<T>);
  if (real_part(state.max) == -kInfinity<T>) return T(-kInfinity<T>);
  return state.max + reference::log(state.sum);
}

// Returns w_j = exp(s_j - max) / sum: 0 if masked or the row is empty, else NaN in a NaN row.
template <class T>
T weight(const Scores<T>& x, const Softmax<T>& state, Index j) {
  if (!x.live[j] || state.empty) return T(0);
  if (state.nan) return T(kNaN<T>);
  return exp_from<T>(x.least, x.s[j] - state.max) / state.sum;
}

// Returns -sum_j w_j ln w_j over unmasked keys, where ln w_j = s_j - max - ln(sum), and a weight of
// 0 adds 0. Each chunk has partial sums, as for the exponentials, and the sums of chunks are added
// in ascending order. A sink adds nothing.
template <class T>
T entropy(const Scores<T>& x, const Softmax<T>& state) {
  if (state.nan) return T(kNaN<T>);
  if (state.empty) return T(0);
  const T log_sum = reference::log(state.sum);
  T total(0);
  for (Index j0 = 0; j0 < x.count; j0 += x.chunk) {
    T partial[core::kPartialSums] = {};
    for (Index j = j0; j < std::min(x.count, j0 + x.chunk); ++j) {
      const T w = weight(x, state, j);
      if (real_part(w) == 0) continue;
      T& sum = partial[j % core::kPartialSums];
      sum = fused_multiply_add(w, T(log_sum - (x.s[j] - state.max)), sum);
    }
    total += tree_sum(partial);
  }
  return total;
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_SOFTMAX_H_
