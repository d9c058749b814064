// SPDX-License-Identifier: Apache-2.0
#include "kernels/additive_kernels.h"

// Highway compiles everything below once for each target. Its own dispatch is not used, so that
// only its headers are needed. With gcc 12, Highway's baseline has one lane, and CPUs without
// better targets run the reference.
// NOLINTBEGIN(readability-identifier-naming): Highway reads them.
#define HWY_DISABLED_TARGETS QKV_DISABLED_HIGHWAY_TARGETS
#define HWY_DISABLE_PCLMUL_AES
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/additive_kernels.cc"
// NOLINTEND(readability-identifier-naming)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// The one-lane baseline comes last, so leaving it out keeps the include guards in step.
#if QKV_COMPILES_FOR_TARGET
#include "kernels/additive-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {

template <class T>
constexpr AdditiveKernels<T> kAdditiveKernels{
    .exponentials = &exponentials<T>,
    .scores_of_small = &additive_scores<T, kCodeForm<T, ExponentialForm::kSmall>>,
    .scores = &additive_scores<T, ExponentialForm::kWhole>,
    .scores_with_powers = &additive_scores<T, ExponentialForm::kPowers>,
    .add_pairs = &add_pairs<T>,
};

const AdditiveKernels<float>& float32_additive_kernels() { return kAdditiveKernels<float>; }
const AdditiveKernels<double>& float64_additive_kernels() { return kAdditiveKernels<double>; }

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace qkv::kernels {

template <>
const AdditiveKernels<float>& additive_kernels<float>(Target target) noexcept {
  QKV_TABLE_OF_TARGET(target, float32_additive_kernels);
}

template <>
const AdditiveKernels<double>& additive_kernels<double>(Target target) noexcept {
  QKV_TABLE_OF_TARGET(target, float64_additive_kernels);
}

}  // namespace qkv::kernels
#endif
