// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_GRADIENT_OPTIONS_H_
#define QKV_ATTENTION_FUSED_GRADIENT_OPTIONS_H_

#include "attention/fused/gradient_block.h"

// What options change in the rows of a FusedGradientBlock, and the sums of ds that they ask for.
namespace qkv::attn {

// The scores of one row as they enter the softmax, -inf where masked; and their slopes.
template <class T>
void FusedGradientBlock<T>::change(Index t, Index r) {
  constexpr T kMasked = -std::numeric_limits<T>::infinity();
  const KeyRange keys = keys_of(t);
  const Index count = std::min(keys.end, keys_) - keys.begin;
  T* s = scores(r) + keys.begin;
  T* slopes = nullptr;
  if (call_.has_slopes()) {
    slopes = slopes_ + (r - first_row(t)) * kGradientBlock;
    std::fill_n(slopes, keys.end - keys.begin, static_cast<T>(p_.scale));
  }
  if (p_.softcap != 0) k_.soft_cap(s, slopes, static_cast<T>(p_.softcap), count);
  change_piece<T>({p_, k_, call_.dot.instances, spare_}, query(r), j0_ + keys.begin, count, s,
                  slopes);
  if (partial_[t]) k_.mask(s, live(r) + keys.begin, count);
  const Index begin = std::clamp(range_[r].begin, keys.begin, keys.end);
  const Index end = std::clamp(range_[r].end, begin, keys.end);
  std::fill(scores(r) + keys.begin, scores(r) + begin, kMasked);
  std::fill(scores(r) + end, scores(r) + keys.end, kMasked);
  // 0 times a slope of NaN would be NaN.
  for (Index n = 0; slopes != nullptr && n < keys.end - keys.begin; ++n) {
    slopes[n] = s[n] == kMasked ? T(0) : slopes[n];
  }
  if (!with_care_) return;
  std::uint8_t* alive = live(r);
  std::fill_n(alive, kGradientBlock, std::uint8_t{0});
  for (Index n = keys.begin; n < keys.end; ++n) {
    alive[n] = static_cast<std::uint8_t>(scores(r)[n] != kMasked);
  }
}

// dw = z dout . v + dweights for one row.
template <class T>
void FusedGradientBlock<T>::change_gradients(Index t, Index r) {
  const KeyRange keys = keys_of(t);
  const Index count = keys.end - keys.begin;
  T* dw = gradients(r) + keys.begin;
  if (!call_.multiplies_values()) std::fill_n(dw, count, T(0));
  if (p_.dropout != 0) {
    T* z = factors_ + (r - first_row(t)) * kGradientBlock;
    const QueryAt at = query(r);
    std::fill_n(z, count, T(1) / static_cast<T>(1 - p_.dropout));
    k_.drop(z, p_.dropout_mask.row(at.b, at.h, at.i), j0_ + keys.begin, count);
    g_.multiply(dw, z, count);
  }
  call_.add_dweights(query(r), j0_ + keys.begin, std::min(keys.end, keys_) - keys.begin, dw,
                     spare_);
}

// From ds of one row: the gradients of bias and of ALiBi's slope.
template <class T>
void FusedGradientBlock<T>::query_sums(const QueryAt& at, Index r, const KeyRange& keys) {
  const T* ds = gradients(r) + keys.begin;
  const Index j = j0_ + keys.begin;
  const Index count = std::min(keys.end, keys_) - keys.begin;
  if (call_.to.alibi.given()) alibi_sums_[r] = -g_.distance_sum(ds, j - at.i - at.o, count);
  if (call_.sums_bias_rows()) bias_sums_[r] = g_.sum(ds, count);
  if (!call_.sums_bias_keys()) return;
  T* to = call_.own.at(call_.to.bias, at.b, at.h, at.i, j);
  if (call_.stores_bias()) {
    std::copy_n(ds, count, to);
  } else {
    g_.add(to, ds, count);
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FUSED_GRADIENT_OPTIONS_H_
