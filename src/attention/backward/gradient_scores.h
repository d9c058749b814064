// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_GRADIENT_SCORES_H_
#define QKV_ATTENTION_BACKWARD_GRADIENT_SCORES_H_

#include <algorithm>

#include "attention/backward/gradient_options.h"
#include "core/integers.h"
#include "core/prefetch.h"

namespace qkv::attn {

// The weights w and gradients of scores ds of a block of queries and a block of keys, the first
// half of step 2 (backward.h):
//   s = q k^T, dw = dout v^T, w = exp(s - lse), ds = w (dw - delta)
// Each task has two arrays [kGradientBlock queries][kGradientStride], one of w and one of ds, for
// all blocks of queries in turn. A live key, panel or tile has an unmasked query-key pair.
template <class T>
class GradientScores {
 public:
  template <class AnyArena>
  GradientScores(const FusedGradientCall<T>& call, AnyArena& arena)
      : call_(call),
        p_(call.p),
        k_(call.dot.kernels),
        g_(call.kernels),
        s_(arena.template take<T>(kGradientBlock * kGradientStride).data()),
        dw_(arena.template take<T>(kGradientBlock * kGradientStride).data()),
        options_(call, arena) {
    if (!call.dot.in_words) return;
    const auto take = [&](Index n) { return arena.template take<T>(n).data(); };
    words_.w = take(kGradientBlock / 2 * kGradientStride);
    words_.ds = take(kGradientBlock / 2 * kGradientStride);
    words_.ds_for_key_sums = take(kGradientBlock * kGradientWords);
  }

  void compute(GradientPairs<T>& pairs) {
    const Index tiles = pairs.queries.tiles();
    for (Index t = 0; t < tiles; t += panel_tiles()) {
      compute(pairs, t, std::min(t + panel_tiles(), tiles));
    }
  }

  // Row r: an element for each key, which is 0 in panels where the row's tile has no unmasked pair.
  const T* weights(Index r) const { return s_ + r * kGradientStride; }
  const T* gradients(Index r) const { return dw_ + r * kGradientStride; }
  // For sums over queries: [queries][kGradientStride], or with products of BF16 [pairs of
  // queries][kGradientStride], a word for each key. Words, here and in gradients_for_key_sums(),
  // are not computed if pairs.need_elementwise().
  const T* weights_for_query_sums() const { return call_.dot.in_words ? words_.w : s_; }
  const T* gradients_for_query_sums() const { return call_.dot.in_words ? words_.ds : dw_; }
  // For sums over keys, row r from `key` on: an element for each key, or with products of BF16
  // a word for two keys.
  RowsOf<const T> gradients_for_key_sums(Index r, Index key) const {
    if (!call_.dot.in_words) return {gradients(r) + key, kGradientStride};
    return {words_.ds_for_key_sums + r * kGradientWords + key / 2, kGradientWords};
  }
  const GradientOptions<T>& options() const { return options_; }
  GradientOptions<T>& options() { return options_; }

 private:
  // Number of tiles whose scores are computed with a panel before the next panel is read. For AMX,
  // eight tiles of 6 rows are three register tiles of 16 rows.
  Index panel_tiles() const { return call_.dot.products == Products::kAmx ? 8 : 4; }

  T* scores(Index r) { return s_ + r * kGradientStride; }
  T* mutable_gradients(Index r) { return dw_ + r * kGradientStride; }
  void compute(GradientPairs<T>& pairs, Index t0, Index t1);
  void score_panel(const GradientPairs<T>& pairs, Index t0, Index t1, Index n);
  void value_panel(const GradientPairs<T>& pairs, Index t0, Index t1, Index n);
  void weigh_tile(GradientPairs<T>& pairs, Index t);
  void round_tile(const GradientPairs<T>& pairs, Index t);
  template <core::Access kAccess>
  void prefetch_bias(const GradientPairs<T>& pairs, Index t0, Index t1, Index n) const;
  void prefetch_masks(const GradientPairs<T>& pairs, Index t0, Index t1) const;

  const FusedGradientCall<T>& call_;
  const Problem& p_;
  const kernels::DotKernels<T>& k_;
  const kernels::GradientKernels<T>& g_;
  T* s_;    // [kGradientBlock][kGradientStride]: scores, then weights
  T* dw_;   // [kGradientBlock][kGradientStride]: dw, then ds times d score / d (q . k)
  struct {  // products of BF16: words (kernels/dot2_kernels.h)
    T* w = nullptr;
    T* ds = nullptr;
    T* ds_for_key_sums = nullptr;  // [queries][kGradientWords]
  } words_;
  GradientOptions<T> options_;
  kernels::TileScope tile_scope_;
};

// Computes w and ds of tiles t0 .. t1-1.
template <class T>
void GradientScores<T>::compute(GradientPairs<T>& pairs, Index t0, Index t1) {
  if (call_.dot.key_masks) prefetch_masks(pairs, t0, t1);
  // The words of a row are made from all kGradientPanels panels, so panels behind the last key are
  // filled with 0, too.
  const Index panels = call_.dot.in_words ? kGradientPanels : pairs.keys.panels();
  for (Index n = 0; n < panels; ++n) {
    // The end of the run of tiles, from t on, in which panel n is live.
    const auto live_end = [&](Index t) {
      while (t < t1 && pairs.is_live(t, n)) ++t;
      return t;
    };
    for (Index t = t0; t < t1;) {
      if (pairs.is_live(t, n)) {
        const Index end = call_.dot.joins_tiles() ? live_end(t) : t + 1;
        score_panel(pairs, t, end, n);
        t = end;
        continue;
      }
      for (Index r = pairs.queries.tile_begin(t); r < pairs.queries.tile_end(t); ++r) {
        std::fill_n(scores(r) + n * kPanel, kPanel, T(0));
        std::fill_n(mutable_gradients(r) + n * kPanel, kPanel, T(0));
      }
      ++t;
    }
    for (Index t = t0; t < t1 && call_.multiplies_values(); ++t) {
      if (!pairs.is_live(t, n)) continue;
      const Index end = live_end(t);
      value_panel(pairs, t, end, n);
      t = end;
    }
  }
  for (Index t = t0; t < t1; ++t) {
    if (pairs.is_live(t)) weigh_tile(pairs, t);
    if (call_.dot.in_words && !pairs.need_elementwise()) round_tile(pairs, t);
  }
}

// Computes scores of panel n for tiles t0 .. t1-1: one tile, unless the call joins_tiles().
template <class T>
void GradientScores<T>::score_panel(const GradientPairs<T>& pairs, Index t0, Index t1, Index n) {
  if (p_.bias.given()) prefetch_bias<core::Access::kRead>(pairs, t0, t1, n);
  call_.dot.stop();
  const GradientQueries<T>& queries = pairs.queries;
  const KeyUnit& unit = pairs.keys.unit();
  const Index r = queries.tile_begin(t0);
  const Index rows = queries.tile_end(t1 - 1) - r;
  const Index keys = pairs.keys_of_panel(t0, t1, n);
  const AdditiveScores<T>* additive = call_.dot.additive;
  const ExponentialForm form =
      additive == nullptr
          ? ExponentialForm::kSmall
          : std::max(additive->of_queries(unit.b, queries.head(), queries.row() + r, rows),
                     additive->of_keys(unit.b, unit.g, pairs.keys.row() + n * kPanel, keys));
  call_.dot.scores(queries.head(), queries.q(r), rows, pairs.keys.key_panel(n), keys, form,
                   {scores(r) + n * kPanel, kGradientStride});
}

// Computes dw of panel n, before dropout and dweights, for live tiles t0 .. t1-1.
template <class T>
void GradientScores<T>::value_panel(const GradientPairs<T>& pairs, Index t0, Index t1, Index n) {
  call_.dot.stop();
  if (call_.sums_bias_keys()) prefetch_bias<core::Access::kWrite>(pairs, t0, t1, n);
  const Index r = pairs.queries.tile_begin(t0);
  k_.scores_of_keys(pairs.queries.dout(r), pairs.queries.tile_end(t1 - 1) - r, p_.E,
                    pairs.keys.value_panel(n), pairs.keys_of_panel(t0, t1, n), T(1),
                    {mutable_gradients(r) + n * kPanel, kGradientStride});
}

template <class T>
void GradientScores<T>::weigh_tile(GradientPairs<T>& pairs, Index t) {
  const KeyRange keys = pairs.keys_of(t);
  const Index first = pairs.queries.tile_begin(t);
  const Index end = pairs.queries.tile_end(t);
  const Index count =
      std::min(keys.end, core::divide_up(pairs.keys.count(), kMostLanes) * kMostLanes) - keys.begin;
  const bool plain = call_.is_plain() && pairs.is_full(t) && !pairs.need_elementwise();
  for (Index r = first; !plain && r < end; ++r) {
    options_.change(pairs, t, r, scores(r) + keys.begin, mutable_gradients(r) + keys.begin);
  }
  const T scale = options_.keep_scale_apart() ? T(1) : static_cast<T>(p_.scale);
  g_.score_gradients({scores(first) + keys.begin, kGradientStride},
                     {mutable_gradients(first) + keys.begin, kGradientStride}, end - first, count,
                     pairs.queries.state(first), scale);
  for (Index r = first; !plain && r < end; ++r) {
    options_.finish(pairs, t, r, count, scores(r) + keys.begin, mutable_gradients(r) + keys.begin);
  }
}

// Rounds a tile's weights and gradients of scores to words; words of panels without unmasked pairs
// are 0.
template <class T>
void GradientScores<T>::round_tile(const GradientPairs<T>& pairs, Index t) {
  const Index r = pairs.queries.tile_begin(t);
  const Index end = pairs.queries.tile_end(t);
  const auto join = [&](const T* rows, T* words) {
    g_.join_rows({rows, kGradientStride}, end - r, kGradientBlock,
                 {words + r / 2 * kGradientStride, kGradientStride});
  };
  if (call_.sums_values()) join(weights(r), words_.w);
  if (call_.multiplies_keys()) join(gradients(r), words_.ds);
  for (Index x = r; call_.multiplies_queries() && x < end; ++x) {
    k_.round_weights(gradients(x), kGradientBlock, words_.ds_for_key_sums + x * kGradientWords);
  }
}

// ---- prefetches -------------------------------------------------------------------------------

// Prefetches, for the rows of tiles t0 .. t1-1, panel n of the bias (kRead) or of dbias (kWrite).
template <class T>
template <core::Access kAccess>
void GradientScores<T>::prefetch_bias(const GradientPairs<T>& pairs, Index t0, Index t1,
                                      Index n) const {
  constexpr Index kLine = 64 / sizeof(T);
  const Index begin = n * kPanel;
  const Index j = pairs.keys.first() + begin;
  const Index count = std::min(kPanel, pairs.keys.count() - begin);
  for (Index r = pairs.queries.tile_begin(t0); r < pairs.queries.tile_end(t1 - 1); ++r) {
    const QueryAt at = pairs.queries.at(r);
    if constexpr (kAccess == core::Access::kRead) {
      prefetch_bias_row(p_, at, j, count);
    } else {
      const T* line = call_.own.at(call_.to.bias, at.b, at.h, at.i, j);
      for (Index c = 0; c < count; c += kLine) core::prefetch<kAccess>(line + c);
    }
  }
}

// Prefetches the masks of the same tiles in the next block of queries.
template <class T>
void GradientScores<T>::prefetch_masks(const GradientPairs<T>& pairs, Index t0, Index t1) const {
  for (Index r = t0 * kTileRows + kGradientBlock; r < t1 * kTileRows + kGradientBlock; ++r) {
    if (!pairs.queries.reaches(r)) return;
    for (Index n = 0; n < pairs.keys.count(); n += kPanel) {
      core::prefetch_masks(p_, pairs.queries.at(r), pairs.keys.first() + n);
    }
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_GRADIENT_SCORES_H_
