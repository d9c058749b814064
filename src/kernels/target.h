// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_KERNELS_TARGET_H_
#define QKV_KERNELS_TARGET_H_

#include <array>
#include <string_view>

// The instruction sets that kernels are compiled for.
namespace qkv::kernels {

enum class Target { kSse4, kAvx2, kAvx512 };

// Best first.
inline constexpr std::array<Target, 3> kTargets = {Target::kAvx512, Target::kAvx2, Target::kSse4};

// "avx512", "avx2", "sse4".
std::string_view name_of(Target target) noexcept;

// The table of a target, selected from the functions for each target.
template <class Table>
const Table& table_of(Target target, const Table& (*sse4)(), const Table& (*avx2)(),
                      const Table& (*avx512)()) noexcept {
  switch (target) {
    case Target::kSse4:
      return sse4();
    case Target::kAvx2:
      return avx2();
    case Target::kAvx512:
      break;
  }
  return avx512();
}

// Whether this build has kernels for the target, and this CPU and its system support it.
bool is_supported(Target target) noexcept;

}  // namespace qkv::kernels

#endif  // QKV_KERNELS_TARGET_H_
