// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BACKEND_CPU_KERNELS_IN_USE_H_
#define QKV_BACKEND_CPU_KERNELS_IN_USE_H_

#include <string_view>

#include <qkv/context.h>

#include "backend/cpu/implementations.h"
#include "dense/product.h"

namespace qkv::attn {

// The loops that a call of `function` takes, other than attention(): those of the CPU target in
// use, or of the path that the context forces, none where that is the reference. Throws Error for a
// path or a target that is not there.
template <class T>
dense::Kernels<T> kernels_in_use(const Context& context, std::string_view function) {
  return dense::kernels_of<T>(target_of_layers(context.forced_path(), function));
}

}  // namespace qkv::attn

#endif  // QKV_BACKEND_CPU_KERNELS_IN_USE_H_
