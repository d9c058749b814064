// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_BFLOAT16_WORDS_H_
#define QKV_ATTENTION_TILES_BFLOAT16_WORDS_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "core/bfloat16_products.h"
#include "core/operand.h"
#include "kernels/amx_kernels.h"
#include "kernels/dot2_kernels.h"

// The choice between plain products and products of BF16, and the packing of operands
// whose channels are not contiguous into words of two BF16 numbers (kernels/dot2_kernels.h).
namespace qkv::attn {

using core::Products;

// Whether operands are words of two BF16 numbers.
constexpr bool are_in_words(Products products) noexcept { return products != Products::kPlain; }

// The products of BF16 that a target has; kPlain if it has none.
constexpr Products bfloat16_products_of(kernels::Target target) noexcept {
  switch (target) {
    case kernels::Target::kAmx:
    case kernels::Target::kEmulatedAmx:
      return Products::kAmx;
    case kernels::Target::kAvx512Bf16:
      return Products::kDot2;
    case kernels::Target::kAvx512:
    case kernels::Target::kAvx2:
    case kernels::Target::kSse4:
    case kernels::Target::kNeon:
      return Products::kPlain;
  }
  __builtin_unreachable();
}

// The products of a forward pass, or with `from` (the gradient sources) of a backward pass.
template <class T, class... From>
Products products_of(const core::Problem& p, kernels::Target target, const From&... from) noexcept {
  const bool takes = std::is_same_v<T, float> && core::multiplies_bfloat16(p, from...);
  return takes ? bfloat16_products_of(target) : Products::kPlain;
}

template <class T>
const kernels::DotKernels<T>& kernels_of(kernels::Target target, Products products) noexcept {
  if constexpr (std::is_same_v<T, float>) {
    if (products == Products::kDot2) return kernels::dot2_kernels();
    if (products == Products::kAmx) return kernels::amx_kernels(target);
  }
  return kernels::dot_kernels<T>(target);
}

template <class T>
const kernels::GradientKernels<T>& gradient_kernels_of(kernels::Target target,
                                                       Products products) noexcept {
  if constexpr (std::is_same_v<T, float>) {
    if (products == Products::kDot2) return kernels::dot2_gradient_kernels();
    if (products == Products::kAmx) return kernels::amx_gradient_kernels(target);
  }
  return kernels::gradient_kernels<T>(target);
}

// Channel c of the row that begins at element `offset` of x.
inline BFloat16 bfloat16_at(const core::Operand& x, Index offset, Index c) noexcept {
  return static_cast<const BFloat16*>(x.data)[offset + c * x.col_stride];
}

// Joins two BF16 numbers in a 32-bit word of type T, `first` in the lower half.
template <class T>
T word_of(BFloat16 first, BFloat16 second) noexcept {
  if constexpr (sizeof(T) == sizeof(std::uint32_t)) {
    return std::bit_cast<T>(first.bits | static_cast<std::uint32_t>(second.bits) << 16);
  } else {
    return T(0);  // float64 has no products of BF16
  }
}

// One half of a word as a number: the first (`which` = 0, lower half) or the second (1).
template <class T>
T half_of_word(T word, Index which) noexcept {
  if constexpr (sizeof(T) == sizeof(std::uint32_t)) {
    const auto bits = std::bit_cast<std::uint32_t>(word) >> 16 * which;
    return core::from_bfloat16_bits(static_cast<std::uint16_t>(bits));
  } else {
    return word;
  }
}

// A weight rounded to BF16; float64 is unchanged.
template <class T>
T rounded_weight(T weight) noexcept {
  if constexpr (sizeof(T) == sizeof(std::uint32_t)) {
    return core::rounded_weight(weight);
  } else {
    return weight;
  }
}

// The word with one half (`which`) replaced by 0.
template <class T>
T word_without(T word, Index which) noexcept {
  if constexpr (sizeof(T) == sizeof(std::uint32_t)) {
    const auto bits = std::bit_cast<std::uint32_t>(word);
    return std::bit_cast<T>(bits & (which == 0 ? 0xFFFF0000U : 0x0000FFFFU));
  } else {
    return word;
  }
}

// A word with one half of `word` (the second if `second`) as its first half, and 0 as its second.
template <class T>
T word_of_half(T word, bool second) noexcept {
  if constexpr (sizeof(T) == sizeof(std::uint32_t)) {
    const auto bits = std::bit_cast<std::uint32_t>(word);
    return std::bit_cast<T>(second ? bits >> 16 : bits & 0xFFFFU);
  } else {
    return T(0);
  }
}

// Joins neighbouring channels of one row into words: to[words of width].
template <class T>
void join_channels(const core::Operand& x, Index offset, Index width, T* to) noexcept {
  for (Index c = 0; c < width; c += 2) {
    const BFloat16 second = c + 1 < width ? bfloat16_at(x, offset, c + 1) : BFloat16();
    to[c / 2] = word_of<T>(bfloat16_at(x, offset, c), second);
  }
}

// Packs a panel of words [words of width][kPanel]; key n begins at element row_at(n).
template <class T, class Row>
void pack_strided_words(const core::Operand& k, const Row& row_at, Index keys, Index width,
                        T* panel) noexcept {
  using kernels::kPanel;
  std::fill_n(panel, kernels::words_of(width) * kPanel, T(0));
  for (Index n = 0; n < keys; ++n) {
    const Index row = row_at(n);
    for (Index c = 0; c < width; c += 2) {
      const BFloat16 second = c + 1 < width ? bfloat16_at(k, row, c + 1) : BFloat16();
      panel[c / 2 * kPanel + n] = word_of<T>(bfloat16_at(k, row, c), second);
    }
  }
}

// Joins the values of two neighbouring rows, channel by channel, into words to[E]; if `rows` is 1
// the second half is 0.
template <class T>
void join_strided_values(const core::Operand& v, Index offset, Index rows, Index E,
                         T* to) noexcept {
  for (Index c = 0; c < E; ++c) {
    const BFloat16 second = rows > 1 ? bfloat16_at(v, offset + v.row_stride, c) : BFloat16();
    to[c] = word_of<T>(bfloat16_at(v, offset, c), second);
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_BFLOAT16_WORDS_H_
