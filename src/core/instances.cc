// SPDX-License-Identifier: Apache-2.0
#include "core/instances.h"

namespace qkv::core {

detail::InstanceTarget best_instance_target() noexcept {
  using detail::InstanceTarget;
#if defined(__GNUC__) && defined(__x86_64__)
  // The CPU must have every feature that the instances are compiled for. The test includes
  // operating system support.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  if (avx2 && avx512) return InstanceTarget::kAvx512;
  if (avx2) return InstanceTarget::kAvx2;
#endif
  return InstanceTarget::kBaseline;
}

}  // namespace qkv::core
