// SPDX-License-Identifier: Apache-2.0
// The exponential of softmax. This file is included once for each CPU target.
#if defined(QKV_KERNELS_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_EXP_INL_H_
#undef QKV_KERNELS_EXP_INL_H_
#else
#define QKV_KERNELS_EXP_INL_H_
#endif

#include <limits>

#include <hwy/highway.h>

#include "core/order.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();

#if HWY_TARGET == HWY_AVX3
// Computes y 2^n for integers n, stored as floating-point numbers, or 0 where x < least. A NaN x is
// not less than `least`.
HWY_INLINE __m512 times_power(__m512 y, __m512 n, __m512 x, float least) {
  const __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(least), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(keep, y, n);
}
HWY_INLINE __m512d times_power(__m512d y, __m512d n, __m512d x, double least) {
  const __mmask8 keep = _mm512_cmp_pd_mask(x, _mm512_set1_pd(least), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_pd(keep, y, n);
}
HWY_INLINE __m128 times_power(__m128 y, __m128 n, __m128 x, float least) {
  const __mmask8 keep = _mm_cmp_ps_mask(x, _mm_set1_ps(least), _CMP_NLT_UQ);
  return _mm_maskz_scalef_ps(keep, y, n);
}
HWY_INLINE __m128d times_power(__m128d y, __m128d n, __m128d x, double least) {
  const __mmask8 keep = _mm_cmp_pd_mask(x, _mm_set1_pd(least), _CMP_NLT_UQ);
  return _mm_maskz_scalef_pd(keep, y, n);
}
#endif

// 1.5 * 2^(digits - 1). Adding and then subtracting it rounds x to an integer if
// |x| < 2^(digits - 2). The last bit of the sum counts 1, so its low bits are those of the integer.
template <class T>
inline constexpr T kRounder = T(3) * (sizeof(T) == 4 ? T(1 << 22) : T(std::int64_t{1} << 51));

template <class T>
inline constexpr T kLog2E = T(1.4426950408889634);

// Coefficients of 2^f for |f| <= 1/2: a minimax polynomial with value 1 at 0 (Remez exchange),
// relative error 2.6e-9 before rounding.
inline constexpr float kPower2[] = {0x1.62e432p-1F, 0x1.ebfbe2p-3F,  0x1.c6ae72p-5F,
                                    0x1.3b270ep-7F, 0x1.5f7276p-10F, 0x1.470b4ap-13F};
// Coefficients of exp(r) for |r| <= ln(2)/2: a minimax polynomial with value 1 at 0, relative error
// 1.8e-17 before rounding.
inline constexpr double kExp[] = {
    1.0000000000000007,     0.5000000000000006,    0.166666666666573,     0.041666666666573635,
    0.00833333333771546,    0.0013888888932340796, 0.000198412614913928,  2.480150451103708e-05,
    2.7564254929439036e-06, 2.762629655421717e-07, 2.2981311538834364e-08};

// Computes 2^f, where f is the remainder of the range reduction x log2(e) = n + f.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of_rest(D d, V x, V n, float) {
  // Where the product is fused and so not rounded, the error of f is x times the error of the
  // constant, 1.9e-8.
  const V f = hn::MulSub(x, hn::Set(d, kLog2E<float>), n);
  V p = hn::Set(d, kPower2[5]);
  for (int i = 4; i >= 0; --i) p = hn::MulAdd(p, f, hn::Set(d, kPower2[i]));
  return hn::MulAdd(p, f, hn::Set(d, 1.0F));
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of_rest(D d, V x, V n, double) {
  // ln(2) in two parts; the first has trailing zero bits, so that its product with n is exact.
  V r = hn::NegMulAdd(n, hn::Set(d, 0x1.62e42fee00000p-1), x);
  r = hn::NegMulAdd(n, hn::Set(d, 0x1.a39ef35793c76p-33), r);
  V p = hn::Set(d, kExp[10]);
  for (int i = 9; i >= 0; --i) p = hn::MulAdd(p, r, hn::Set(d, kExp[i]));
  return hn::MulAdd(p, r, hn::Set(d, 1.0));
}

// Computes exp(x) for x <= 0; NaN stays NaN. The relative error is about (1 + |x|/8) 2^-23 in
// float32 (without fused multiply-adds (1 + 5|x|/8) 2^-23), 2^-52 in float64. The result is
// exactly 0 for -inf and any other x < least. `least` is at least core::kNormalExponent, so no
// result is subnormal.
template <class D, class T = hn::TFromD<D>, class V = hn::Vec<D>>
HWY_INLINE V exp_nonpositive(D d, V x, T least = core::kNormalExponent<T>) {
#if HWY_TARGET != HWY_AVX3
  const auto vanishes = hn::Lt(x, hn::Set(d, least));  // false for NaN
  x = at_least(hn::Set(d, least), x);
#endif
  const V rounder = hn::Set(d, kRounder<T>);
  const V shifted = hn::MulAdd(x, hn::Set(d, kLog2E<T>), rounder);
  const V n = hn::Sub(shifted, rounder);
  const V p = exp_of_rest(d, x, n, T());
#if HWY_TARGET == HWY_AVX3
  return V{times_power(p.raw, n.raw, x.raw, least)};
#else
  // 2^n is made from its exponent bits. p is multiplied by it, so that NaN stays NaN.
  const hn::RebindToSigned<D> di;
  constexpr int kMantissa = sizeof(T) == 4 ? 23 : 52;
  const V power = hn::BitCast(d, hn::Add(hn::ShiftLeft<kMantissa>(hn::BitCast(di, shifted)),
                                         hn::BitCast(di, hn::Set(d, T(1)))));
  return hn::IfThenZeroElse(vanishes, hn::Mul(p, power));
#endif
}

// Computes exp(x) as a weight: 0 where it is too small to count.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V weight_exp(D d, V x) {
  return exp_nonpositive(d, x, core::kLeastExponent<hn::TFromD<D>>);
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
