// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_VALUES_H_
#define QKV_TRANSLATOR_PASSES_VALUES_H_

#include <qkv/tensor.h>

#include "core/storage.h"

// Small operations between layers, on arrays of rows.
namespace qkv::app {

// The address of row (a, b) of an array [A,B,C] with contiguous channels.
template <class T, class AnyView>
T* row_at(const AnyView& view, Index a, Index b) {
  return view.template as<std::remove_const_t<T>>() + a * view.stride(0) + b * view.stride(1);
}

// Calls f(to, from) for the rows of two arrays [A,B,C] of one dtype, as T* and const T*.
template <class T, class F>
void for_each_row(const View& to, const ConstView& from, const F& f) {
  for (Index a = 0; a < to.size(0); ++a) {
    for (Index b = 0; b < to.size(1); ++b) f(row_at<T>(to, a, b), row_at<const T>(from, a, b));
  }
}

// Adds `from` to `to`, both [A,B,C].
inline void add(const View& to, const ConstView& from) {
  const Index width = to.size(2);
  core::dispatch(to.dtype(), [&]<class T>() {
    for_each_row<T>(to, from, [width](T* sum, const T* x) {
      for (Index c = 0; c < width; ++c) sum[c] += x[c];
    });
  });
}

// Entry n of the first axis of an array [N,B,C], as [1,B,C].
template <class AnyView>
AnyView entry(const AnyView& view, Index n) {
  return slice(view, 0, n, n + 1);
}

// An array [N,B,C] of equally spaced rows as rows [N*B,C].
template <class AnyView>
AnyView rows_of(const AnyView& view) {
  return reshape(view, {view.size(0) * view.size(1), view.size(2)});
}

// Writes the larger of pairs[n,2c] and pairs[n,2c+1] to to[n,c], NaN if one of them is NaN. The
// arrays are `pairs` [N,2 C] and `to` [N,C], both contiguous.
void larger_of_pairs(const ConstView& pairs, const View& to);
// The backward pass of larger_of_pairs() in place: d[n,c] replaces the larger number of its pair,
// or the first of two equal ones; 0 replaces the other number.
void larger_of_pairs_backward(const ConstView& d, const View& pairs);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_VALUES_H_
