// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_KERNELS_TARGET_H_
#define QKV_KERNELS_TARGET_H_

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

// The instruction sets that kernels are compiled for.

// The lists of targets of each architecture, best first (but see ordered_targets): X(with,
// enumerator, name, Highway's name). avx512bf16 and amx run the kernels of avx512, except that each
// has kernels of its own for products of BF16 (kernels/dot2_kernels.h, kernels/amx_kernels.h).
// amx-emulated gives the results of amx, slowly, on CPUs without AMX; it is last, so that it is
// used only where it is asked for.
#define QKV_FOR_EACH_X86_TARGET(X, with)   \
  X(with, kAmx, "amx", AVX3)               \
  X(with, kAvx512Bf16, "avx512bf16", AVX3) \
  X(with, kAvx512, "avx512", AVX3)         \
  X(with, kAvx2, "avx2", AVX2)             \
  X(with, kSse4, "sse4", SSE4)             \
  X(with, kEmulatedAmx, "amx-emulated", AVX3)
// Every AArch64 CPU has NEON.
#define QKV_FOR_EACH_ARM_TARGET(X, with) X(with, kNeon, "neon", NEON)

// The targets of this build, and those of the other architecture, for which this build has no
// kernels.
#if defined(__aarch64__)
#define QKV_FOR_EACH_TARGET QKV_FOR_EACH_ARM_TARGET
#define QKV_FOR_EACH_ABSENT_TARGET QKV_FOR_EACH_X86_TARGET
#else
#define QKV_FOR_EACH_TARGET QKV_FOR_EACH_X86_TARGET
#define QKV_FOR_EACH_ABSENT_TARGET QKV_FOR_EACH_ARM_TARGET
#endif

// For the files of kernels: Highway's targets that are disabled there, and whether
// QKV_FOR_EACH_TARGET contains the target being compiled. SVE is disabled since kernels keep
// registers in arrays, and the compiler does not know the size of SVE's types.
#define QKV_SVE_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#define QKV_DISABLED_HIGHWAY_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | QKV_SVE_TARGETS)
#define QKV_OR_HIGHWAY_TARGET(with, enumerator, name, highway) | HWY_##highway
#define QKV_COMPILES_FOR_TARGET \
  ((HWY_TARGET & (0 QKV_FOR_EACH_TARGET(QKV_OR_HIGHWAY_TARGET, ))) != 0)

// QKV_TABLE_OF_TARGET returns what function() returns in the namespace of `target`. Highway
// compiles one namespace for each of its targets (such as N_AVX3), which several of ours may share.
#define QKV_RETURN_FOR_TARGET(function, enumerator, name, highway) \
  if (wanted == Target::enumerator) return N_##highway::function();
#define QKV_TABLE_OF_TARGET(target, function)          \
  const Target wanted = target;                        \
  QKV_FOR_EACH_TARGET(QKV_RETURN_FOR_TARGET, function) \
  __builtin_unreachable()

namespace qkv::kernels {

#define QKV_ENUMERATOR(with, enumerator, name, highway) enumerator,
enum class Target {
  QKV_FOR_EACH_TARGET(QKV_ENUMERATOR, ) QKV_FOR_EACH_ABSENT_TARGET(QKV_ENUMERATOR, )
};
#undef QKV_ENUMERATOR

#define QKV_ELEMENT(with, enumerator, name, highway) Target::enumerator,
inline constexpr std::array kTargets{QKV_FOR_EACH_TARGET(QKV_ELEMENT, )};
#undef QKV_ELEMENT

// Name of a target, such as "avx512".
constexpr std::string_view name_of(Target target) noexcept {
#define QKV_CASE(with, enumerator, name, highway) \
  case Target::enumerator:                        \
    return name;
  switch (target) {
    QKV_FOR_EACH_TARGET(QKV_CASE, )
    QKV_FOR_EACH_ABSENT_TARGET(QKV_CASE, )
  }
#undef QKV_CASE
  __builtin_unreachable();
}

// Whether this build has kernels for the target, and this CPU and its system support it.
bool is_supported(Target target) noexcept;

using TargetOrder = std::array<Target, kTargets.size()>;

// The targets, best first, on CPUs whose dot2 instruction (VDPBF16PS) is fast or slow. Where it is
// slow, avx512, which widens BF16 and uses fused multiply-adds, comes before avx512bf16.
constexpr TargetOrder ordered_targets(bool dot2_is_slow) noexcept {
  TargetOrder order = kTargets;
  for (std::size_t n = 0; dot2_is_slow && n + 1 < order.size(); ++n) {
    if (order[n] == Target::kAvx512Bf16) {
      order[n] = order[n + 1];
      order[n + 1] = Target::kAvx512Bf16;
      break;
    }
  }
  return order;
}

// The targets that this CPU supports, best first.
std::span<const Target> supported_targets() noexcept;

}  // namespace qkv::kernels

#endif  // QKV_KERNELS_TARGET_H_
