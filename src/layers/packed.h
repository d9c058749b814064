// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_PACKED_H_
#define QKV_LAYERS_PACKED_H_

#include <string_view>

#include <qkv/context.h>
#include <qkv/dtype.h>
#include <qkv/tensor.h>

#include "attention/implementations.h"
#include "dense/panels.h"
#include "runtime/tasks.h"

namespace qkv::layers {

// f.operator()<T>() for the dtype of a layer with parameters.
template <class F>
void dispatch(DType dtype, const F& f) {
  if (dtype == DType::kFloat64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

// The loops that a call of `function` takes: those of the CPU target in use, or of the path that
// the context forces, none where that is the reference. Throws Error for a path or a target that is
// not there.
template <class T>
dense::Kernels<T> kernels_in_use(const Context& context, std::string_view function) {
  return dense::kernels_of<T>(door::target_of_layers(context.forced_path(), function));
}

// Packs weight [outputs,inputs] to Panels<T>::size() numbers at `panels`, in tasks of `call`.
template <class T>
void pack(runtime::Call& call, const dense::Kernels<T>& by, const Tensor& weight, T* panels);

}  // namespace qkv::layers

#endif  // QKV_LAYERS_PACKED_H_
