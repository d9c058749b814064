// SPDX-License-Identifier: Apache-2.0
// The additive score and its derivative by factored exponentials, for each CPU target.
#if defined(QKV_KERNELS_ADDITIVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_ADDITIVE_INL_H_
#undef QKV_KERNELS_ADDITIVE_INL_H_
#else
#define QKV_KERNELS_ADDITIVE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>

#include <hwy/highway.h>

#include "core/order.h"
#include "kernels/additive_kernels.h"
#include "kernels/exp-inl.h"
#include "kernels/tile-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ln(2) in two parts; the first has trailing zero bits, so that products with small integers are
// exact.
inline constexpr double kLn2High = 0x1.62e42fee00000p-1;
inline constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

// The form whose code runs for rows of form kForm. In double, rows of kSmall run the code of
// kWhole: applying the bound kLargest takes less time than the division.
template <class T, ExponentialForm kForm>
inline constexpr ExponentialForm kCodeForm =
    sizeof(T) == 8 && kForm == ExponentialForm::kSmall ? ExponentialForm::kWhole : kForm;

// ---- exponentials ---------------------------------------------------------------------------

// Bound of the rest of a split(). The rest is the error of the power, which is large where T cannot
// hold each integer of the power's size. If a rest is above this bound, neighbouring powers are so
// far apart that tanh is certainly -1, 0 or 1.
template <class T>
inline constexpr T kMostRest = 40;

// Splits exp(2a) = 2^(power + rest): the power is 2a log2(e) rounded to an integer that T can hold,
// and the rest is the remainder.
#if !HWY_NATIVE_FMA
// Targets without fused multiply-adds compute power and rest in double, half a register at a time.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void split(D d, V a, V* power, V* rest, float) {
  const hn::RepartitionToWide<D> wide;
  const hn::Half<D> half;
  const auto split_half = [&](auto x, auto* left_over) HWY_ATTR {
    const auto z = hn::Mul(hn::PromoteTo(wide, x), hn::Set(wide, 2 * kLog2E<double>));
    const auto n = hn::DemoteTo(half, hn::Round(z));
    *left_over = hn::DemoteTo(half, hn::Sub(z, hn::PromoteTo(wide, n)));
    return n;
  };
  hn::Vec<hn::Half<D>> low_rest;
  hn::Vec<hn::Half<D>> high_rest;
  const auto low = split_half(hn::LowerHalf(half, a), &low_rest);
  const auto high = split_half(hn::UpperHalf(half, a), &high_rest);
  *power = hn::Combine(d, high, low);
  *rest = hn::Combine(d, high_rest, low_rest);
}
#else
template <class D, class V = hn::Vec<D>>
HWY_INLINE void split(D d, V a, V* power, V* rest, float) {
  constexpr double kTwice = 2 * kLog2E<double>;
  constexpr float kHigh = static_cast<float>(kTwice);
  const V high = hn::Set(d, kHigh);
  *power = hn::Round(hn::Mul(a, high));
  *rest = hn::MulAdd(a, hn::Set(d, static_cast<float>(kTwice - double{kHigh})),
                     hn::MulSub(a, high, *power));
}
#endif
// For double the rest is multiplied by ln(2): it is the argument of exp, not of 2^x.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void split(D d, V a, V* power, V* rest, double) {
  const V x = hn::Add(a, a);
  *power = hn::Round(hn::Mul(x, hn::Set(d, kLog2E<double>)));
  const V most = hn::NegMulAdd(*power, hn::Set(d, kLn2High), x);
  *rest = hn::NegMulAdd(*power, hn::Set(d, kLn2Low), most);
}

// Returns the rest for powers of any size. In double its products are exact only if fused, so
// targets without fused multiply-adds compute it again, by std::fma.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exact_rest(D d, V a, V power, V rest) {
#if !HWY_NATIVE_FMA
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    HWY_ALIGN double x[2];
    HWY_ALIGN double n[2];
    hn::Store(hn::Add(a, a), d, x);
    hn::Store(power, d, n);
    for (int lane = 0; lane < 2; ++lane) {
      x[lane] = std::fma(-n[lane], kLn2Low, std::fma(-n[lane], kLn2High, x[lane]));
    }
    return hn::Load(d, x);
  }
#endif
  (void)d;
  (void)a;
  (void)power;
  return rest;
}

// Splits the rest, bounded by kMostRest, into an integer `shift` and a remainder, which is
// returned. In double the rest and the remainder are multiplied by ln(2).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V small_rest(D d, V rest, V* shift) {
  using T = hn::TFromD<D>;
  constexpr T kUnit = sizeof(T) == 4 ? T(1) : T(kLn2High + kLn2Low);
  const V most = hn::Set(d, kMostRest<T> * kUnit);
  rest = at_least(hn::Neg(most), at_most(most, rest));
  if constexpr (sizeof(T) == 4) {
    *shift = hn::Round(rest);
    return hn::Sub(rest, *shift);
  } else {
    *shift = hn::Round(hn::Mul(rest, hn::Set(d, kLog2E<T>)));
    return hn::NegMulAdd(*shift, hn::Set(d, kUnit), rest);
  }
}

// Computes 2^f for |f| <= 1/2; in double exp(f) for |f| <= ln(2)/2.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V power_of_rest(D d, V f, float) {
  V p = hn::Set(d, kPower2[5]);
  for (int i = 4; i >= 0; --i) p = hn::MulAdd(p, f, hn::Set(d, kPower2[i]));
  return hn::MulAdd(p, f, hn::Set(d, 1.0F));
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V power_of_rest(D d, V f, double) {
  V p = hn::Set(d, kExp[10]);
  for (int i = 9; i >= 0; --i) p = hn::MulAdd(p, f, hn::Set(d, kExp[i]));
  return hn::MulAdd(p, f, hn::Set(d, 1.0));
}

// Computes p 2^n for p about 1 and integers n that the exponent of T can hold, by adding n to the
// exponent bits.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V add_exponent(D d, V p, V n) {
  using T = hn::TFromD<D>;
  const hn::RebindToSigned<D> di;
  constexpr int kMantissa = sizeof(T) == 4 ? 23 : 52;
  const auto bits = hn::BitCast(di, hn::Add(n, hn::Set(d, kRounder<T>)));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<kMantissa>(bits)));
}

template <class T>
HWY_NOINLINE ExponentialForm exponentials(const T* a, Index n, T* x, T* power) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  const V zero = hn::Zero(d);
  const V bound = hn::Set(d, kPlainBound<T>);
  const V small = hn::Set(d, kSmallBound<T>);
  ExponentialForm all = ExponentialForm::kSmall;
  const auto exponential = [&](V value, V* e) HWY_ATTR {
    V k;
    V rest;
    split(d, value, &k, &rest, T());
    const auto plain = hn::Le(hn::Abs(value), bound);
    if (hn::AllTrue(d, plain)) {
      *e = zero;
      if (all == ExponentialForm::kSmall && !hn::AllTrue(d, hn::Le(hn::Abs(value), small))) {
        all = ExponentialForm::kWhole;
      }
      return add_exponent(d, power_of_rest(d, rest, T()), k);
    }
    all = ExponentialForm::kPowers;
    // If the power is infinite or NaN, it alone decides the result.
    const auto finite = hn::Lt(hn::Abs(k), hn::Set(d, kInfinity<T>));
    V shift;
    rest = small_rest(d, hn::IfThenElseZero(finite, exact_rest(d, value, k, rest)), &shift);
    shift = hn::IfThenElse(plain, hn::Add(shift, k), shift);
    *e = hn::IfThenZeroElse(plain, k);
    return add_exponent(d, power_of_rest(d, rest, T()), shift);
  };
  Index c = 0;
  for (; c + kLanes <= n; c += kLanes) {
    V e;
    hn::StoreU(exponential(hn::LoadU(d, a + c), &e), d, x + c);
    hn::StoreU(e, d, power + c);
  }
  if (c == n) return all;
  V e;
  store_part(exponential(load_stored_part(d, a + c, n - c), &e), d, x + c, n - c);
  store_part(e, d, power + c, n - c);
  return all;
}

// ---- 1 / (1 + e^2a e^2b) ----------------------------------------------------------------------

// Whether two denominators of scores share a division: 1 / x = y / (x y) and 1 / y = x / (x y).
// Without fused multiply-adds the additional products would take as long as a division. A tanh that
// is rounded to -1 may be an ulp off if the division is shared, so gradients, whose slope 1 -
// tanh^2 must be 0 there, share none.
inline constexpr bool kPairsReciprocals = HWY_NATIVE_FMA != 0;

// Bound of denominators: a reciprocal below 1 / kLargest changes no tanh. The product of two has to
// have a reciprocal that is not subnormal.
template <class T>
inline constexpr T kLargest = sizeof(T) == 4 ? T(0x1p62) : T(0x1p510);

// Computes x 2^e, where e is an integer, infinite or NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V times_power_of_two(D d, V x, V e) {
#if HWY_TARGET == HWY_AVX3
  (void)d;
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return V{_mm512_scalef_ps(x.raw, e.raw)};
  } else {
    return V{_mm512_scalef_pd(x.raw, e.raw)};
  }
#else
  // Adds e to the exponent of x, which is not negative. A subnormal result, which would make later
  // arithmetic a hundred times slower, becomes 0: added to 1 it would vanish anyway.
  using T = hn::TFromD<D>;
  const hn::RebindToSigned<D> di;
  using I = hn::TFromD<decltype(di)>;
  constexpr int kMantissa = sizeof(T) == 4 ? 23 : 52;
  constexpr I kTop = sizeof(T) == 4 ? 255 : 2047;  // the exponent bits of infinity
  const V most = hn::Set(d, T(2) * T(kTop));
  const V n = at_least(hn::Neg(most), at_most(most, e));
  const V rounder = hn::Set(d, kRounder<T>);
  const auto add = hn::Sub(hn::BitCast(di, hn::Add(n, rounder)), hn::BitCast(di, rounder));
  const auto bits = hn::BitCast(di, x);
  const auto exponent = hn::Add(hn::ShiftRight<kMantissa>(bits), add);
  const auto small = hn::RebindMask(d, hn::Lt(exponent, hn::Set(di, I(1))));
  const auto large = hn::RebindMask(d, hn::Gt(exponent, hn::Set(di, I(kTop - 1))));
  const V scaled = hn::BitCast(d, hn::Add(bits, hn::ShiftLeft<kMantissa>(add)));
  const V bounded = hn::IfThenElse(large, hn::Set(d, kInfinity<T>), scaled);
  return hn::IfThenElse(hn::IsNaN(e), e, hn::IfThenZeroElse(small, bounded));
#endif
}

// Computes one + e^2a e^2b; NaN stays NaN. The result is at most kLargest, except for kSmall, and
// except in double if no divisions are shared.
template <ExponentialForm kForm, class D, class V = hn::Vec<D>>
HWY_INLINE V denominator(D d, V a, V a_power, V b, V b_power, V one) {
  if constexpr (kForm == ExponentialForm::kPowers) {
    a = times_power_of_two(d, a, hn::Add(a_power, b_power));
  }
  const V sum = hn::MulAdd(a, b, one);
  if constexpr (kForm == ExponentialForm::kSmall) return sum;
  if constexpr (sizeof(hn::TFromD<D>) == 8 && !kPairsReciprocals) return sum;
  return at_most(hn::Set(d, kLargest<hn::TFromD<D>>), sum);
}

// Computes the reciprocal of a denominator. The estimate `rcpps` of SSE and AVX differs between the
// makers of CPUs and, with the steps that refine it, takes as long as a division. The estimate r of
// AVX-512, vrcp14ps, is defined to the bit. One Newton step makes it r (1 + e), where e is 1 - x r;
// 1 / 1 is exactly 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V reciprocal(D d, V x) {
  using T = hn::TFromD<D>;
  const V one = hn::Set(d, T(1));
  if constexpr (sizeof(T) == 8 || HWY_TARGET != HWY_AVX3) {
    return hn::Div(one, x);
  } else {
    const V estimate = hn::ApproximateReciprocal(x);
    return hn::MulAdd(estimate, hn::NegMulAdd(x, estimate, one), estimate);
  }
}

// Computes to = `from` - 1 / x for one or two denominators x.
template <int kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void minus_reciprocals(D d, V from, const V (&x)[kCount], V (&to)[kCount]) {
  if constexpr (kCount == 1) {
    to[0] = hn::Sub(from, reciprocal(d, x[0]));
  } else {
    static_assert(kCount == 2);
    const V both = reciprocal(d, hn::Mul(x[0], x[1]));
    to[0] = hn::NegMulAdd(both, x[1], from);
    to[1] = hn::NegMulAdd(both, x[0], from);
  }
}

// ---- scores ---------------------------------------------------------------------------------

// Computes a tile of scores. It is not inlined, for the reason given at scores_tile
// (kernels/tile-inl.h). Each chunk of units is summed from zero: 2 sum v (1/2 - r). If
// kPairsReciprocals, units 2 n and 2 n + 1 of a pair share a division in every tile.
template <class T, ExponentialForm kForm, int kRows, int kVectors>
HWY_NOINLINE void additive_tile(const T* HWY_RESTRICT left, Index stride,
                                const T* HWY_RESTRICT panel, const AdditiveUnits<T>& by, T scale,
                                T* HWY_RESTRICT s, Index s_stride) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr bool kAny = kForm == ExponentialForm::kPowers;
  const Index units = by.units;
  const V zero = hn::Zero(d);
  const V one = hn::Set(d, T(1));
  const V half = hn::Set(d, T(0.5));
  for (Index u0 = 0; u0 < units; u0 += core::kUnitChunk) {
    V acc[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int x = 0; x < kVectors; ++x) acc[r][x] = zero;
    }
    const Index end = std::min(units, u0 + core::kUnitChunk);
    const auto add_units = [&](Index u, auto count) HWY_ATTR {  // units from u on
      constexpr int kUnits = count();
      V b[kUnits][kVectors];
      V b_power[kUnits][kVectors];
      V weight[kUnits];
#pragma GCC unroll 8
      for (int n = 0; n < kUnits; ++n) {
        const T* keys = panel + (u + n) * kPanel;
        weight[n] = hn::Set(d, by.v[u + n]);
#pragma GCC unroll 8
        for (int x = 0; x < kVectors; ++x) {
          b[n][x] = hn::LoadU(d, keys + x * kLanes);
          b_power[n][x] = kAny ? hn::LoadU(d, keys + units * kPanel + x * kLanes) : zero;
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        V a[kUnits];
        V a_power[kUnits];
#pragma GCC unroll 8
        for (int n = 0; n < kUnits; ++n) {
          a[n] = hn::Set(d, left[r * stride + u + n]);
          a_power[n] = kAny ? hn::Set(d, left[r * stride + units + u + n]) : zero;
        }
#pragma GCC unroll 8
        for (int x = 0; x < kVectors; ++x) {
          V sum[kUnits];
#pragma GCC unroll 8
          for (int n = 0; n < kUnits; ++n) {
            sum[n] = denominator<kForm>(d, a[n], a_power[n], b[n][x], b_power[n][x], one);
          }
          V half_tanh[kUnits];
          minus_reciprocals(d, half, sum, half_tanh);
#pragma GCC unroll 8
          for (int n = 0; n < kUnits; ++n) {
            acc[r][x] = hn::MulAdd(weight[n], half_tanh[n], acc[r][x]);
          }
        }
      }
    };
    Index u = u0;
    if constexpr (kPairsReciprocals) {
      for (; u + 1 < end; u += 2) add_units(u, std::integral_constant<int, 2>());
    }
    for (; u < end; ++u) add_units(u, std::integral_constant<int, 1>());
    const V factor = hn::Set(d, end == units ? scale : T(1));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int x = 0; x < kVectors; ++x) {
        T* to = s + r * s_stride + x * kLanes;
        V total = hn::Add(acc[r][x], acc[r][x]);
        if (u0 > 0) total = hn::Add(hn::LoadU(d, to), total);
        hn::StoreU(hn::Mul(total, factor), d, to);
      }
    }
  }
}

// Computes scores of keys from n on: in tiles of kVectors registers, and of the last keys in
// narrower tiles.
template <class T, ExponentialForm kForm, int kRows, int kVectors>
void additive_rows_from(Index n, const RowsOf<const T>& left, const T* panel, Index keys,
                        const AdditiveUnits<T>& by, T scale, const RowsOf<T>& s) {
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  for (; n + (kVectors - 1) * kLanes < keys; n += kVectors * kLanes) {
    additive_tile<T, kForm, kRows, kVectors>(left.data, left.stride, panel + n, by, scale,
                                             s.data + n, s.stride);
  }
  if constexpr (kVectors > 1) {
    additive_rows_from<T, kForm, kRows, kVectors / 2>(n, left, panel, keys, by, scale, s);
  }
}

template <class T, ExponentialForm kForm, int kRows>
void additive_rows(const RowsOf<const T>& left, const T* panel, Index keys,
                   const AdditiveUnits<T>& by, T scale, const RowsOf<T>& s) {
  // Each addition waits for the previous one of its sum, so a tile has kVectors independent
  // registers of sums for each row.
  constexpr int kVectors = HWY_TARGET != HWY_AVX3 || kForm == ExponentialForm::kPowers ? 1
                           : kRows > 3                                                 ? 2
                                                                                       : 4;
  additive_rows_from<T, kForm, kRows, kVectors>(0, left, panel, keys, by, scale, s);
}

template <class T, ExponentialForm kForm>
void additive_scores(const RowsOf<const T>& left, Index rows, const T* panel, Index keys,
                     const AdditiveUnits<T>& by, T scale, const RowsOf<T>& s) {
  constexpr void (*kByRows[])(const RowsOf<const T>&, const T*, Index, const AdditiveUnits<T>&, T,
                              const RowsOf<T>&) = {
      &additive_rows<T, kForm, 1>, &additive_rows<T, kForm, 2>, &additive_rows<T, kForm, 3>,
      &additive_rows<T, kForm, 4>, &additive_rows<T, kForm, 5>, &additive_rows<T, kForm, 6>};
  kByRows[rows - 1](left, panel, keys, by, scale, s);
}

// ---- gradients ------------------------------------------------------------------------------

template <class T, ExponentialForm kForm, int kRows>
HWY_NOINLINE void add_pair_tile(const UnitColumn<T>& left, const UnitColumn<T>& right, Index keys,
                                const T* HWY_RESTRICT ds, Index ds_stride, const PairSums<T>& to) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr bool kAny = kForm == ExponentialForm::kPowers;
  const V zero = hn::Zero(d);
  const V one = hn::Set(d, T(1));
  const V half = hn::Set(d, T(0.5));
  for (Index lane = 0; lane < kUnitLanes; lane += kLanes) {
    V a[kRows];
    V a_power[kRows];
    V sum[kRows];
    V weights[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Index at = r * kUnitLanes + lane;
      a[r] = hn::Mul(hn::LoadU(d, left.x + at), half);  // 2 r = 1 / (1/2 + e^2a e^2b / 2)
      a_power[r] = kAny ? hn::LoadU(d, left.power + at) : zero;
      sum[r] = hn::LoadU(d, to.left + at);
      weights[r] = hn::LoadU(d, to.weights + at);
    }
    const T* HWY_RESTRICT b_at = right.x + lane;
    T* HWY_RESTRICT to_right = to.right + lane;
    for (Index n = 0; n < keys; ++n, b_at += kUnitLanes, to_right += kUnitLanes) {
      const V b = hn::LoadU(d, b_at);
      const V b_power = kAny ? hn::LoadU(d, right.power + n * kUnitLanes + lane) : zero;
      V key = hn::LoadU(d, to_right);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        // tanh = 1 - 2 r, whose subtraction is exact where it cancels.
        const V twice_r = reciprocal(d, denominator<kForm>(d, a[r], a_power[r], b, b_power, half));
        const V tanh = hn::Sub(one, twice_r);
        const V gradient = hn::Set(d, ds[r * ds_stride + n]);
        const V weighted = hn::Mul(gradient, tanh);
        const V slope = hn::NegMulAdd(weighted, tanh, gradient);
        weights[r] = hn::Add(weights[r], weighted);
        sum[r] = hn::Add(sum[r], slope);
        key = hn::Add(key, slope);
      }
      hn::StoreU(key, d, to_right);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Index at = r * kUnitLanes + lane;
      hn::StoreU(sum[r], d, to.left + at);
      hn::StoreU(weights[r], d, to.weights + at);
    }
  }
}

template <class T, ExponentialForm kForm>
HWY_INLINE void add_any_pairs(UnitColumn<T> left, Index rows, const UnitColumn<T>& right,
                              Index keys, const RowsOf<const T>& ds, PairSums<T> to) {
  using Tile = void (*)(const UnitColumn<T>&, const UnitColumn<T>&, Index, const T*, Index,
                        const PairSums<T>&);
  constexpr Tile kTiles[] = {
    &add_pair_tile<T, kForm, 1>,
    &add_pair_tile<T, kForm, 2>,
#if HWY_TARGET == HWY_AVX3
    &add_pair_tile<T, kForm, 3>,
    &add_pair_tile<T, kForm, 4>,
    &add_pair_tile<T, kForm, 5>,
    &add_pair_tile<T, kForm, 6>,
#endif
  };
  constexpr Index kMost = static_cast<Index>(std::size(kTiles));
  for (Index r = 0; r < rows;) {
    const Index count = std::min(kMost, rows - r);
    kTiles[count - 1](left, right, keys, ds.data + r * ds.stride, ds.stride, to);
    const Index step = count * kUnitLanes;
    left.x += step;
    if (kForm == ExponentialForm::kPowers) left.power += step;
    to.left += step;
    to.weights += step;
    r += count;
  }
}

template <class T>
void add_pairs(ExponentialForm form, const UnitColumn<T>& left, Index rows,
               const UnitColumn<T>& right, Index keys, const RowsOf<const T>& ds,
               const PairSums<T>& to) {
  switch (form) {
    case ExponentialForm::kSmall:
      return add_any_pairs<T, kCodeForm<T, ExponentialForm::kSmall>>(left, rows, right, keys, ds,
                                                                     to);
    case ExponentialForm::kWhole:
      return add_any_pairs<T, ExponentialForm::kWhole>(left, rows, right, keys, ds, to);
    case ExponentialForm::kPowers:
      return add_any_pairs<T, ExponentialForm::kPowers>(left, rows, right, keys, ds, to);
  }
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
