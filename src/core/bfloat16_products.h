// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_BFLOAT16_PRODUCTS_H_
#define QKV_CORE_BFLOAT16_PRODUCTS_H_

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/half_floats.h"
#include "core/order.h"
#include "core/problem.h"
#include "core/results.h"

// The products of bfloat16 numbers that CPUs have instructions for, in plain arithmetic. In all of
// them subnormal numbers, including float32 sums, count as zeros of their sign, every operation is
// rounded to nearest, and a tiny result becomes zero. (Intel, Software Developer's Manual, volume
// 1, section 4.9.1.5 defines "tiny".)
//
// dot2, the two-way dot product (AVX512-BF16, VDPBF16PS): each element of a register adds an odd
// term, then an even term to a float32 sum. A term is a product of two bfloat16 numbers, added by a
// fused multiply-add. (Volume 2, VDPBF16PS.)
//
// AMX (AMX-BF16, TDPBF16PS): each element of a tile adds a step of up to 32 terms to a float32 sum.
// The even terms of the step are added up by a chain of fused multiply-adds in ascending order from
// +0, the odd ones by another; the two chains are added, and the result is added to the sum.
// (Volume 2, TDPBF16PS.)
namespace qkv::core {

// The products of a call: of numbers widened to the accumulator's type, in ascending order, or of
// bfloat16 numbers by one of the instructions.
enum class Products { kPlain, kDot2, kAmx };

// The number of terms that one step adds: a sum may be divided only at multiples of it.
constexpr Index step_of(Products products) noexcept {
  switch (products) {
    case Products::kPlain:
      return 1;
    case Products::kDot2:
      return 2;
    case Products::kAmx:
      return 32;
  }
  __builtin_unreachable();
}

// True if the scores and weighted sums of a call are products of bfloat16 where the target has
// them: the score is the dot product of q and k as stored, both bfloat16. v has the dtype of k.
inline bool multiplies_bfloat16(const Problem& p) noexcept {
  return p.product == PairProduct::kDot && p.query_maps.is_identity() && p.key_maps.is_identity() &&
         p.q.dtype == DType::kBFloat16 && p.k.dtype == DType::kBFloat16 &&
         (!p.v.given() || p.v.dtype == DType::kBFloat16);
}

// True if the gradients of a call are products of bfloat16 as well; out and dout have the dtype of
// q.
inline bool multiplies_bfloat16(const Problem& p, const GradientSources& from) noexcept {
  const auto is_bfloat16 = [](const Operand& x) {
    return !x.given() || x.dtype == DType::kBFloat16;
  };
  return multiplies_bfloat16(p) && is_bfloat16(from.dout) && is_bfloat16(from.out);
}

// Returns x, or a zero of its sign if x is subnormal.
inline float flushed(float x) noexcept {
  return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x;
}

// One fused multiply-add: sum + a b, where a and b are bfloat16.
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
// but in dot2 products the odd term of each pair first. `begin` is a multiple of step_of(products).
template <class F>
void for_each_term(Products products, Index begin, Index end, const F& f) {
  const bool in_pairs = products == Products::kDot2;
  for (Index n = begin; n < end; n += in_pairs ? 2 : 1) {
    if (in_pairs && n + 1 < end) f(n + 1);
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

// Adds two float32 sums as the AMX instruction does: subnormal numbers count as zeros.
inline float add_flushed(float a, float b) noexcept { return flushed(flushed(a) + flushed(b)); }

// Sums of AMX products of rows of `width` elements: sum c is sum_n weight_n x_nc. Terms are added
// in ascending order; terms that are left out count as 0. float64 has no AMX products.
template <class T>
class AmxSums {
 public:
  AmxSums() = default;
  // `chains` has 2 * width elements; it is null while memory is measured.
  AmxSums(T* chains, Index width)
      : even_(chains), odd_(chains == nullptr ? nullptr : chains + width), width_(width) {}

  // Begins sums with the step of term n; `to` has the sums of earlier steps.
  void begin(Index n, T* to) noexcept {
    to_ = to;
    step_ = n / step_of(Products::kAmx);
    std::fill_n(even_, 2 * width_, T(0));
  }
  // Adds weight * x, where the weight is bfloat16, as term n.
  void add(Index n, T weight, const T* x) noexcept {
    if (n / step_of(Products::kAmx) != step_) {
      end();
      begin(n, to_);
    }
    T* const chain = n % 2 == 0 ? even_ : odd_;
    if constexpr (std::is_same_v<T, float>) {
      for (Index c = 0; c < width_; ++c) chain[c] = add_flushed_product(weight, x[c], chain[c]);
    }
  }
  // Adds the last step to the sums.
  void end() noexcept {
    if constexpr (std::is_same_v<T, float>) {
      for (Index c = 0; c < width_; ++c)
        to_[c] = add_flushed(to_[c], add_flushed(even_[c], odd_[c]));
    }
  }

 private:
  T* even_ = nullptr;
  T* odd_ = nullptr;
  T* to_ = nullptr;
  Index width_ = 0;
  Index step_ = 0;
};

// Computes sum_c a_c b_c in steps of 32 channels, as AMX products. A sum of -0 counts as +0: its
// sign would depend on how many zeros fill the last step.
inline float amx_dot(const float* a, const float* b, Index n) noexcept {
  constexpr Index kStep = step_of(Products::kAmx);
  float sum = 0;
  for (Index begin = 0; begin < n; begin += kStep) {
    float even = 0;
    float odd = 0;
    for (Index c = begin; c < std::min(n, begin + kStep); ++c) {
      float& chain = c % 2 == 0 ? even : odd;
      chain = add_flushed_product(a[c], b[c], chain);
    }
    sum = add_flushed(sum, add_flushed(even, odd));
  }
  return sum + 0.0F;
}

}  // namespace qkv::core

#endif  // QKV_CORE_BFLOAT16_PRODUCTS_H_
