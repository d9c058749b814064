// SPDX-License-Identifier: Apache-2.0
#include "kernels/logit_kernels.h"

#include <algorithm>
#include <limits>

#include "core/order.h"

// Highway compiles everything below once for each target. Its own dispatch is not used, so that
// only its headers are needed. With gcc 12, Highway's baseline has one lane, and CPUs without
// better targets run the reference.
// NOLINTBEGIN(readability-identifier-naming): Highway reads them.
#define HWY_DISABLED_TARGETS QKV_DISABLED_HIGHWAY_TARGETS
#define HWY_DISABLE_PCLMUL_AES
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/logit_kernels.cc"
// NOLINTEND(readability-identifier-naming)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// The one-lane baseline comes last, so leaving it out keeps the include guards in step.
#if QKV_COMPILES_FOR_TARGET
#include "kernels/exp-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using core::kPartialSums;

template <class T>
T largest_number(const T* x, Index n) {
  const hn::ScalableTag<T> d;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr int kStreams = 4;
  hn::Vec<decltype(d)> most[kStreams];
  hn::Vec<decltype(d)> nan = hn::Zero(d);  // NaN in each lane that has had a NaN
  for (auto& some : most) some = hn::Set(d, -kInfinity<T>);
  Index v = 0;
  for (; v + kStreams * kLanes <= n; v += kStreams * kLanes) {
#pragma GCC unroll 4
    for (int y = 0; y < kStreams; ++y) {
      const auto some = hn::LoadU(d, x + v + y * kLanes);
      nan = hn::Or(nan, hn::VecFromMask(d, hn::IsNaN(some)));
      most[y] = hn::Max(some, most[y]);
    }
  }
  const auto both = hn::Max(hn::Max(most[0], most[1]), hn::Max(most[2], most[3]));
  T result = hn::GetLane(hn::MaxOfLanes(d, both));
  bool is_nan = !hn::AllFalse(d, hn::IsNaN(nan));
  for (; v < n; ++v) {
    is_nan = is_nan || x[v] != x[v];
    result = std::max(result, x[v]);
  }
  return is_nan ? std::numeric_limits<T>::quiet_NaN() : result;
}

// Loads a register of numbers as float64.
template <class D>
HWY_INLINE hn::Vec<D> wide(D d, const float* x) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), x));
}
template <class D>
HWY_INLINE hn::Vec<D> wide(D d, const double* x) {
  return hn::LoadU(d, x);
}

// Adds the exponentials in the order of exponentials() in kernels/row-inl.h.
template <class T>
double sum_of_exponentials(const T* x, Index n, double shift_by) {
  const hn::ScalableTag<double> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(double);
  constexpr int kVectors = kPartialSums / kLanes;
  constexpr int kGroup = kVectors < 8 ? kVectors : 8;  // accumulators held in registers
  const Index whole = n / kPartialSums * kPartialSums;
  T rest[kPartialSums];
  std::fill(std::copy(x + whole, x + n, rest), rest + kPartialSums, -kInfinity<T>);
  const V shift = hn::Set(d, shift_by);
  V sums[kVectors];
#pragma GCC unroll 4
  for (int v0 = 0; v0 < kVectors; v0 += kGroup) {
    V acc[kGroup];
#pragma GCC unroll 8
    for (int y = 0; y < kGroup; ++y) acc[y] = hn::Zero(d);
    const auto add = [&](const T* block) HWY_ATTR {
#pragma GCC unroll 8
      for (int y = 0; y < kGroup; ++y) {
        const V term = hn::Sub(wide(d, block + (v0 + y) * kLanes), shift);
        acc[y] = hn::Add(acc[y], exp_nonpositive(d, term));
      }
    };
    for (Index v = 0; v < whole; v += kPartialSums) add(x + v);
    add(rest);
#pragma GCC unroll 8
    for (int y = 0; y < kGroup; ++y) sums[v0 + y] = acc[y];
  }
#pragma GCC unroll 8
  for (int width = kVectors / 2; width > 0; width /= 2) {
#pragma GCC unroll 16
    for (int y = 0; y < width; ++y) sums[y] = hn::Add(sums[y], sums[y + width]);
  }
  return tree_sum_of_lanes(d, sums[0]);
}

template <class T>
Index first_number_from(const T* x, Index begin, Index n, T least_wanted) {
  const hn::ScalableTag<T> d;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  const auto least = hn::Set(d, least_wanted);
  Index v = begin;
  for (; v + kLanes <= n; v += kLanes) {
    const auto found = hn::Ge(hn::LoadU(d, x + v), least);
    if (!hn::AllFalse(d, found)) return v + hn::FindFirstTrue(d, found);
  }
  while (v < n && !(x[v] >= least_wanted)) ++v;
  return v;
}

template <class T>
constexpr LogitKernels<T> kLogitKernels{
    .largest = &largest_number<T>,
    .sum_of_exponentials = &sum_of_exponentials<T>,
    .first_from = &first_number_from<T>,
};

const LogitKernels<float>& float32_logit_kernels() { return kLogitKernels<float>; }
const LogitKernels<double>& float64_logit_kernels() { return kLogitKernels<double>; }

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace qkv::kernels {

template <>
const LogitKernels<float>& logit_kernels<float>(Target target) noexcept {
  QKV_TABLE_OF_TARGET(target, float32_logit_kernels);
}

template <>
const LogitKernels<double>& logit_kernels<double>(Target target) noexcept {
  QKV_TABLE_OF_TARGET(target, float64_logit_kernels);
}

}  // namespace qkv::kernels
#endif
