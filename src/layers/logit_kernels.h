// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_LOGIT_KERNELS_H_
#define QKV_LAYERS_LOGIT_KERNELS_H_

#include <string_view>

#include <qkv/context.h>
#include <qkv/export.h>

#include "kernels/logit_kernels.h"

namespace qkv::layers {

// Returns the argmax and sampling kernels of the CPU target in use, or the reference's loops if the
// plain loops are requested.
template <class T>
QKV_API kernels::LogitKernels<T> logit_kernels_in_use(const Context& context,
                                                      std::string_view function);

}  // namespace qkv::layers

#endif  // QKV_LAYERS_LOGIT_KERNELS_H_
