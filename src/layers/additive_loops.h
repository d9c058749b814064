// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_ADDITIVE_LOOPS_H_
#define QKV_LAYERS_ADDITIVE_LOOPS_H_

#include <string_view>

#include <qkv/context.h>

#include "dense/product.h"
#include "kernels/additive_kernels.h"
#include "layers/row_kernels.h"

namespace qkv::layers {

// The loops that compute one query of additive attention over the keys and values of its source.
template <class T>
struct AdditiveLoops {
  dense::Kernels<T> dense;
  kernels::AdditiveKernels<T> by;  // kernels of the CPU target, or plain loops
  RowKernels<T> rows;

  AdditiveLoops(const Context& context, std::string_view function);

  // Computes to_r = sum_c a_rc b_c, over n channels c, for `count` rows r.
  void dots(const dense::RowsOf<const T>& a, Index count, const T* b, Index n, T* to) const;
  // Computes the scores of `keys` keys in panels of kPanel keys; panels are `stride` numbers apart.
  void scores(kernels::ExponentialForm form, const T* query, const T* panels, Index stride,
              Index keys, const kernels::AdditiveUnits<T>& units, T* scores) const;
};

extern template struct AdditiveLoops<float>;
extern template struct AdditiveLoops<double>;

}  // namespace qkv::layers

#endif  // QKV_LAYERS_ADDITIVE_LOOPS_H_
