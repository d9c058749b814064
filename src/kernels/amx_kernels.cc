// SPDX-License-Identifier: Apache-2.0
#include "kernels/amx_kernels.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

// Highway compiles this file only for AVX-512, as it does kernels/dot2_kernels.cc.
// NOLINTBEGIN(readability-identifier-naming): Highway reads them.
#define HWY_DISABLED_TARGETS \
  (QKV_DISABLED_HIGHWAY_TARGETS | HWY_AVX3_DL | HWY_AVX2 | HWY_SSE4 | HWY_SSSE3)
#define HWY_DISABLE_PCLMUL_AES
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/amx_kernels.cc"
// NOLINTEND(readability-identifier-naming)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3
#include "kernels/amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {

template <class Tiles>
DotKernels<float> with_tiles(DotKernels<float> kernels) {
  kernels.pack_panel = &pack_words;
  kernels.scores = &amx_scores<Tiles>;
  kernels.scores_of_keys = &amx_scores_of_keys<Tiles>;
  kernels.stored_scores = &amx_stored_scores<Tiles>;
  kernels.weighted_sum = &amx_words_sum<Tiles>;
  kernels.stored_sum = &amx_stored_sum<Tiles>;
  kernels.widen = &join_channels;
  kernels.round_weights = &round_weights;
  kernels.join_values = &join_values;
  kernels.multiply_adds = &amx_multiply_adds<Tiles>;
  return kernels;
}

template <class Tiles>
GradientKernels<float> with_tiles(GradientKernels<float> kernels) {
  kernels.transposed_sum = &amx_transposed_sum<Tiles>;
  kernels.row_dots = &amx_row_dots;
  kernels.all_finite = &all_finite_words;
  kernels.join_rows = &join_rows;
  return kernels;
}

template <class Tables>
const Tables& tables_of(Target target, const Tables& others) {
  static const Tables hardware = with_tiles<HardwareTiles>(others);
  static const Tables emulated = with_tiles<EmulatedTiles>(others);
  return target == Target::kAmx ? hardware : emulated;
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace qkv::kernels {

#if HWY_ARCH_X86

const DotKernels<float>& amx_kernels(Target target) noexcept {
  return N_AVX3::tables_of(target, dot_kernels<float>(Target::kAvx512));
}

const GradientKernels<float>& amx_gradient_kernels(Target target) noexcept {
  return N_AVX3::tables_of(target, gradient_kernels<float>(Target::kAvx512));
}

#else  // these kernels are for x86 only

const DotKernels<float>& amx_kernels(Target) noexcept { __builtin_unreachable(); }
const GradientKernels<float>& amx_gradient_kernels(Target) noexcept { __builtin_unreachable(); }

#endif

constinit thread_local TileShape configured_shape;

// release_tiles() is not compiled for AVX-512, since tasks call it on every CPU.
void release_tiles() noexcept {
#if defined(__x86_64__)
  if (configured_shape.rows == 0) return;
  __asm__ volatile("tilerelease");
  configured_shape = {};
#endif
}

bool amx_is_permitted() noexcept {
#if defined(__x86_64__) && defined(__linux__)
  static const bool permitted = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kOsXsave = 1U << 27;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsXsave) == 0) return false;
    constexpr unsigned kAmxBf16 = 1U << 22;
    constexpr unsigned kAmxTile = 1U << 24;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
    unsigned low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr unsigned kTileConfiguration = 1U << 17;
    constexpr unsigned kTileData = 1U << 18;
    if ((low & kTileConfiguration) == 0 || (low & kTileData) == 0) return false;
    constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long kTileDataFeature = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileDataFeature) == 0;
  }();
  return permitted;
#else
  return false;
#endif
}

}  // namespace qkv::kernels
#endif
