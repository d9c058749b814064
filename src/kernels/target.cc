// SPDX-License-Identifier: Apache-2.0
#include "kernels/target.h"

namespace qkv::kernels {

std::string_view name_of(Target target) noexcept {
  switch (target) {
    case Target::kSse4:
      return "sse4";
    case Target::kAvx2:
      return "avx2";
    case Target::kAvx512:
      break;
  }
  return "avx512";
}

// The features that Highway compiles each target with.
bool is_supported(Target target) noexcept {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  if (__builtin_cpu_supports("sse4.2") == 0) return false;
  if (target == Target::kSse4) return true;
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                    __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0;
  if (target == Target::kAvx2 || !avx2) return avx2;
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0;
#else
  static_cast<void>(target);
  return false;
#endif
}

}  // namespace qkv::kernels
