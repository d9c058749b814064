// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_GRADIENT_PRODUCTS_H_
#define QKV_ATTENTION_FUSED_GRADIENT_PRODUCTS_H_

#include "attention/fused/gradient_block.h"

// The products of a FusedGradientBlock once w and ds of a block of queries are known.
namespace qkv::attn {

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

// dk and dv: rows of the block's queries, weighted by columns of ds and w.
template <class T>
void FusedGradientBlock<T>::key_products() {
  KeyRange live_tiles[kGradientPanels];  // from the first to the last live one
  for (Index n = 0; n < kGradientPanels; ++n) {
    live_tiles[n] = {tiles(), 0};
    for (Index t = 0; t < tiles(); ++t) {
      if ((panels_[t] >> n & 1U) == 0) continue;
      live_tiles[n] = {std::min(live_tiles[n].begin, t), t + 1};
    }
  }
  for (Index n = 0; n < kGradientPanels;) {
    // Panels with the same queries are joined: tiles of keys need not end with a panel.
    Index end = n + 1;
    while (end < kGradientPanels && live_tiles[end].begin == live_tiles[n].begin &&
           live_tiles[end].end == live_tiles[n].end) {
      ++end;
    }
    const KeyRange keys{n * kPanel, std::min(end * kPanel, keys_)};
    if (!live_tiles[n].empty() && !keys.empty()) {
      if (call_.dout.given() && call_.to.v.given()) {
        add_keys(dout_rows_, p_.E, s_, keys, live_tiles[n], dv_);
      }
      if (multiplies_keys()) add_keys(q_rows_, p_.Dk, dw_, keys, live_tiles[n], dk_);
    }
    n = end;
  }
}

template <class T>
void FusedGradientBlock<T>::add_keys(const RowsOf<const T>& rows, Index width, T* weights,
                                     const KeyRange& keys, const KeyRange& tiles, T* to) const {
  const Index first = first_row(tiles.begin);
  const Index count = std::min(first_row(tiles.end), rows_) - first;
  for (Index n = keys.begin; n < keys.end; n += kTileRows) {
    call_.dot.stop();
    g_.transposed_sum(
        {weights + first * kGradientStride + n, kGradientStride}, std::min(kTileRows, keys.end - n),
        {rows.data + first * rows.stride, rows.stride}, count, width, {to + n * width, width});
  }
}

// dq of this block of keys.
template <class T>
void FusedGradientBlock<T>::query_products() {
  if (!multiplies_queries()) return;
  std::fill_n(dq_, rows_ * p_.Dk, T(0));
  for (Index t = 0; t < tiles(); ++t) {
    if (panels_[t] == 0) continue;
    call_.dot.stop();
    const KeyRange keys = keys_of(t);
    const Index r = first_row(t);
    const Index end = std::min(keys.end, keys_);
    for (Index n = keys.begin; n < end; ++n) {
      const Index odd = finite_ ? end : odd_.next(n, end);
      if (n < odd) {
        k_.weighted_sum({gradients(r) + n, kGradientStride}, rows_of(t),
                        {k_rows_.data + n * k_rows_.stride, k_rows_.stride}, odd - n, p_.Dk,
                        {dq_ + r * p_.Dk, p_.Dk});
      }
      n = odd;
    }
  }
}

// The same sums over live pairs only, pair by pair, because 0 times NaN or infinity is NaN.
template <class T>
void FusedGradientBlock<T>::products_with_care() {
  if (multiplies_queries()) std::fill_n(dq_, rows_ * p_.Dk, T(0));
  const auto add = [&](const T* weight, const T* x, Index width, T* to) {
    k_.weighted_sum({weight, 1}, 1, {x, 1}, 1, width, {to, width});
  };
  for (Index t = 0; t < tiles() && multiplies_queries(); ++t) {
    if (panels_[t] == 0) continue;
    const KeyRange keys = keys_of(t);
    for (Index r = first_row(t); r < first_row(t) + rows_of(t); ++r) {
      call_.dot.stop();
      for (Index n = keys.begin; n < std::min(keys.end, keys_); ++n) {
        if (live(r)[n] == 0) continue;
        add(gradients(r) + n, k_rows_.data + n * k_rows_.stride, p_.Dk, dq_ + r * p_.Dk);
      }
    }
  }
  const auto add_column = [&](const T* weights, const RowsOf<const T>& rows, Index n, Index width,
                              T* to) {
    std::fill_n(spare_, width, T(0));
    call_.dot.stop();
    for (Index r = 0; r < rows_; ++r) {
      if (panels_[r / kTileRows] == 0 || live(r)[n] == 0) continue;
      add(weights + r * kGradientStride + n, rows.data + r * rows.stride, width, spare_);
    }
    g_.add(to, spare_, width);
  };
  for (Index n = 0; n < keys_; ++n) {
    if (call_.dout.given() && call_.to.v.given()) {
      add_column(s_, dout_rows_, n, p_.E, dv_ + n * p_.E);
    }
    if (multiplies_keys()) add_column(dw_, q_rows_, n, p_.Dk, dk_ + n * p_.Dk);
    for (Index r = 0; r < rows_ && !key_live_[n]; ++r) {
      key_live_[n] = panels_[r / kTileRows] != 0 && live(r)[n] != 0;
    }
  }
}

// Every block of queries receives blocks of keys in ascending order, including those without live
// pairs.
template <class T>
bool FusedGradientBlock<T>::add_to_queries(Index place) {
  if (!call_.adds_to_queries()) return true;
  if (!call_.turns.wait(*call_.call, place, block_)) return false;
  const Index row = unit_.s.q0 + i0_;
  for (Index t = 0; t < tiles(); ++t) {
    if (panels_[t] == 0) continue;
    const Index first = call_.query_places.of(unit_.b, h_, row);
    for (Index r = first_row(t); r < first_row(t) + rows_of(t); ++r) {
      if (call_.to.alibi.given()) call_.alibi_rows[first + r] += alibi_sums_[r];
      if (call_.sums_bias_rows()) call_.bias_rows[first + r] += bias_sums_[r];
    }
    if (!call_.to.q.given()) continue;
    call_.dot.stop();
    const RowsOf<T> to = call_.dq.from(unit_.b, h_, row);
    for (Index r = first_row(t); r < first_row(t) + rows_of(t); ++r) {
      g_.add(to.data + r * to.stride, dq_ + r * call_.width(), call_.width());
    }
  }
  call_.turns.pass_on(place, block_);
  return true;
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FUSED_GRADIENT_PRODUCTS_H_
