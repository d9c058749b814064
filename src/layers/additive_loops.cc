// SPDX-License-Identifier: Apache-2.0
#include "layers/additive_loops.h"

#include <algorithm>

#include "core/elementary.h"
#include "layers/packed.h"

namespace qkv::layers {
namespace {

using kernels::ExponentialForm;
using kernels::kPanel;
using kernels::kUnitLanes;
using kernels::RowsOf;

// Plain loops with the interface of kernels/additive_kernels.h. Where the kernels keep exponentials
// of a number, the loops keep the number itself.
template <class T>
ExponentialForm keep(const T* a, Index n, T* x, T* power) {
  std::copy_n(a, n, x);
  std::fill_n(power, n, T(0));
  return ExponentialForm::kSmall;
}

template <class T>
void plain_scores(const RowsOf<const T>& left, Index rows, const T* panel, Index keys,
                  const kernels::AdditiveUnits<T>& by, T scale, const RowsOf<T>& s) {
  for (Index r = 0; r < rows; ++r) {
    const T* const query = left.data + r * left.stride;
    for (Index n = 0; n < keys; ++n) {
      T sum = 0;
      for (Index u = 0; u < by.units; ++u) {
        sum += by.v[u] * core::portable_tanh(query[u] + panel[u * kPanel + n]);
      }
      s.data[r * s.stride + n] = scale * sum;
    }
  }
}

template <class T>
void plain_pairs(ExponentialForm /*form*/, const kernels::UnitColumn<T>& left, Index rows,
                 const kernels::UnitColumn<T>& right, Index keys, const RowsOf<const T>& ds,
                 const kernels::PairSums<T>& to) {
  for (Index r = 0; r < rows; ++r) {
    for (Index n = 0; n < keys; ++n) {
      const T gradient = ds.data[r * ds.stride + n];
      for (Index u = 0; u < kUnitLanes; ++u) {
        const Index l = r * kUnitLanes + u;
        const Index k = n * kUnitLanes + u;
        const T tanh = core::portable_tanh(left.x[l] + right.x[k]);
        to.weights[l] += gradient * tanh;
        to.left[l] += gradient * (1 - tanh * tanh);
        to.right[k] += gradient * (1 - tanh * tanh);
      }
    }
  }
}

template <class T>
kernels::AdditiveKernels<T> additive_kernels_in_use(const Context& context,
                                                    std::string_view function) {
  const std::optional<kernels::Target> target = dense::target_of_call(context, function);
  if (target) return kernels::additive_kernels<T>(*target);
  return {&keep<T>, &plain_scores<T>, &plain_scores<T>, &plain_scores<T>, &plain_pairs<T>};
}

}  // namespace

template <class T>
AdditiveLoops<T>::AdditiveLoops(const Context& context, std::string_view function)
    : dense(kernels_in_use<T>(context, function)),
      by(additive_kernels_in_use<T>(context, function)),
      rows(dense.dot) {}

template <class T>
void AdditiveLoops<T>::dots(const RowsOf<const T>& a, Index count, const T* b, Index n,
                            T* to) const {
  if (dense.given()) return dense.gradient->dots(a, count, b, n, to);
  for (Index r = 0; r < count; ++r) {
    to[r] = 0;
    for (Index c = 0; c < n; ++c) to[r] += a.data[r * a.stride + c] * b[c];
  }
}

template <class T>
void AdditiveLoops<T>::scores(ExponentialForm form, const T* query, const T* panels, Index stride,
                              Index keys, const kernels::AdditiveUnits<T>& units, T* scores) const {
  const auto run = form == ExponentialForm::kSmall   ? by.scores_of_small
                   : form == ExponentialForm::kWhole ? by.scores
                                                     : by.scores_with_powers;
  for (Index n = 0; n < keys; n += kPanel, panels += stride) {
    run({query, 0}, 1, panels, std::min(kPanel, keys - n), units, T(1), {scores + n, 0});
  }
}

template struct AdditiveLoops<float>;
template struct AdditiveLoops<double>;

}  // namespace qkv::layers
