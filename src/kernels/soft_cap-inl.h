// SPDX-License-Identifier: Apache-2.0
// The soft-cap, for each CPU target: replaces scores s by cap tanh(s / cap) and, if `slopes` is
// given, multiplies these by the derivative, 1 - tanh^2(s / cap).
#if defined(QKV_KERNELS_SOFT_CAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_SOFT_CAP_INL_H_
#undef QKV_KERNELS_SOFT_CAP_INL_H_
#else
#define QKV_KERNELS_SOFT_CAP_INL_H_
#endif

#include <algorithm>
#include <iterator>
#include <limits>

#include <hwy/highway.h>

#include <qkv/soft_cap.h>

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Does the operations of detail::capped (qkv/soft_cap.h) in the same order, for bit-identical
// results. Each operation depends on the previous one, so kChains registers are interleaved to hide
// the latency.
template <class T, int kChains>
HWY_INLINE void soft_cap_registers(T* HWY_RESTRICT s, T* slopes, T cap, T inverse) {
  const hn::ScalableTag<T> d;
  const hn::RebindToUnsigned<decltype(d)> bits;
  using N = detail::SoftCapNumbers<T>;
  using V = hn::Vec<decltype(d)>;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr int kTerms = std::size(N::kCoefficients);
  const auto set = [d](T x) HWY_ATTR { return hn::Set(d, x); };
  const auto each = [](const auto& f) HWY_ATTR {
#pragma GCC unroll 8
    for (int x = 0; x < kChains; ++x) f(x);
  };
  const auto scaled = [&](int x)
                          HWY_ATTR { return hn::Mul(hn::LoadU(d, s + x * kLanes), set(inverse)); };
  V r[kChains];
  V shifted[kChains];
  V q[kChains];
  each([&](int x) HWY_ATTR {
    const V magnitude = hn::Abs(scaled(x));
    const V largest = set(N::kLargest);
    r[x] = hn::IfThenElse(hn::Gt(magnitude, largest), largest, magnitude);  // NaN stays
  });
  each([&](int x)
           HWY_ATTR { shifted[x] = hn::Add(hn::Mul(r[x], set(N::kLog2E)), set(N::kRound)); });
  each([&](int x) HWY_ATTR { q[x] = hn::Sub(shifted[x], set(N::kRound)); });
  each([&](int x) HWY_ATTR { r[x] = hn::Sub(r[x], hn::Mul(q[x], set(N::kLn2High))); });
  each([&](int x) HWY_ATTR { r[x] = hn::Sub(r[x], hn::Mul(q[x], set(N::kLn2Low))); });
  each([&](int x) HWY_ATTR { q[x] = set(N::kCoefficients[kTerms - 1]); });
#pragma GCC unroll 16
  for (int k = kTerms - 2; k >= 0; --k) {
    each([&](int x) HWY_ATTR { q[x] = hn::Add(hn::Mul(q[x], r[x]), set(N::kCoefficients[k])); });
  }
  each([&](int x) HWY_ATTR { q[x] = hn::Add(r[x], hn::Mul(hn::Mul(r[x], r[x]), q[x])); });
  each([&](int x) HWY_ATTR {
    const auto exponent = hn::ShiftLeft<N::kFractionBits>(hn::BitCast(bits, shifted[x]));
    const V power = hn::BitCast(d, hn::Add(exponent, hn::BitCast(bits, set(T(1)))));
    q[x] = hn::Add(hn::Mul(power, q[x]), hn::Sub(power, set(T(1))));
  });
  each([&](int x) HWY_ATTR { q[x] = hn::Div(q[x], hn::Add(q[x], set(T(2)))); });
  each([&](int x) HWY_ATTR {
    T* const at = s + x * kLanes;
    const V score = hn::LoadU(d, at);
    const V sign = hn::And(scaled(x), set(T(-0.0)));
    const V tanh = hn::Or(q[x], sign);
    const V small = hn::VecFromMask(d, hn::Lt(hn::Abs(scaled(x)), set(N::kSmallest)));
    hn::StoreU(hn::IfVecThenElse(small, score, hn::Mul(set(cap), tanh)), d, at);
    if (slopes == nullptr) return;
    T* const slope = slopes + x * kLanes;
    const V factor = hn::Sub(set(T(1)), hn::Mul(tanh, tanh));
    hn::StoreU(hn::Mul(hn::LoadU(d, slope), factor), d, slope);
  });
}

template <class T>
HWY_NOINLINE void soft_cap(T* s, T* slopes, T cap, Index n) {
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr int kChains = HWY_TARGET == HWY_AVX3 ? 8 : 4;
  const T inverse = std::min(T(2) / cap, std::numeric_limits<T>::max());
  Index x = 0;
  const auto at = [&](T* from) { return from == nullptr ? nullptr : from + x; };
  for (; x + kChains * kLanes <= n; x += kChains * kLanes) {
    soft_cap_registers<T, kChains>(s + x, at(slopes), cap, inverse);
  }
  for (; x < n; x += kLanes) soft_cap_registers<T, 1>(s + x, at(slopes), cap, inverse);
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
