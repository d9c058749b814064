// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_KERNELS_UPDATE_KERNELS_H_
#define QKV_KERNELS_UPDATE_KERNELS_H_

#include <qkv/export.h>
#include <qkv/view.h>

#include "core/adam_factors.h"
#include "kernels/target.h"

// What an update of parameters does with n numbers, for one CPU target: no threads, no allocation,
// no failure. T is float or double. Formulas, orders and bits are those of reference/update.h.
namespace qkv::kernels {

template <class T>
struct UpdateKernels {
  // One update of m, v and w by the gradient g.
  void (*adam)(const core::AdamFactors<T>& f, const T* g, T* m, T* v, T* w, Index n);
  // The sum of the squares.
  double (*squares)(const T* x, Index n);
  // Numbers first .. first + n - 1 of sets[0] become the sums of those of all `count` > 0 sets; the
  // others' are unspecified afterwards.
  void (*sum_sets)(T* const* sets, Index count, Index first, Index n);
};

// The kernels of a target that is_supported. Exported for qkv_app.
template <class T>
QKV_API const UpdateKernels<T>& update_kernels(Target target) noexcept;

}  // namespace qkv::kernels

#endif  // QKV_KERNELS_UPDATE_KERNELS_H_
