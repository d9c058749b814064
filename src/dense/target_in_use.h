// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_DENSE_TARGET_IN_USE_H_
#define QKV_DENSE_TARGET_IN_USE_H_

#include <optional>
#include <string_view>

#include <qkv/context.h>

#include "dense/product.h"
#include "kernels/target.h"

// Chooses the CPU target whose kernels a call uses; none means the plain loops of the reference.
namespace qkv::dense {

// Returns the target that QKV_TARGET names (none for "reference"), or the best if it is not set.
// Throws Error of `function` if it names neither a target of this CPU nor "reference".
std::optional<kernels::Target> target_in_use(std::string_view function);

// Returns null, or, if calls cannot use `target`, what `target` does not support: "this CPU" or
// "the target that QKV_TARGET names".
const char* unsupported(kernels::Target target);

// Returns the target for a call of `function` other than attention(): the target in use, or the
// target of the path that the context forces. Throws Error for a path or a target that is not
// available.
std::optional<kernels::Target> target_of_call(const Context& context, std::string_view function);

template <class T>
Kernels<T> kernels_in_use(const Context& context, std::string_view function) {
  return kernels_of<T>(target_of_call(context, function));
}

// Throw the errors of `function` about a path that its context forces.
[[noreturn]] void fail_unknown_path(std::string_view function, std::string_view forced);
[[noreturn]] void fail_unsupported_path(std::string_view function, std::string_view forced,
                                        std::string_view reason);

}  // namespace qkv::dense

#endif  // QKV_DENSE_TARGET_IN_USE_H_
