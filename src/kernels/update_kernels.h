// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_KERNELS_UPDATE_KERNELS_H_
#define QKV_KERNELS_UPDATE_KERNELS_H_

#include <qkv/export.h>
#include <qkv/view.h>

#include "core/adam_factors.h"
#include "kernels/target.h"

// The loops of an update of n parameters, for one CPU target: no threads, no allocation, no
// failure. T is float or double. Formulas and orders of summation are those of reference/update.h,
// and results are bit-identical with it.
namespace qkv::kernels {

template <class T>
struct UpdateKernels {
  // Updates the moments m and v and the parameters w, n elements each, by the gradient g.
  void (*adam)(const core::AdamFactors<T>& f, const T* g, T* m, T* v, T* w, Index n);
  // Returns the sum of the squares of n elements.
  double (*squares)(const T* x, Index n);
  // Replaces elements first .. first + n - 1 of sets[0] by their sums over all `count` > 0 sets
  // (one array each). In the other sets these elements are unspecified afterwards.
  void (*sum_sets)(T* const* sets, Index count, Index first, Index n);
};

// The kernels of a target that is_supported. Exported for qkv_app.
template <class T>
QKV_API const UpdateKernels<T>& update_kernels(Target target) noexcept;

}  // namespace qkv::kernels

#endif  // QKV_KERNELS_UPDATE_KERNELS_H_
