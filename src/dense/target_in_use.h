// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_DENSE_TARGET_IN_USE_H_
#define QKV_DENSE_TARGET_IN_USE_H_

#include <optional>
#include <string_view>

#include <qkv/context.h>

#include "dense/product.h"
#include "kernels/target.h"

// Which CPU target's kernels a call takes; none: the plain loops of the reference.
namespace qkv::dense {

// The one that QKV_TARGET names, or the best. Throws Error, of `function`, if it names no target.
std::optional<kernels::Target> target_in_use(std::string_view function);

// Null, or what keeps calls from using a target.
const char* unsupported(kernels::Target target);

// What a call of `function` other than attention() takes: the target in use, or that of the path
// which the context forces. Throws Error for a path or a target that is not there.
std::optional<kernels::Target> target_of_call(const Context& context, std::string_view function);

template <class T>
Kernels<T> kernels_in_use(const Context& context, std::string_view function) {
  return kernels_of<T>(target_of_call(context, function));
}

// Errors of `function` about a path that its context forces.
[[noreturn]] void fail_unknown_path(std::string_view function, std::string_view forced);
[[noreturn]] void fail_unsupported_path(std::string_view function, std::string_view forced,
                                        std::string_view reason);

}  // namespace qkv::dense

#endif  // QKV_DENSE_TARGET_IN_USE_H_
