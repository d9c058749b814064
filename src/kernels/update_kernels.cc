// SPDX-License-Identifier: Apache-2.0
#include "kernels/update_kernels.h"

#include "core/order.h"

// Highway compiles everything below once for each target. Its own dispatch is not used, so that
// only its headers are needed. With gcc 12 Highway's baseline has one lane, and CPUs without better
// targets run the reference.
// NOLINTBEGIN(readability-identifier-naming): Highway reads them.
#define HWY_DISABLED_TARGETS QKV_DISABLED_HIGHWAY_TARGETS
#define HWY_DISABLE_PCLMUL_AES
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/update_kernels.cc"
// NOLINTEND(readability-identifier-naming)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// The one-lane baseline comes last, so leaving it out keeps the include guards in step.
#if QKV_COMPILES_FOR_TARGET
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
void adam(const core::AdamFactors<T>& f, const T* g, T* m, T* v, T* w, Index n) {
  for_each_vector<T>(n, [=](auto d, Index i) HWY_ATTR {
    const auto set = [d](T value) HWY_ATTR { return hn::Set(d, value); };
    const auto gradient = hn::Mul(set(f.gradient), hn::LoadU(d, g + i));
    const auto mean = hn::Add(hn::Mul(set(f.beta1), hn::LoadU(d, m + i)),
                              hn::Mul(set(f.one_minus_beta1), gradient));
    const auto square = hn::Add(hn::Mul(set(f.beta2), hn::LoadU(d, v + i)),
                                hn::Mul(set(f.one_minus_beta2), hn::Mul(gradient, gradient)));
    const auto root = hn::Add(hn::Sqrt(hn::Mul(square, set(f.v_factor))), set(f.epsilon));
    const auto step = hn::Div(hn::Mul(set(f.m_rate), mean), root);
    hn::StoreU(mean, d, m + i);
    hn::StoreU(square, d, v + i);
    hn::StoreU(hn::Sub(hn::Mul(set(f.decay_factor), hn::LoadU(d, w + i)), step), d, w + i);
  });
}

// Loads a register of numbers from address x as float64.
template <class D>
HWY_INLINE hn::Vec<D> load_wide(D d, const double* x) {
  return hn::LoadU(d, x);
}
template <class D>
HWY_INLINE hn::Vec<D> load_wide(D d, const float* x) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), x));
}

template <class T>
double squares(const T* x, Index n) {
  const hn::ScalableTag<double> d;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(double);
  constexpr Index kRegisters = core::kRowSums / kLanes;
  hn::Vec<decltype(d)> registers[kRegisters];
  for (auto& sum : registers) sum = hn::Zero(d);
  Index i = 0;
  for (; i + core::kRowSums <= n; i += core::kRowSums) {
    for (Index r = 0; r < kRegisters; ++r) {
      const auto value = load_wide(d, x + i + r * kLanes);
      registers[r] = hn::Add(registers[r], hn::Mul(value, value));
    }
  }
  double sums[core::kRowSums];
  for (Index r = 0; r < kRegisters; ++r) hn::StoreU(registers[r], d, sums + r * kLanes);
  for (; i < n; ++i) {
    const auto value = static_cast<double>(x[i]);
    sums[i % core::kRowSums] += value * value;
  }
  for (Index width = core::kRowSums / 2; width > 0; width /= 2) {
    for (Index t = 0; t < width; ++t) sums[t] += sums[t + width];
  }
  return sums[0];
}

constexpr int kSetsAtOnce = 8;

constexpr int largest_power_below(int count) {
  int power = 1;
  while (2 * power < count) power *= 2;
  return power;
}

// Returns a register of sums over kCount sets, added as a tree: of elements i, i + 1, ...
template <int kCount, class D, class T>
HWY_INLINE hn::Vec<D> tree(D d, T* const* sets, Index i) {
  if constexpr (kCount == 1) {
    return hn::LoadU(d, sets[0] + i);
  } else {
    constexpr int kHalf = largest_power_below(kCount);
    return hn::Add(tree<kHalf>(d, sets, i), tree<kCount - kHalf>(d, sets + kHalf, i));
  }
}

template <class T, int kCount>
void sum_some(T* const* sets, Index first, Index n) {
  T* all[kCount];
  for (int s = 0; s < kCount; ++s) all[s] = sets[s] + first;
  for_each_vector<T>(
      n, [&](auto d, Index i) HWY_ATTR { hn::StoreU(tree<kCount>(d, all, i), d, all[0] + i); });
}

template <class T, int kCount = kSetsAtOnce>
void sum_at_once(T* const* sets, Index count, Index first, Index n) {
  if (count == kCount) return sum_some<T, kCount>(sets, first, n);
  if constexpr (kCount > 2) sum_at_once<T, kCount - 1>(sets, count, first, n);
}

// Sums `count` sets into sets[0]. More than kSetsAtOnce sets are divided in two parts: each part is
// summed into its first set, and then the two sums are added.
template <class T>
void sum_sets(T* const* sets, Index count, Index first, Index n) {
  if (count <= kSetsAtOnce) return sum_at_once<T>(sets, count, first, n);
  const Index half = largest_power_below(static_cast<int>(count));
  sum_sets(sets, half, first, n);
  sum_sets(sets + half, count - half, first, n);
  T* const halves[] = {sets[0], sets[half]};
  sum_some<T, 2>(halves, first, n);
}

template <class T>
constexpr UpdateKernels<T> kUpdateKernels{&adam<T>, &squares<T>, &sum_sets<T>};

const UpdateKernels<float>& float32_update_kernels() { return kUpdateKernels<float>; }
const UpdateKernels<double>& float64_update_kernels() { return kUpdateKernels<double>; }

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace qkv::kernels {

template <>
QKV_API const UpdateKernels<float>& update_kernels<float>(Target target) noexcept {
  QKV_TABLE_OF_TARGET(target, float32_update_kernels);
}

template <>
QKV_API const UpdateKernels<double>& update_kernels<double>(Target target) noexcept {
  QKV_TABLE_OF_TARGET(target, float64_update_kernels);
}

}  // namespace qkv::kernels
#endif
