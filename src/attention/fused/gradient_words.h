// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_GRADIENT_WORDS_H_
#define QKV_ATTENTION_FUSED_GRADIENT_WORDS_H_

#include "core/order.h"
#include "kernels/dot_kernels.h"
#include "kernels/pair_kernels.h"

namespace qkv::attn {

// One cache line more, so that rows do not map to the same cache sets.
inline constexpr Index kGradientStride = core::kGradientBlock + 16;

// Of a block of the backward pass in pairs: words (kernels/pair_kernels.h) of what is multiplied
// once weights and gradients of scores are known.
template <class T>
struct GradientWords {
  static constexpr Index kPairs = core::kGradientBlock / 2;
  static constexpr Index kStride = kGradientStride / 2;

  T* k = nullptr;           // [pairs of keys][Dk]
  T* q = nullptr;           // [pairs of queries][Dk]
  T* dout = nullptr;        // [pairs of queries][E]
  T* w = nullptr;           // [pairs of queries][kGradientStride]: a word for each key
  T* ds = nullptr;          // likewise
  T* ds_of_keys = nullptr;  // [queries][kStride]: a word for each pair of keys

  GradientWords() = default;
  template <class AnyArena>
  GradientWords(AnyArena& arena, Index Dk, Index E) {
    const auto take = [&](Index n) { return arena.template take<T>(n).data(); };
    k = take(kPairs * Dk);
    q = take(kPairs * Dk);
    dout = take(kPairs * E);
    w = take(kPairs * kGradientStride);
    ds = take(kPairs * kGradientStride);
    ds_of_keys = take(core::kGradientBlock * kStride);
  }
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FUSED_GRADIENT_WORDS_H_
