// SPDX-License-Identifier: Apache-2.0
#include "kernels/dot2_kernels.h"

// Highway compiles this file only for AVX-512, to which BF16 is added: Highway 1.0.3 has no BF16
// products. kernels/dot_kernels.cc explains the macros.
// NOLINTBEGIN(readability-identifier-naming): Highway reads them.
#define HWY_DISABLED_TARGETS \
  (QKV_DISABLED_HIGHWAY_TARGETS | HWY_AVX3_DL | HWY_AVX2 | HWY_SSE4 | HWY_SSSE3)
#define HWY_DISABLE_PCLMUL_AES
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dot2_kernels.cc"
// NOLINTEND(readability-identifier-naming)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3
#include "kernels/dot2-inl.h"
#include "kernels/dot2_gradient-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {

DotKernels<float> with_dot2(DotKernels<float> kernels) {
  kernels.pack_panel = &pack_words;
  kernels.scores = &dot2_scores;
  kernels.scores_of_keys = &dot2_scores_of_keys;
  kernels.stored_scores = &stored_dot2_scores;
  kernels.weighted_sum = &dot2_words_sum;
  kernels.stored_sum = &stored_dot2_sum;
  kernels.widen = &join_channels;
  kernels.round_weights = &round_weights;
  kernels.join_values = &join_values;
  kernels.multiply_adds = &dot2_multiply_adds;
  return kernels;
}

GradientKernels<float> with_dot2(GradientKernels<float> kernels) {
  kernels.transposed_sum = &transposed_dot2_sum;
  kernels.row_dots = &dot2_row_dots;
  kernels.all_finite = &all_finite_words;
  kernels.join_rows = &join_rows;
  return kernels;
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace qkv::kernels {

#if HWY_ARCH_X86

const DotKernels<float>& dot2_kernels() noexcept {
  static const DotKernels<float> kernels = N_AVX3::with_dot2(dot_kernels<float>(Target::kAvx512));
  return kernels;
}

const GradientKernels<float>& dot2_gradient_kernels() noexcept {
  static const GradientKernels<float> kernels =
      N_AVX3::with_dot2(gradient_kernels<float>(Target::kAvx512));
  return kernels;
}

#else  // these kernels are for x86 only

const DotKernels<float>& dot2_kernels() noexcept { __builtin_unreachable(); }
const GradientKernels<float>& dot2_gradient_kernels() noexcept { __builtin_unreachable(); }

#endif

}  // namespace qkv::kernels
#endif
