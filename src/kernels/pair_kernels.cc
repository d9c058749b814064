// SPDX-License-Identifier: Apache-2.0
#include "kernels/pair_kernels.h"

// Highway compiles this file for AVX-512 alone, to which BF16 is added: Highway 1.0.3 has no BF16
// products. kernels/dot_kernels.cc explains the macros.
// NOLINTBEGIN(readability-identifier-naming): Highway reads them.
#define HWY_DISABLED_TARGETS \
  (QKV_DISABLED_HIGHWAY_TARGETS | HWY_AVX3_DL | HWY_AVX2 | HWY_SSE4 | HWY_SSSE3)
#define HWY_DISABLE_PCLMUL_AES
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pair_kernels.cc"
// NOLINTEND(readability-identifier-naming)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3
#include "kernels/pair-inl.h"
#include "kernels/pair_gradient-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {

DotKernels<float> with_bfloat16_pairs(DotKernels<float> kernels) {
  kernels.pack_panel = &pack_pairs;
  kernels.scores = &pair_scores;
  kernels.scores_of_keys = &pair_scores_of_keys;
  kernels.stored_scores = &stored_pair_scores;
  kernels.weighted_sum = &paired_sum;
  kernels.stored_sum = &stored_pair_sum;
  kernels.widen = &join_channels;
  kernels.round_weights = &round_weights;
  kernels.pair_values = &pair_values;
  kernels.multiply_adds = &pair_multiply_adds;
  return kernels;
}

GradientKernels<float> with_bfloat16_pairs(GradientKernels<float> kernels) {
  kernels.transposed_sum = &transposed_pair_sum;
  kernels.row_dots = &pair_row_dots;
  kernels.all_finite = &all_finite_pairs;
  kernels.join_rows = &join_rows;
  return kernels;
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace qkv::kernels {

const DotKernels<float>& bfloat16_pair_kernels() noexcept {
  static const DotKernels<float> kernels =
      N_AVX3::with_bfloat16_pairs(dot_kernels<float>(Target::kAvx512));
  return kernels;
}

const GradientKernels<float>& bfloat16_pair_gradient_kernels() noexcept {
  static const GradientKernels<float> kernels =
      N_AVX3::with_bfloat16_pairs(gradient_kernels<float>(Target::kAvx512));
  return kernels;
}

}  // namespace qkv::kernels
#endif
