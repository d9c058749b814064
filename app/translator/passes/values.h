// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_VALUES_H_
#define QKV_TRANSLATOR_PASSES_VALUES_H_

#include <qkv/tensor.h>

// Small steps between layers, on arrays of rows.
namespace qkv::app {

// f.operator()<T>() for float32 or float64.
template <class F>
void with_type(DType dtype, const F& f) {
  if (dtype == DType::kFloat64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

// Row (a, b) of an array [A,B,C] with contiguous channels.
template <class T, class AnyView>
T* row_at(const AnyView& view, Index a, Index b) {
  return view.template as<std::remove_const_t<T>>() + a * view.stride(0) + b * view.stride(1);
}

// f(to, from): rows of two arrays [A,B,C] of one dtype, as T* and const T*.
template <class T, class F>
void for_each_row(const View& to, const ConstView& from, const F& f) {
  for (Index a = 0; a < to.size(0); ++a) {
    for (Index b = 0; b < to.size(1); ++b) f(row_at<T>(to, a, b), row_at<const T>(from, a, b));
  }
}

// to += from, [A,B,C].
inline void add(const View& to, const ConstView& from) {
  const Index width = to.size(2);
  with_type(to.dtype(), [&]<class T>() {
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

// [N,B,C] as rows [N*B,C], if they are equally spaced.
template <class AnyView>
AnyView rows_of(const AnyView& view) {
  return reshape(view, {view.size(0) * view.size(1), view.size(2)});
}

// pairs [N,2 C] -> to [N,C], the larger of numbers 2c and 2c+1; NaN where one is NaN.
void larger_of_pairs(const ConstView& pairs, const View& to);
// Undoes it in place: the gradient goes to the larger, of two equal ones to the first.
void larger_of_pairs_backward(const ConstView& d, const View& pairs);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_VALUES_H_
