// SPDX-License-Identifier: Apache-2.0
#include "kernels/gru_kernels.h"

// Highway compiles everything below once for each target. Its own dispatch is not used, so that
// only its headers are needed. With gcc 12, Highway's baseline has one lane, and CPUs without
// better targets run the reference.
// NOLINTBEGIN(readability-identifier-naming): Highway reads them.
#define HWY_DISABLED_TARGETS QKV_DISABLED_HIGHWAY_TARGETS
#define HWY_DISABLE_PCLMUL_AES
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gru_kernels.cc"
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

// Computes 1 / (1 + exp(-x)); the exponential is of -|x|, so that it does not overflow.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid(D d, V x) {
  const V one = hn::Set(d, hn::TFromD<D>(1));
  const V e = exp_nonpositive(d, hn::Neg(hn::Abs(x)));
  // If x is NaN, so are e and the quotient.
  const V above = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::Div(above, hn::Add(one, e));
}

// Computes tanh(x) as (1 - exp(-2|x|)) / (1 + exp(-2|x|)) with the sign of x. Near 0, where the
// numerator cancels, computes a Taylor polynomial whose first omitted term is below half an ulp.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh(D d, V x) {
  using T = hn::TFromD<D>;
  const auto set = [d](double value) HWY_ATTR { return hn::Set(d, static_cast<T>(value)); };
  const V one = set(1);
  const V size = hn::Abs(x);
  const V e = exp_nonpositive(d, hn::Mul(set(-2), size));
  const V far = hn::Div(hn::Sub(one, e), hn::Add(one, e));
  const V square = hn::Mul(x, x);
  V series = hn::MulAdd(square, set(-1382.0 / 155925), set(62.0 / 2835));
  series = hn::MulAdd(square, series, set(-17.0 / 315));
  series = hn::MulAdd(square, series, set(2.0 / 15));
  series = hn::MulAdd(square, series, set(-1.0 / 3));
  const V near = hn::MulAdd(hn::Mul(square, series), size, size);
  const double end = sizeof(T) == 4 ? 0.25 : 0.05;
  return hn::CopySign(hn::IfThenElse(hn::Lt(size, set(end)), near, far), x);
}

template <class T>
void gru_forward(const T* xs, const T* hs, const T* h, Index hidden, T* next, T* gates) {
  for_each_vector<T>(hidden, [&](auto d, Index u) HWY_ATTR {
    const auto sum = [&](Index gate) HWY_ATTR {
      return hn::Add(hn::LoadU(d, xs + gate * hidden + u), hn::LoadU(d, hs + gate * hidden + u));
    };
    const auto hs_n = hn::LoadU(d, hs + 2 * hidden + u);
    const auto r = sigmoid(d, sum(0));
    const auto z = sigmoid(d, sum(1));
    const auto n = tanh(d, hn::MulAdd(r, hs_n, hn::LoadU(d, xs + 2 * hidden + u)));
    if (gates != nullptr) {
      hn::StoreU(r, d, gates + u);
      hn::StoreU(z, d, gates + hidden + u);
      hn::StoreU(n, d, gates + 2 * hidden + u);
      hn::StoreU(hs_n, d, gates + 3 * hidden + u);
    }
    // (1 - z) n + z h
    hn::StoreU(hn::MulAdd(z, hn::Sub(hn::LoadU(d, h + u), n), n), d, next + u);
  });
}

template <class T>
void gru_backward(const T* gates, const T* h, const T* dnext, Index hidden, T* dgates, T* dh) {
  for_each_vector<T>(hidden, [&](auto d, Index u) HWY_ATTR {
    const auto one = hn::Set(d, T(1));
    const auto r = hn::LoadU(d, gates + u);
    const auto z = hn::LoadU(d, gates + hidden + u);
    const auto n = hn::LoadU(d, gates + 2 * hidden + u);
    const auto hs_n = hn::LoadU(d, gates + 3 * hidden + u);
    const auto slope = hn::LoadU(d, dnext + u);
    const auto dz = hn::Mul(slope, hn::Sub(hn::LoadU(d, h + u), n));
    const auto dn = hn::Mul(hn::Mul(slope, hn::Sub(one, z)), hn::NegMulAdd(n, n, one));
    const auto dr = hn::Mul(dn, hs_n);
    hn::StoreU(hn::Mul(dr, hn::Mul(r, hn::Sub(one, r))), d, dgates + u);
    hn::StoreU(hn::Mul(dz, hn::Mul(z, hn::Sub(one, z))), d, dgates + hidden + u);
    hn::StoreU(dn, d, dgates + 2 * hidden + u);
    hn::StoreU(hn::Mul(dn, r), d, dgates + 3 * hidden + u);
    hn::StoreU(hn::Mul(slope, z), d, dh + u);
  });
}

template <class T>
constexpr GruKernels<T> kGruKernels{&gru_forward<T>, &gru_backward<T>};

const GruKernels<float>& float32_gru_kernels() { return kGruKernels<float>; }
const GruKernels<double>& float64_gru_kernels() { return kGruKernels<double>; }

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace qkv::kernels {

template <>
const GruKernels<float>& gru_kernels<float>(Target target) noexcept {
  QKV_TABLE_OF_TARGET(target, float32_gru_kernels);
}

template <>
const GruKernels<double>& gru_kernels<double>(Target target) noexcept {
  QKV_TABLE_OF_TARGET(target, float64_gru_kernels);
}

}  // namespace qkv::kernels
#endif
