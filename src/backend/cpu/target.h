// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BACKEND_CPU_TARGET_H_
#define QKV_BACKEND_CPU_TARGET_H_

#include <string_view>

namespace qkv::attn {

// Not an instruction set: no kernels are used.
inline constexpr std::string_view kReferenceTarget = "reference";

// As cpu_target(), for an error of `function`.
std::string_view target_in_use(std::string_view function);

// Whether QKV_TARGET leaves this target to calls: it names it, or is not set. Does not throw.
bool target_is_allowed(std::string_view name);

}  // namespace qkv::attn

#endif  // QKV_BACKEND_CPU_TARGET_H_
