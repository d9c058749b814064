// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_PACKED_H_
#define QKV_LAYERS_PACKED_H_

#include <qkv/context.h>
#include <qkv/dtype.h>
#include <qkv/tensor.h>

#include "dense/panels.h"
#include "dense/target_in_use.h"
#include "runtime/tasks.h"

namespace qkv::layers {

using dense::kernels_in_use;

// Packs weight [outputs,inputs] to Panels<T>::size() numbers at `panels`, in tasks of `call`.
template <class T>
void pack(runtime::Call& call, const dense::Kernels<T>& by, const Tensor& weight, T* panels);

// Packs the transposed weight, to Panels<T>::size(inputs, outputs) numbers.
template <class T>
void pack_transposed(runtime::Call& call, const Tensor& weight, T* panels);

}  // namespace qkv::layers

#endif  // QKV_LAYERS_PACKED_H_
