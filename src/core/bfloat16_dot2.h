// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_BFLOAT16_DOT2_H_
#define QKV_CORE_BFLOAT16_DOT2_H_

#include <algorithm>
#include <cmath>

#include "core/half_floats.h"
#include "core/order.h"
#include "core/problem.h"
#include "core/results.h"

// The two-way dot product of the BF16 instruction (AVX512-BF16, VDPBF16PS) in plain arithmetic:
// each element of a register adds the two products of a pair of bfloat16 numbers to a float32, that
// of the odd numbers first. Each of the two steps is a fused multiply-add, rounded to nearest.
// Subnormal numbers, including the float32, count as zeros of their sign, and a tiny result becomes
// zero. (Intel, Software Developer's Manual, volume 2, VDPBF16PS; volume 1, section 4.9.1.5 defines
// "tiny".)
namespace qkv::core {

// True if the scores and weighted sums of a call are two-way dot products where the target has
// them: the score is the dot product of q and k as stored, both bfloat16. v has the dtype of k.
inline bool takes_dot2(const Problem& p) noexcept {
  return p.product == PairProduct::kDot && p.query_maps.is_identity() && p.key_maps.is_identity() &&
         p.q.dtype == DType::kBFloat16 && p.k.dtype == DType::kBFloat16 &&
         (!p.v.given() || p.v.dtype == DType::kBFloat16);
}

// True if the gradients of a call are two-way dot products as well; out and dout have the dtype of
// q.
inline bool takes_dot2(const Problem& p, const GradientSources& from) noexcept {
  const auto is_bfloat16 = [](const Operand& x) {
    return !x.given() || x.dtype == DType::kBFloat16;
  };
  return takes_dot2(p) && is_bfloat16(from.dout) && is_bfloat16(from.out);
}

// Returns x, or a zero of its sign if x is subnormal.
inline float flushed(float x) noexcept {
  return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x;
}

// One of the two steps of the dot product: sum + a b, where a and b are bfloat16.
inline float add_flushed_product(float a, float b, float sum) noexcept {
  a = flushed(a);
  b = flushed(b);
  sum = flushed(sum);
  const float result = std::fma(a, b, sum);
  if (std::fabs(result) > 0x1p-126F || result == 0) return result;
  // A result is tiny if it would stay below 2^-126 when rounded to 24 bits with an unbounded
  // exponent. Numbers from 2^-126 - 2^-151 on are not tiny, but std::fma rounds to fewer bits
  // there.
  const double exact = double{a} * double{b} + double{sum};
  return std::fabs(exact) < 0x1p-126 - 0x1p-151 ? std::copysign(0.0F, result) : result;
}

// Returns a weight rounded to bfloat16 (VCVTNE2PS2BF16): to nearest, ties to even.
inline float rounded_weight(float w) noexcept { return to_float(from_float<BFloat16>(flushed(w))); }

// Calls f(n) for the terms begin .. end-1 of a sum in the order in which they are added: ascending,
// but with `is_dot2` the odd term of each pair first. `begin` is even.
template <class F>
void for_each_term(bool is_dot2, Index begin, Index end, const F& f) {
  for (Index n = begin; n < end; n += is_dot2 ? 2 : 1) {
    if (is_dot2 && n + 1 < end) f(n + 1);
    f(n);
  }
}

// Computes sum_c a_c b_c over pairs of channels in ascending order, in blocks of kChannelBlock
// channels. Each block is summed from zero and added to the blocks before it.
inline float dot2(const float* a, const float* b, Index n) noexcept {
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

#endif  // QKV_CORE_BFLOAT16_DOT2_H_
