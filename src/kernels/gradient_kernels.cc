// SPDX-License-Identifier: Apache-2.0
#include "kernels/gradient_kernels.h"

// Highway compiles everything below once for each target. Its own dispatch is not used, so that
// only its headers are needed. With gcc 12, Highway's baseline has one lane, and CPUs without
// better targets run the reference.
// NOLINTBEGIN(readability-identifier-naming): Highway reads them.
#define HWY_DISABLED_TARGETS QKV_DISABLED_HIGHWAY_TARGETS
#define HWY_DISABLE_PCLMUL_AES
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gradient_kernels.cc"
// NOLINTEND(readability-identifier-naming)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// The one-lane baseline comes last, so leaving it out keeps the include guards in step.
#if QKV_COMPILES_FOR_TARGET
#include "kernels/gradient-inl.h"
#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {

template <class T>
constexpr GradientKernels<T> kGradientKernels{
    .transposed_sum = &transposed_sum<T>,
    .transposed_product = &transposed_product<T>,
    .score_gradients = &score_gradients<T>,
    .row_dots = &row_dots<T>,
    .dots = &dots<T>,
    .sum = &sum<T>,
    .distance_sum = &distance_sum<T>,
    .all_finite = &all_finite<T>,
    .add = &add<T>,
    .multiply = &multiply<T>,
    .clear_masked = &clear_masked<T>,
    .keep = &keep<T>,
};

const GradientKernels<float>& float32_gradient_kernels() { return kGradientKernels<float>; }
const GradientKernels<double>& float64_gradient_kernels() { return kGradientKernels<double>; }

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace qkv::kernels {

template <>
const GradientKernels<float>& gradient_kernels<float>(Target target) noexcept {
  QKV_TABLE_OF_TARGET(target, float32_gradient_kernels);
}

template <>
const GradientKernels<double>& gradient_kernels<double>(Target target) noexcept {
  QKV_TABLE_OF_TARGET(target, float64_gradient_kernels);
}

}  // namespace qkv::kernels
#endif
