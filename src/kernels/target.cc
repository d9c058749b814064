// SPDX-License-Identifier: Apache-2.0
#include "kernels/target.h"

namespace qkv::kernels {

// Tests the CPU features with which Highway compiles each target.
bool is_supported(Target target) noexcept {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  switch (target) {
    case Target::kSse4:
      return __builtin_cpu_supports("sse4.2") != 0;
    case Target::kAvx2:
      return is_supported(Target::kSse4) && __builtin_cpu_supports("avx2") != 0 &&
             __builtin_cpu_supports("fma") != 0 && __builtin_cpu_supports("bmi") != 0 &&
             __builtin_cpu_supports("bmi2") != 0;
    case Target::kAvx512Bf16:
      return is_supported(Target::kAvx512) && __builtin_cpu_supports("avx512bf16") != 0;
    case Target::kAvx512:
      return is_supported(Target::kAvx2) && __builtin_cpu_supports("avx512f") != 0 &&
             __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
             __builtin_cpu_supports("avx512bw") != 0;
  }
#else
  static_cast<void>(target);
#endif
  return false;
}

}  // namespace qkv::kernels
