// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_ODD_KEYS_H_
#define QKV_ATTENTION_FUSED_ODD_KEYS_H_

#include <algorithm>

#include "attention/fused/gradient_block.h"
#include "core/finite.h"

// The work of a FusedGradientBlock on odd keys, whose row of k or v is not finite. Where no query
// of a block may see one, they are left out: their weights are 0, their values count as zeros, and
// sums of keys go around them. Where one is seen, products go pair by pair.
namespace qkv::attn {

template <class T>
void FusedGradientBlock<T>::pack_values() {
  if (!call_.multiplies_values()) return;
  const Operand& v = p_.v;
  const Index first = core::offset_of(v, core::batch_offset(v, p_.batch, unit_.b),
                                      p_.value_head(unit_.g), unit_.s.k0 + j0_, 0);
  pack_block(v, first, p_.E, v_panels_);
}

template <class T>
void FusedGradientBlock<T>::find_odd_keys() {
  odd_ = {};
  const auto find = [&](const T* panels, Index width) {
    for (Index n = 0; n < pieces(keys_, kPanel); ++n) {
      call_.dot.stop();
      core::OddColumns<T, kPanel> columns;
      for (Index c = 0; c < width; ++c) {
        const T* row = panels + (n * width + c) * kPanel;
        if (!pairs()) {
          columns.add(row);
          continue;
        }
        for (const Index half : {0, 1}) {
          T values[kPanel];
          std::transform(row, row + kPanel, values, [&](T x) { return half_of_word(x, half); });
          columns.add(values);
        }
      }
      for (Index x = 0; x < kPanel; ++x) {
        if (columns.is_odd(x)) odd_.insert(n * kPanel + x);
      }
    }
  };
  find(k_panels_, call_.terms(p_.Dk));
  if (call_.multiplies_values()) find(v_panels_, call_.terms(p_.E));
}

// Whether masks let query r of the block see key n.
template <class T>
bool FusedGradientBlock<T>::may_see(Index r, Index n) const {
  const Index t = r / kTileRows;
  if ((panels_[t] >> n / kPanel & 1U) == 0) return false;
  if (n < range_[r].begin || n >= range_[r].end) return false;
  return !partial_[t] || live(r)[n] != 0;
}

template <class T>
bool FusedGradientBlock<T>::sees_odd_key() const {
  for (Index n = odd_.next(0, keys_); n < keys_; n = odd_.next(n + 1, keys_)) {
    for (Index r = 0; r < rows_; ++r) {
      if (may_see(r, n)) return true;
    }
  }
  return false;
}

template <class T>
void FusedGradientBlock<T>::find_live_keys() {
  for (Index n = 0; n < keys_; ++n) {
    for (Index r = 0; r < rows_ && !key_live_[n]; ++r) key_live_[n] = may_see(r, n);
  }
}

// Prepares the values, and the pairs of keys, for a block of queries that sees an odd key, or does
// not.
template <class T>
void FusedGradientBlock<T>::keep_odd_values(bool keep) {
  if (keep == has_odd_values_) return;
  has_odd_values_ = keep;
  if (keep) {
    pack_values();
    if (pairs()) pair_keys();
    return;
  }
  for (Index n = odd_.next(0, keys_); n < keys_; n = odd_.next(n + 1, keys_)) {
    if (call_.multiplies_values()) {
      const Index terms = call_.terms(p_.E);
      T* const column = v_panels_ + n / kPanel * kPanel * terms + n % kPanel;
      for (Index c = 0; c < terms; ++c) column[c * kPanel] = T(0);
    }
    if (pairs() && multiplies_queries()) {
      T* const row = words_.k + n / 2 * p_.Dk;
      for (Index c = 0; c < p_.Dk; ++c) row[c] = word_without(row[c], n % 2);
    }
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FUSED_ODD_KEYS_H_
