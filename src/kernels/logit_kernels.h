// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_KERNELS_LOGIT_KERNELS_H_
#define QKV_KERNELS_LOGIT_KERNELS_H_

#include <qkv/view.h>

#include "kernels/target.h"

// The loops with which sampling goes over a row x of n logits (argmax, softmax), for one CPU
// target. reference/logits.h defines the results.
namespace qkv::kernels {

template <class T>
struct LogitKernels {
  T (*largest)(const T* x, Index n);
  double (*sum_of_exponentials)(const T* x, Index n, double shift);
  Index (*first_from)(const T* x, Index begin, Index n, T least);
};

// The kernels of a target for which is_supported() is true.
template <class T>
const LogitKernels<T>& logit_kernels(Target target) noexcept;

}  // namespace qkv::kernels

#endif  // QKV_KERNELS_LOGIT_KERNELS_H_
