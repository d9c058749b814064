// SPDX-License-Identifier: Apache-2.0
// Loops over whole registers, sums over one register, and bounds that keep NaN, for each target.
#if defined(QKV_KERNELS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_VECTOR_INL_H_
#undef QKV_KERNELS_VECTOR_INL_H_
#else
#define QKV_KERNELS_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <qkv/view.h>

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Calls f(d, x) for x = 0, lanes, ... while a whole register of the n numbers is left, then with a
// one-lane tag for each number left.
template <class T, class F>
HWY_INLINE void for_each_vector(Index n, const F& f) {
  const hn::ScalableTag<T> d;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  Index x = 0;
  for (; x + kLanes <= n; x += kLanes) f(d, x);
  for (; x < n; ++x) f(hn::CappedTag<T, 1>(), x);
}

// Sums one register as the tree of reference/sum.h: the upper half is added to the lower until one
// lane is left.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE T tree_sum_of_lanes([[maybe_unused]] D d, hn::Vec<D> x) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    return hn::GetLane(x);
  } else {
    const hn::Half<D> half;
    return tree_sum_of_lanes(half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)));
  }
}

// at_least() returns the larger of a and x, at_most() the smaller; where a or x is NaN, both return
// x. Highway's Max and Min return x on x86, too, but on AArch64 the operand that is not NaN.
template <class V>
HWY_INLINE V at_least(V a, V x) {
#if HWY_ARCH_X86
  return hn::Max(a, x);
#else
  return hn::IfThenElse(hn::Gt(a, x), a, x);
#endif
}
template <class V>
HWY_INLINE V at_most(V a, V x) {
#if HWY_ARCH_X86
  return hn::Min(a, x);
#else
  return hn::IfThenElse(hn::Lt(a, x), a, x);
#endif
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
