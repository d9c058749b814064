// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_KEY_GRADIENTS_H_
#define QKV_ATTENTION_BACKWARD_KEY_GRADIENTS_H_

#include <algorithm>

#include "attention/backward/gradient_scores.h"

namespace qkv::attn {

// dk [keys][width] and dv [keys][E] of a block of keys in step 2 (backward.h), summed over all
// queries of the unit: each block of queries adds w^T dout to dv and, for dot products, ds^T q to
// dk. finish() stores the sums. A live key, panel or tile has an unmasked query-key pair.
template <class T>
class KeyGradients {
 public:
  template <class AnyArena>
  KeyGradients(const FusedGradientCall<T>& call, AnyArena& arena)
      : call_(call), p_(call.p), g_(call.kernels) {
    dk_ = arena.template take<T>(kGradientBlock * call.width()).data();
    dv_ = arena.template take<T>(kGradientBlock * p_.E).data();
  }

  // Starts the sums of a block of keys: from the buffer's contents if continues(), else from zero.
  void start(const GradientKeys<T>& keys) {
    const Index count = keys.count();
    const auto begin = [&](const GradientRows<T>& rows, Index width, T* sums) {
      if (rows.continues()) {
        rows.load(keys.unit().b, keys.unit().g, keys.row(), count, sums);
      } else {
        std::fill_n(sums, count * width, T(0));
      }
    };
    begin(call_.dk, call_.width(), dk_);
    begin(call_.dv, p_.E, dv_);
    std::fill_n(live_, count, false);
  }
  // Adds the products with a block of queries, unless pairs.need_elementwise().
  void add(const GradientPairs<T>& pairs, const GradientScores<T>& scores);
  // Stores the sums, after the last block of queries.
  void finish(const GradientKeys<T>& keys);

  // The sums of key n.
  T* dk(Index n) { return dk_ + n * call_.width(); }
  T* dv(Index n) { return dv_ + n * p_.E; }
  // If call_.tells_live: true if key n has an unmasked pair; may also be true without one if all
  // keys of the block are finite.
  bool is_live(Index n) const { return live_[n]; }
  void set_live(Index n) { live_[n] = true; }

 private:
  void find_live(const GradientPairs<T>& pairs);
  void add_keys(const GradientPairs<T>& pairs, const KeyRange& keys, const KeyRange& tiles,
                const RowsOf<const T>& rows, const T* weights, const RowsOf<T>& to) const;

  const FusedGradientCall<T>& call_;
  const Problem& p_;
  const kernels::GradientKernels<T>& g_;
  bool live_[kGradientBlock];
  T* dk_ = nullptr;  // [keys][width]
  T* dv_ = nullptr;  // [keys][E]
};

template <class T>
void KeyGradients<T>::add(const GradientPairs<T>& pairs, const GradientScores<T>& scores) {
  const Index tiles = pairs.queries.tiles();
  if (pairs.keys.are_finite()) {
    std::fill_n(live_, pairs.keys.count(), true);
  } else if (call_.tells_live) {
    find_live(pairs);
  }
  KeyRange live_tiles[kGradientPanels];  // range from the first to the last live tile of each panel
  for (Index n = 0; n < kGradientPanels; ++n) {
    live_tiles[n] = {tiles, 0};
    for (Index t = 0; t < tiles; ++t) {
      if (!pairs.is_live(t, n)) continue;
      live_tiles[n] = {std::min(live_tiles[n].begin, t), t + 1};
    }
  }
  for (Index n = 0; n < kGradientPanels;) {
    // Panels with the same live tiles are joined, so that a kernel call may cover several panels.
    Index end = n + 1;
    while (end < kGradientPanels && live_tiles[end].begin == live_tiles[n].begin &&
           live_tiles[end].end == live_tiles[n].end) {
      ++end;
    }
    const KeyRange keys{n * kPanel, std::min(end * kPanel, pairs.keys.count())};
    if (!live_tiles[n].empty() && !keys.empty()) {
      if (call_.sums_values()) {
        add_keys(pairs, keys, live_tiles[n], pairs.queries.dout_for_query_sums(),
                 scores.weights_for_query_sums(), {dv_, p_.E});
      }
      if (call_.multiplies_keys()) {
        add_keys(pairs, keys, live_tiles[n], pairs.queries.q_for_query_sums(),
                 scores.gradients_for_query_sums(), {dk_, p_.Dk});
      }
    }
    n = end;
  }
}

template <class T>
void KeyGradients<T>::find_live(const GradientPairs<T>& pairs) {
  for (Index n = 0; n < pairs.keys.count(); ++n) {
    for (Index r = 0; r < pairs.queries.count() && !live_[n]; ++r) live_[n] = pairs.may_see(r, n);
  }
}

// For each key n of `keys`, adds the sum of the queries' `rows` in `tiles`, weighted by column n of
// `weights`, to row n of `to`.
template <class T>
void KeyGradients<T>::add_keys(const GradientPairs<T>& pairs, const KeyRange& keys,
                               const KeyRange& tiles, const RowsOf<const T>& rows, const T* weights,
                               const RowsOf<T>& to) const {
  const KeyRange all{pairs.queries.tile_begin(tiles.begin), pairs.queries.tile_end(tiles.end - 1)};
  // One kernel call takes all keys, but at most kTileRows of them with kDot2, and at most 2
  // kTileRows if masks trim rows.
  const bool trims = pairs.trims_rows(tiles.begin, tiles.end);
  const Index step = call_.dot.products == Products::kDot2 ? kTileRows
                     : trims                               ? 2 * kTileRows
                                                           : kGradientBlock;
  const Index whole = core::step_of(call_.dot.products);
  const Index each = call_.dot.in_words ? 2 : 1;  // rows per word of weights
  for (Index n = keys.begin; n < keys.end; n += step) {
    call_.dot.stop();
    const Index end = std::min(n + step, keys.end);
    KeyRange some = trims ? pairs.rows_seeing({n, end}, all) : all;
    if (some.empty()) continue;
    some.begin = some.begin / whole * whole;
    const Index begin = some.begin / each;
    g_.transposed_sum({weights + begin * kGradientStride + n, kGradientStride}, end - n,
                      {rows.data + begin * rows.stride, rows.stride}, some.size(), to.stride,
                      {to.data + n * to.stride, to.stride});
  }
}

template <class T>
void KeyGradients<T>::finish(const GradientKeys<T>& keys) {
  const KeyUnit& unit = keys.unit();
  const Index row = keys.row();
  const Index count = keys.count();
  const auto put = [&](const GradientRows<T>& to, const T* rows, Index width) {
    if (!to.given()) return;
    if (!to.is_summed() || to.has_memory()) {
      return to.put(unit.b, unit.g, row, count, {rows, width}, call_.dot.stop);
    }
    for (Index n = 0; n < count; ++n) {
      call_.dot.stop();
      to.add_to(call_.own, unit.b, unit.g, row + n, rows + n * width);
    }
  };
  if (call_.dot.additive != nullptr && call_.to.k.given()) {
    for (Index n = 0; n < count; ++n) {
      call_.dot.additive->multiply_by_v(unit.first_head, live_[n], g_, dk(n));
    }
  }
  if (call_.tells_live) {
    std::copy_n(live_, count, call_.key_live + call_.key_places.of(unit.b, unit.g, row));
  }
  put(call_.dk, dk_, call_.width());
  put(call_.dv, dv_, p_.E);
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_KEY_GRADIENTS_H_
