// SPDX-License-Identifier: Apache-2.0
#include "kernels/dot_kernels.h"

// Highway compiles everything below once for each target. Its own dispatch is not used, so that
// only its headers are needed. With gcc 12, Highway's baseline has vectors of one lane, for which
// no kernels are compiled: a CPU without better targets runs the reference.
// NOLINTBEGIN(readability-identifier-naming): Highway reads them.
#define HWY_DISABLED_TARGETS QKV_DISABLED_HIGHWAY_TARGETS
#define HWY_DISABLE_PCLMUL_AES
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dot_kernels.cc"
// NOLINTEND(readability-identifier-naming)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// The include guards of the files below are toggled once for each target. The one-lane baseline
// comes last, so the guards stay in step although it skips these files.
#if QKV_COMPILES_FOR_TARGET
#include "kernels/q8_keys-inl.h"
#include "kernels/row-inl.h"
#include "kernels/soft_cap-inl.h"
#include "kernels/stored_scores-inl.h"
#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {

template <class T>
constexpr DotKernels<T> kDotKernels{
    .pack_panel = &pack_panel<T>,
    .scores = &scores<T>,
    .scores_of_keys = &scores_of_keys<T>,
    .stored_scores = &stored_scores<T>,
    .soft_cap = &soft_cap<T>,
    .add_bias = &add_bias<T>,
    .subtract_distance = &subtract_distance<T>,
    .mask = &mask<T>,
    .softmax = &softmax<T>,
    .merge = &merge<T>,
    .weighted_sum = &weighted_sum<T>,
    .stored_sum = &stored_sum<T>,
    .add_product = &add_product<T>,
    .merge_row = &merge_row<T>,
    .widen = &widen<T>,
    .has_nan = &has_nan<T>,
    .scale_row = &scale_row<T>,
    .result_row = &result_row<T>,
    .weights = &weights<T>,
    .sum_weights = &sum_weights<T>,
    .divide = &divide<T>,
    .drop = &drop<T>,
    .multiply_adds = &multiply_adds<T>,
};

constexpr DotKernels<float> with_q8(DotKernels<float> kernels) {
  kernels.pack_panel = &pack_any_panel;
  kernels.stored_scores = &any_stored_scores;
  kernels.stored_sum = &any_stored_sum;
  kernels.widen = &widen_any;
  return kernels;
}
constexpr DotKernels<float> kFloat32Kernels = with_q8(kDotKernels<float>);

const DotKernels<float>& float32_kernels() { return kFloat32Kernels; }
const DotKernels<double>& float64_kernels() { return kDotKernels<double>; }

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace qkv::kernels {

template <>
const DotKernels<float>& dot_kernels<float>(Target target) noexcept {
  QKV_TABLE_OF_TARGET(target, float32_kernels);
}

template <>
const DotKernels<double>& dot_kernels<double>(Target target) noexcept {
  QKV_TABLE_OF_TARGET(target, float64_kernels);
}

}  // namespace qkv::kernels
#endif
