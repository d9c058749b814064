// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_GRADIENT_PRODUCTS_H_
#define QKV_ATTENTION_FUSED_GRADIENT_PRODUCTS_H_

#include "attention/fused/gradient_block.h"

// The products of a FusedGradientBlock once w and ds of a block of queries are known.
namespace qkv::attn {

// Words of the block's keys.
template <class T>
void FusedGradientBlock<T>::pair_keys() {
  if (!multiplies_queries()) return;
  const Index offset = core::offset_of(p_.k, core::batch_offset(p_.k, p_.batch, unit_.b), unit_.g,
                                       unit_.s.k0 + j0_, 0);
  for (Index n = 0; n < keys_; n += 2) {
    call_.dot.stop();
    const Index row = offset + n * p_.k.row_stride;
    const Index count = std::min<Index>(2, keys_ - n);
    T* to = words_.k + n / 2 * p_.Dk;
    if (is_readable<T>(p_.k)) {
      k_.pair_values(stored_rows(p_.k, row), count, p_.Dk, {to, p_.Dk});
    } else {
      pair_strided_values(p_.k, row, count, p_.Dk, to);
    }
  }
}

// And of its queries: from words of channels.
template <class T>
void FusedGradientBlock<T>::pair_queries() {
  if (!pairs()) return;
  const auto pair = [&](const RowsOf<const T>& rows, Index width, T* to) {
    call_.dot.stop();
    k_.pair_values({rows.data, DType::kBFloat16, 2 * rows.stride}, rows_, width, {to, width});
  };
  if (call_.dout.given() && call_.to.v.given()) pair(dout_rows_, p_.E, words_.dout);
  if (multiplies_keys()) pair(q_rows_, p_.Dk, words_.q);
}

// Words of a tile's weights and gradients of scores: those of dead panels are 0.
template <class T>
void FusedGradientBlock<T>::round_tile(Index t) {
  if (!pairs() || with_care_) return;
  const Index r = first_row(t);
  const Index to = r / 2 * kGradientStride;
  const auto join = [&](const T* rows, T* words) {
    g_.join_rows({rows, kGradientStride}, rows_of(t), kGradientBlock, {words, kGradientStride});
  };
  if (call_.dout.given() && call_.to.v.given()) join(scores(r), words_.w + to);
  if (multiplies_keys()) join(gradients(r), words_.ds + to);
  for (Index x = r; multiplies_queries() && x < r + rows_of(t); ++x) {
    k_.round_weights(gradients(x), kGradientBlock,
                     words_.ds_of_keys + x * GradientWords<T>::kStride);
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
        const RowsOf<const T> rows = pairs() ? RowsOf<const T>{words_.dout, p_.E} : dout_rows_;
        add_keys(rows, p_.E, pairs() ? words_.w : s_, keys, live_tiles[n], dv_);
      }
      if (multiplies_keys()) {
        const RowsOf<const T> rows = pairs() ? RowsOf<const T>{words_.q, p_.Dk} : q_rows_;
        add_keys(rows, p_.Dk, pairs() ? words_.ds : dw_, keys, live_tiles[n], dk_);
      }
    }
    n = end;
  }
}

template <class T>
void FusedGradientBlock<T>::add_keys(const RowsOf<const T>& rows, Index width, T* weights,
                                     const KeyRange& keys, const KeyRange& tiles, T* to) const {
  const Index first = first_row(tiles.begin);
  const Index end = std::min(first_row(tiles.end), rows_);
  // All keys at once, unless interval masks let only some of the rows see them.
  const bool trims = trims_keys() &&
                     !std::all_of(full_ + tiles.begin, full_ + tiles.end, [](bool x) { return x; });
  const Index step = pairs() ? kTileRows : trims ? 2 * kTileRows : kGradientBlock;
  for (Index n = keys.begin; n < keys.end; n += step) {
    call_.dot.stop();
    const Index some = std::min(step, keys.end - n);
    const auto sees = [&](Index r) { return range_[r].begin < n + some && range_[r].end > n; };
    Index r0 = first;
    Index r1 = end;
    while (trims && r0 < r1 && !sees(r0)) ++r0;
    while (trims && r0 < r1 && !sees(r1 - 1)) --r1;
    if (r0 == r1) continue;
    const Index begin = pairs() ? r0 / 2 : r0;
    g_.transposed_sum({weights + begin * kGradientStride + n, kGradientStride}, some,
                      {rows.data + begin * rows.stride, rows.stride}, r1 - r0, width,
                      {to + n * width, width});
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
    // Tiles with the same keys are joined.
    const Index end = end_of(t);
    while (!pairs() && t + 1 < tiles() && panels_[t + 1] == panels_[t] && end_of(t + 1) == end) {
      ++t;
    }
    const Index rows = first_row(t) + rows_of(t) - r;
    if (pairs()) {
      constexpr Index kStride = GradientWords<T>::kStride;
      k_.weighted_sum({words_.ds_of_keys + r * kStride + keys.begin / 2, kStride}, rows,
                      {words_.k + keys.begin / 2 * p_.Dk, p_.Dk}, end - keys.begin, p_.Dk,
                      {dq_ + r * p_.Dk, p_.Dk});
      continue;
    }
    for (Index n = keys.begin; n < end; ++n) {
      const Index odd = finite_ ? end : odd_.next(n, end);
      if (n < odd) {
        k_.weighted_sum({gradients(r) + n, kGradientStride}, rows,
                        {k_rows_.data + n * k_rows_.stride, k_rows_.stride}, odd - n, p_.Dk,
                        {dq_ + r * p_.Dk, p_.Dk});
      }
      n = odd;
    }
  }
}

// to += weight * value n of the pairs `words`, alone: the other value may be NaN.
template <class T>
void FusedGradientBlock<T>::add_alone(const T* words, Index n, T weight, Index width, T* to) {
  T factor[kPanel] = {weight};
  k_.round_weights(factor, kPanel, factor);
  for (Index c = 0; c < width; ++c) spare_[c] = alone(words[c], n % 2 != 0);
  k_.weighted_sum({factor, 1}, 1, {spare_, width}, 1, width, {to, width});
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
      T* to = dq_ + r * p_.Dk;
      core::for_each_term(pairs(), keys.begin, std::min(keys.end, keys_), [&](Index n) {
        if (live(r)[n] == 0) return;
        if (pairs()) return add_alone(words_.k + n / 2 * p_.Dk, n, gradients(r)[n], p_.Dk, to);
        add(gradients(r) + n, k_rows_.data + n * k_rows_.stride, p_.Dk, to);
      });
    }
  }
  // `words`, in pairs, are those of the rows.
  const auto add_column = [&](const T* weights, const RowsOf<const T>& rows, const T* words,
                              Index n, Index width, T* to) {
    T* sum = sum_;
    std::fill_n(sum, width, T(0));
    call_.dot.stop();
    core::for_each_term(pairs(), 0, rows_, [&](Index r) {
      if (panels_[r / kTileRows] == 0 || live(r)[n] == 0) return;
      const T* weight = weights + r * kGradientStride + n;
      if (pairs()) return add_alone(words + r / 2 * width, r, *weight, width, sum);
      add(weight, rows.data + r * rows.stride, width, sum);
    });
    g_.add(to, sum, width);
  };
  for (Index n = 0; n < keys_; ++n) {
    if (call_.dout.given() && call_.to.v.given()) {
      add_column(s_, dout_rows_, words_.dout, n, p_.E, dv_ + n * p_.E);
    }
    if (multiplies_keys()) add_column(dw_, q_rows_, words_.q, n, p_.Dk, dk_ + n * p_.Dk);
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
