// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_BFLOAT16_PAIRS_H_
#define QKV_CORE_BFLOAT16_PAIRS_H_

#include <algorithm>
#include <cmath>

#include "core/half_floats.h"
#include "core/order.h"
#include "core/problem.h"
#include "core/results.h"

// Products of bfloat16 as AVX512-BF16 has them (VDPBF16PS), in plain arithmetic: a lane adds the
// products of a pair to a float32, that of the odd element first. Each of the two steps is a fused
// multiply-add, rounded to nearest; subnormal numbers, those added too, count as zeros of their
// sign, and so does a tiny result. (Intel, Software Developer's Manual, volume 2, VDPBF16PS; what
// is tiny: volume 1, section 4.9.1.5.)
namespace qkv::core {

// Whether scores and weighted sums of a call are products of pairs where the target has them: dot
// products of q and k as they are stored. Values have the type of keys.
inline bool has_bfloat16_pairs(const Problem& p) noexcept {
  return p.product == PairProduct::kDot && p.query_maps.is_identity() && p.key_maps.is_identity() &&
         p.q.dtype == DType::kBFloat16 && p.k.dtype == DType::kBFloat16 &&
         (!p.v.given() || p.v.dtype == DType::kBFloat16);
}

// The same of the gradients of a call; out and dout have the type of q.
inline bool has_bfloat16_pairs(const Problem& p, const GradientSources& from) noexcept {
  const auto is_paired = [](const Operand& x) { return !x.given() || x.dtype == DType::kBFloat16; };
  return has_bfloat16_pairs(p) && is_paired(from.dout) && is_paired(from.out);
}

// A subnormal number as zero.
inline float flushed(float x) noexcept {
  return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x;
}

// One of the two steps: sum + a b, where a and b are bfloat16.
inline float add_flushed_product(float a, float b, float sum) noexcept {
  a = flushed(a);
  b = flushed(b);
  sum = flushed(sum);
  const float result = std::fma(a, b, sum);
  if (std::fabs(result) > 0x1p-126F || result == 0) return result;
  // A result is tiny if it stays below 2^-126 when it is rounded to 24 bits whatever its exponent.
  // Numbers from 2^-126 - 2^-151 on do not; std::fma rounds to fewer bits there.
  const double exact = double{a} * double{b} + double{sum};
  return std::fabs(exact) < 0x1p-126 - 0x1p-151 ? std::copysign(0.0F, result) : result;
}

// A weight as a bfloat16 (VCVTNE2PS2BF16): to nearest, ties to even.
inline float rounded_weight(float w) noexcept { return to_float(from_float<BFloat16>(flushed(w))); }

// f(n) for the terms begin .. end-1 of a sum, in pairs or not, in the order in which they are
// added: ascending, but the odd one of a pair first. `begin` is even.
template <class F>
void for_each_term(bool pairs, Index begin, Index end, const F& f) {
  for (Index n = begin; n < end; n += pairs ? 2 : 1) {
    if (pairs && n + 1 < end) f(n + 1);
    f(n);
  }
}

// sum_c a_c b_c: pairs of channels in ascending order, in blocks of kChannelBlock channels, each
// from zero and added to the blocks before it.
inline float dot_of_pairs(const float* a, const float* b, Index n) noexcept {
  float total = 0;
  for (Index begin = 0; begin < n; begin += kChannelBlock) {
    const Index end = std::min(n, begin + kChannelBlock);
    float sum = 0;
    for (Index c = begin; c < end; c += 2) {
      if (c + 1 < end) sum = add_flushed_product(a[c + 1], b[c + 1], sum);
      sum = add_flushed_product(a[c], b[c], sum);
    }
    total = begin == 0 ? sum : total + sum;
  }
  return total;
}

}  // namespace qkv::core

#endif  // QKV_CORE_BFLOAT16_PAIRS_H_
