// SPDX-License-Identifier: Apache-2.0
#include "kernels/target.h"

#include <cstddef>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/amx_kernels.h"

namespace qkv::kernels {

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
namespace {

// Whether the CPU has F16C, conversions between float16 and float32. __builtin_cpu_supports() of
// clang 16 does not know this feature.
bool has_f16c() noexcept {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace
#endif

// Tests the CPU features with which Highway compiles each target.
bool is_supported(Target target) noexcept {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  switch (target) {
    case Target::kSse4:
      return __builtin_cpu_supports("sse4.2") != 0;
    case Target::kAvx2:
      return is_supported(Target::kSse4) && __builtin_cpu_supports("avx2") != 0 &&
             __builtin_cpu_supports("fma") != 0 && __builtin_cpu_supports("bmi") != 0 &&
             __builtin_cpu_supports("bmi2") != 0 && has_f16c();
    case Target::kAmx:
      return is_supported(Target::kAvx512Bf16) && amx_is_permitted();
    case Target::kEmulatedAmx:
      return is_supported(Target::kAvx512Bf16);
    case Target::kAvx512Bf16:
      return is_supported(Target::kAvx512) && __builtin_cpu_supports("avx512bf16") != 0;
    case Target::kAvx512:
      return is_supported(Target::kAvx2) && __builtin_cpu_supports("avx512f") != 0 &&
             __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
             __builtin_cpu_supports("avx512bw") != 0;
    case Target::kNeon:
      return false;
  }
  __builtin_unreachable();
#elif defined(__aarch64__)
  return target == Target::kNeon;
#else
  static_cast<void>(target);
  return false;
#endif
}

namespace {

// Whether to prefer avx512 to avx512bf16 (see ordered_targets).
// Intel's CPUs with AVX512-BF16 (family 6, Cooper Lake to Granite Rapids) issue one VDPBF16PS
// every second cycle but two fused multiply-adds every cycle. The choice follows from the CPU's
// maker, not from a measurement, so that one CPU always gives the same bits.
bool dot2_is_slow() noexcept {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

struct SupportedTargets {
  TargetOrder targets = ordered_targets(dot2_is_slow());
  std::size_t count = 0;

  SupportedTargets() noexcept {
    for (const Target target : targets) {
      if (is_supported(target)) targets[count++] = target;
    }
  }
};

}  // namespace

std::span<const Target> supported_targets() noexcept {
  static const SupportedTargets here;
  return {here.targets.data(), here.count};
}

}  // namespace qkv::kernels
