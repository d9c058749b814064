// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_KERNELS_GRU_KERNELS_H_
#define QKV_KERNELS_GRU_KERNELS_H_

#include <qkv/view.h>

#include "kernels/target.h"

// The operations of a gated recurrent unit between its products, for one CPU target, on one row of
// `hidden` units: no threads, no allocation, no failure. T is float or double. The formulas are
// those of reference/gru.h, with the exponentials of kernels/exp-inl.h.
namespace qkv::kernels {

template <class T>
struct GruKernels {
  // Computes the next state from the state h. The sums of the gates r, z and n have parts from the
  // input, xs [3 hidden], and from h, hs [3 hidden]. `gates` [4 hidden], unless null, gets r, z, n
  // and hs_n. `next` may be h.
  void (*forward)(const T* xs, const T* hs, const T* h, Index hidden, T* next, T* gates);
  // Computes dgates [4 hidden], the gradients of the sums of r, z, n and of hs_n, and dh = dnext z,
  // a part of the gradient of h. `dh` may be dnext.
  void (*backward)(const T* gates, const T* h, const T* dnext, Index hidden, T* dgates, T* dh);
};

// The kernels of a target for which is_supported() is true.
template <class T>
const GruKernels<T>& gru_kernels(Target target) noexcept;

}  // namespace qkv::kernels

#endif  // QKV_KERNELS_GRU_KERNELS_H_
