// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_GRADIENT_BLOCK_H_
#define QKV_ATTENTION_FUSED_GRADIENT_BLOCK_H_

#include <bit>

#include "attention/fused/additive_pairs.h"
#include "attention/fused/gradient_call.h"
#include "attention/fused/gradient_words.h"
#include "attention/fused/key_set.h"
#include "core/prefetch.h"

// One block of keys and all queries of its unit, block by block: scores and weights are recomputed,
// dk and dv are accumulated here, the gradients of queries are added to their rows in turn.
//   s = q k^T, dw = dout v^T, w = exp(s - lse), ds = w (dw - delta)
//   dv += w^T dout, dk += ds^T q, dq += ds k (dot products; additive:
//   attention/fused/additive_products.h)
namespace qkv::attn {

using core::kGradientBlock;
using kernels::kPanel;
using kernels::kTileRows;

inline constexpr Index kGradientPanels = kGradientBlock / kPanel;
inline constexpr Index kGradientTiles = pieces(kGradientBlock, kTileRows);
// Tiles whose scores are computed with a panel before the next panel is read.
inline constexpr Index kGradientGroup = 4;

template <class T>
class FusedGradientBlock {
 public:
  template <class AnyArena>
  FusedGradientBlock(const FusedGradientCall<T>& call, AnyArena& arena)
      : call_(call), p_(call.p), k_(call.dot.kernels), g_(call.kernels) {
    const auto take = [&](Index n) { return arena.template take<T>(n).data(); };
    k_panels_ = take(kGradientBlock * p_.Dk);
    v_panels_ = take(kGradientBlock * p_.E);
    s_ = take(kGradientBlock * kGradientStride);
    dw_ = take(kGradientBlock * kGradientStride);
    dk_ = take(kGradientBlock * p_.Dk);
    dv_ = take(kGradientBlock * p_.E);
    dq_ = take(kGradientBlock * p_.Dk);
    if (copies_keys()) k_copy_ = take(kGradientBlock * p_.Dk);
    if (pairs()) words_ = GradientWords<T>(arena, p_.Dk, p_.E);
    spare_ = take(std::max(2 * kGradientBlock, std::max(p_.Dk, p_.E)));
    sum_ = take(std::max(p_.Dk, p_.E));
    if (call.dot.additive != nullptr) pairs_ = AdditivePairs<T>(*call.dot.additive, arena);
    slopes_ = take(kTileRows * kGradientBlock);
    factors_ = take(kTileRows * kGradientBlock);
    live_ = arena.template take<std::uint8_t>(kGradientBlock * kGradientBlock).data();
  }

  // Keys block * kGradientBlock .. of a unit. Returns false if another task has failed.
  bool run(const KeyUnit& unit, Index block);

 private:
  bool pairs() const { return call_.dot.pairs; }
  bool copies_keys() const {
    return !pairs() && (p_.k.dtype != dtype_of<T> || p_.k.col_stride != 1);
  }
  Index first_row(Index t) const { return t * kTileRows; }
  Index rows_of(Index t) const { return std::min(kTileRows, rows_ - first_row(t)); }
  Index tiles() const { return pieces(rows_, kTileRows); }
  QueryAt query(Index r) const { return {unit_.b, h_, i0_ + r, offset_}; }
  // Keys of the tile's live panels, which are contiguous.
  KeyRange keys_of(Index t) const {
    return {std::countr_zero(panels_[t]) * kPanel, std::bit_width(panels_[t]) * kPanel};
  }
  // Whether keys that interval masks let no row of a tile see are left out within its panels.
  bool trims_keys() const { return !pairs() && call_.dot.additive == nullptr; }
  // The key after the tile's last live panel, or after the last key that interval masks let some of
  // its rows see.
  Index end_of(Index t) const {
    const Index last = std::min(keys_of(t).end, keys_);
    if (!trims_keys() || full_[t]) return last;
    Index end = 0;
    for (Index r = first_row(t); r < first_row(t) + rows_of(t); ++r) {
      end = std::max(end, range_[r].end);
    }
    return std::min(end, last);
  }
  // The first keys of panel n, which is live in all of these tiles.
  Index keys_of_panel(Index t0, Index t1, Index n) const {
    Index end = 0;
    for (Index t = t0; t < t1; ++t) end = std::max(end, end_of(t));
    return std::min(kPanel, end - n * kPanel);
  }
  T* scores(Index r) const { return s_ + r * kGradientStride; }
  T* gradients(Index r) const { return dw_ + r * kGradientStride; }
  std::uint8_t* live(Index r) const { return live_ + r * kGradientBlock; }

  // Whether dq and dk are products with ds.
  bool multiplies_queries() const { return call_.to.q.given() && call_.dot.additive == nullptr; }
  bool multiplies_keys() const { return call_.to.k.given() && call_.dot.additive == nullptr; }
  void begin(const KeyUnit& unit, Index block);
  bool query_block(Index h, Index block);
  void find_live(Index t);
  template <core::Access kAccess>
  void prefetch_bias(Index t0, Index t1, Index n) const;
  void prefetch_masks(Index t0, Index t1) const;
  void score_tiles(Index t0, Index t1);
  void tile_gradients(Index t);
  void change(Index t, Index r);
  void change_gradients(Index t, Index r);
  void query_sums(const QueryAt& at, Index r, const KeyRange& keys);
  void pair_keys();
  void pair_queries();
  void round_tile(Index t);
  void add_alone(const T* words, Index n, T weight, Index width, T* to);
  void key_products();
  void add_keys(const RowsOf<const T>& rows, Index width, T* weights, const KeyRange& keys,
                const KeyRange& tiles, T* to) const;
  void query_products();
  bool leaves_out_odd_keys() const { return call_.dot.additive == nullptr; }
  void pack_block(const Operand& x, Index offset, Index width, T* panels);
  void pack_values();
  void find_odd_keys();
  bool may_see(Index r, Index n) const;
  bool sees_odd_key() const;
  void find_live_keys();
  void keep_odd_values(bool keep);
  void additive_products();
  void products_with_care();
  void score_panel(Index t0, Index t1, Index n);
  bool add_to_queries(Index place);
  void finish();

  const FusedGradientCall<T>& call_;
  const Problem& p_;
  const kernels::DotKernels<T>& k_;
  const kernels::GradientKernels<T>& g_;
  // The block of keys.
  KeyUnit unit_;
  Index block_ = 0;
  Index j0_ = 0;
  Index keys_ = 0;
  Index offset_ = 0;
  bool finite_ = true;
  KeySet odd_;                  // if not finite_: the keys which are not
  bool has_odd_values_ = true;  // v_panels_ has theirs, not zeros
  RowsOf<const T> k_rows_;
  // The block of queries.
  Index h_ = 0;
  Index i0_ = 0;
  Index rows_ = 0;
  bool with_care_ = false;
  RowsOf<const T> q_rows_, dout_rows_;
  kernels::QueryState<T> state_;
  KeyRange range_[kGradientBlock];        // of each row's keys, counted from j0
  unsigned panels_[kGradientTiles] = {};  // bit n: the tile's panel n has live keys
  bool partial_[kGradientTiles] = {};     // key masks forbid some of them
  bool full_[kGradientTiles] = {};        // no mask forbids a key of the live panels
  T alibi_sums_[kGradientBlock];          // of each row
  T bias_sums_[kGradientBlock];
  bool key_live_[kGradientBlock];  // whether a key has a live pair, or is finite
  AdditivePairs<T> pairs_;
  GradientWords<T> words_;
  T* v_sums_ = nullptr;

  T* k_panels_ = nullptr;
  T* v_panels_ = nullptr;
  T* k_copy_ = nullptr;
  T* s_ = nullptr;   // [kGradientBlock][kGradientStride]: scores, then weights
  T* dw_ = nullptr;  // likewise: gradients into weights, then into scores before scale
  T* dk_ = nullptr;
  T* dv_ = nullptr;
  T* dq_ = nullptr;  // of this block of keys alone
  T* spare_ = nullptr;
  T* sum_ = nullptr;      // of a row, with care
  T* slopes_ = nullptr;   // [kTileRows][kGradientBlock]
  T* factors_ = nullptr;  // likewise: of dropout
  std::uint8_t* live_ = nullptr;
};

// ---- the block of keys ----------------------------------------------------------------------

template <class T>
bool FusedGradientBlock<T>::run(const KeyUnit& unit, Index block) {
  begin(unit, block);
  for (Index h = unit.first_head; h < unit.first_head + unit.heads; ++h) {
    const Index first = call_.block_of(unit.b, h, unit.s, 0);
    for (Index n = 0; n < pieces(unit.s.Tq, kGradientBlock); ++n) {
      const KeyRange& blocks = call_.key_blocks[first + n];
      if (block < blocks.begin || block >= blocks.end) continue;
      if (!query_block(h, n)) return false;
    }
  }
  finish();
  return true;
}

template <class T>
void FusedGradientBlock<T>::begin(const KeyUnit& unit, Index block) {
  unit_ = unit;
  block_ = block;
  j0_ = block * kGradientBlock;
  keys_ = std::min(kGradientBlock, unit.s.Tk - j0_);
  offset_ = p_.diagonal_offset(unit.b, unit.s);
  const Index row = unit.s.k0 + j0_;
  const Index k_offset =
      core::offset_of(p_.k, core::batch_offset(p_.k, p_.batch, unit.b), unit.g, row, 0);
  finite_ = true;
  has_odd_values_ = true;
  pack_block(p_.k, k_offset, call_.dot.score_width(), k_panels_);
  pack_values();
  if (!finite_ && leaves_out_odd_keys()) find_odd_keys();
  if (pairs()) {
    pair_keys();
  } else if (copies_keys()) {
    for (Index n = 0; n < keys_; ++n) {
      call_.dot.stop();
      load_values(p_.k, k_offset + n * p_.k.row_stride, p_.k.col_stride, p_.Dk,
                  k_copy_ + n * p_.Dk);
    }
    k_rows_ = {k_copy_, p_.Dk};
  } else {
    k_rows_ = {static_cast<const T*>(p_.k.data) + k_offset, p_.k.row_stride};
  }
  std::fill_n(key_live_, keys_, false);
  if (call_.dot.additive != nullptr) {
    pairs_.load_keys(k_rows_, keys_, call_.dot.additive->of_keys(unit.b, unit.g, row, keys_));
  }
  if (call_.sums_v) {
    v_sums_ = call_.v_sums + call_.key_block_of(unit, block) * call_.width();
    std::fill_n(v_sums_, call_.width(), T(0));
  }
  std::fill_n(dk_, keys_ * call_.width(), T(0));
  std::fill_n(dv_, keys_ * p_.E, T(0));
}

template <class T>
void FusedGradientBlock<T>::pack_block(const Operand& x, Index offset, Index width, T* panels) {
  const Index count = pieces(keys_, kPanel);
  for (Index n = 0; n < count; ++n) {
    call_.dot.stop();
    pack_panel(call_.dot, x, offset + n * kPanel * x.row_stride,
               std::min(kPanel, keys_ - n * kPanel), width,
               panels + n * kPanel * call_.terms(width));
  }
  finite_ = finite_ && g_.all_finite(panels, count * kPanel * call_.terms(width));
}

template <class T>
void FusedGradientBlock<T>::finish() {
  const Index row = unit_.s.k0 + j0_;
  const auto put = [&](const GradientRows<T>& to, const T* rows, Index width) {
    if (!to.given()) return;
    if (!to.is_summed() || to.has_rows()) {
      return to.put(unit_.b, unit_.g, row, keys_, {rows, width}, call_.dot.stop);
    }
    for (Index n = 0; n < keys_; ++n) {
      call_.dot.stop();
      to.add_to(call_.own, unit_.b, unit_.g, row + n, rows + n * width);
    }
  };
  if (call_.dot.additive != nullptr && call_.to.k.given()) {
    for (Index n = 0; n < keys_; ++n) {
      call_.dot.additive->multiply_by_v(unit_.first_head, key_live_[n], g_,
                                        dk_ + n * call_.width());
    }
  }
  if (call_.tells_live) {
    std::copy_n(key_live_, keys_,
                call_.key_live + RowPlaces::of_keys(p_).of(unit_.b, unit_.g, row));
  }
  put(call_.dk, dk_, call_.width());
  put(call_.dv, dv_, p_.E);
}

// ---- a block of queries ---------------------------------------------------------------------

template <class T>
bool FusedGradientBlock<T>::query_block(Index h, Index block) {
  h_ = h;
  i0_ = block * kGradientBlock;
  rows_ = std::min(kGradientBlock, unit_.s.Tq - i0_);
  call_.dot.stop();
  unsigned any_live = 0;
  for (Index t = 0; t < tiles(); ++t) {
    find_live(t);
    any_live |= panels_[t];
  }
  const Index place = call_.block_of(unit_.b, h, unit_.s, block);
  if (any_live == 0) return add_to_queries(place);
  const Index row = unit_.s.q0 + i0_;
  q_rows_ = call_.q.from(unit_.b, h, row);
  if (call_.dout.given()) dout_rows_ = call_.dout.from(unit_.b, h, row);
  state_ = call_.state_of(call_.query_places.of(unit_.b, h, row));
  pair_queries();
  const bool odd_key = !finite_ && (!leaves_out_odd_keys() || sees_odd_key());
  if (!finite_ && leaves_out_odd_keys()) keep_odd_values(odd_key);
  with_care_ = odd_key || call_.finite[place] == 0 ||
               (call_.dot.additive != nullptr && call_.dot.additive->is_odd(h));
  for (Index t = 0; t < tiles(); t += kGradientGroup) {
    score_tiles(t, std::min(t + kGradientGroup, tiles()));
  }
  if (call_.dot.additive != nullptr && call_.needs_score_gradients()) additive_products();
  if (with_care_) {
    products_with_care();
  } else {
    if (finite_) {
      std::fill_n(key_live_, keys_, true);
    } else if (call_.tells_live) {
      find_live_keys();
    }
    if (call_.adds_to_queries()) query_products();
    key_products();
  }
  return add_to_queries(place);
}

// The keys of the block that the tile's rows may see.
template <class T>
void FusedGradientBlock<T>::find_live(Index t) {
  const Index first = first_row(t);
  const Index end = first + rows_of(t);
  const auto panels_between = [](const KeyRange& keys) {
    return (1U << pieces(keys.end, kPanel)) - (1U << keys.begin / kPanel);
  };
  partial_[t] = false;
  if (p_.masks.empty()) {
    std::fill(range_ + first, range_ + end, KeyRange{0, keys_});
    panels_[t] = panels_between({0, keys_});
    full_[t] = keys_ % kPanel == 0;
    return;
  }
  unsigned panels = 0;
  for (Index r = first; r < end; ++r) {
    const KeyRange all = live_range(p_, query(r), unit_.s.Tk);
    const KeyRange range{std::max(all.begin - j0_, Index{0}), std::min(all.end - j0_, keys_)};
    range_[r] = range.empty() ? KeyRange{} : range;
    if (!range.empty()) panels |= panels_between(range);
  }
  panels_[t] = panels;
  if (panels == 0) return;
  const KeyRange keys = keys_of(t);
  full_[t] = std::all_of(range_ + first, range_ + end, [&](const KeyRange& range) {
    return range.begin <= keys.begin && range.end >= keys.end;
  });
  if (!call_.dot.key_masks) return;
  // The result of precomputed masks.
  unsigned alive = 0;
  for (Index n = 0; n < kGradientPanels; ++n) {
    if ((panels >> n & 1U) == 0) continue;
    const Index tile_j = j0_ / kPanel + n;
    core::TileClass known = tile_class(p_, query(first), tile_j);
    for (Index r = first + 1; r < end; ++r) {
      if (tile_class(p_, query(r), tile_j) != known) known = core::TileClass::kPartial;
    }
    if (known != core::TileClass::kDead) alive |= 1U << n;
    partial_[t] = partial_[t] || known == core::TileClass::kPartial;
  }
  panels_[t] = alive;
  if (!partial_[t]) return;
  full_[t] = false;
  panels = 0;
  for (Index r = first; r < end; ++r) {
    std::uint8_t* allowed = live(r);
    find_allowed(p_, call_.dot.instances, query(r), j0_, keys_, allowed);
    for (Index n = 0; n < kGradientPanels; ++n) {
      std::uint8_t* stop = allowed + std::min((n + 1) * kPanel, keys_);
      if (std::find(allowed + std::min(n * kPanel, keys_), stop, std::uint8_t{1}) != stop) {
        panels |= 1U << n;
      }
    }
  }
  panels_[t] &= panels;
}

// Prefetches panel n of the bias of the tiles' rows, or of its gradient.
template <class T>
template <core::Access kAccess>
void FusedGradientBlock<T>::prefetch_bias(Index t0, Index t1, Index n) const {
  constexpr Index kLine = 64 / sizeof(T);
  const Index begin = n * kPanel;
  const Index count = std::min(kPanel, keys_ - begin);
  for (Index r = first_row(t0); r < std::min(first_row(t1), rows_); ++r) {
    const QueryAt at = query(r);
    if constexpr (kAccess == core::Access::kRead) {
      prefetch_bias_row(p_, at, j0_ + begin, count);
    } else {
      const T* line = call_.own.at(call_.to.bias, at.b, at.h, at.i, j0_ + begin);
      for (Index c = 0; c < count; c += kLine) core::prefetch<kAccess>(line + c);
    }
  }
}

// Prefetches the masks of the same tiles in the next block of queries.
template <class T>
void FusedGradientBlock<T>::prefetch_masks(Index t0, Index t1) const {
  for (Index r = first_row(t0) + kGradientBlock; r < first_row(t1) + kGradientBlock; ++r) {
    if (i0_ + r >= unit_.s.Tq) return;
    for (Index n = 0; n < keys_; n += kPanel) core::prefetch_masks(p_, query(r), j0_ + n);
  }
}

// Weights and gradients of scores for the tiles t0 .. t1-1.
template <class T>
void FusedGradientBlock<T>::score_tiles(Index t0, Index t1) {
  if (call_.dot.key_masks) prefetch_masks(t0, t1);
  // The words of a row in pairs are made of all panels.
  const Index panels = pairs() ? kGradientPanels : pieces(keys_, kPanel);
  for (Index n = 0; n < panels; ++n) {
    const auto is_live = [&](Index t) { return (panels_[t] >> n & 1U) != 0; };
    // The end of the run of live tiles from t.
    const auto live_end = [&](Index t) {
      while (t < t1 && is_live(t)) ++t;
      return t;
    };
    for (Index t = t0; t < t1;) {
      if (is_live(t)) {
        const Index end = call_.dot.joins_tiles() ? live_end(t) : t + 1;
        if (p_.bias.given()) prefetch_bias<core::Access::kRead>(t, end, n);
        score_panel(t, end, n);
        t = end;
        continue;
      }
      for (Index x = first_row(t); x < first_row(t) + rows_of(t); ++x) {
        std::fill_n(scores(x) + n * kPanel, kPanel, T(0));
        std::fill_n(gradients(x) + n * kPanel, kPanel, T(0));
      }
      ++t;
    }
    for (Index t = t0; t < t1 && call_.multiplies_values(); ++t) {
      if (!is_live(t)) continue;
      call_.dot.stop();
      const Index first = t;
      const Index r = first_row(t);
      const Index end = live_end(t);
      if (call_.sums_bias_keys()) prefetch_bias<core::Access::kWrite>(t, end, n);
      t = end;
      k_.scores_of_keys({dout_rows_.data + r * dout_rows_.stride, dout_rows_.stride},
                        std::min(first_row(t), rows_) - r, p_.E,
                        v_panels_ + n * kPanel * call_.terms(p_.E), keys_of_panel(first, t, n),
                        T(1), {gradients(r) + n * kPanel, kGradientStride});
    }
  }
  for (Index t = t0; t < t1; ++t) {
    if (panels_[t] != 0) tile_gradients(t);
    round_tile(t);
  }
}

// Panel n for tiles t0 .. t1-1: one tile, unless the call joins them.
template <class T>
void FusedGradientBlock<T>::score_panel(Index t0, Index t1, Index n) {
  call_.dot.stop();
  const Index r = first_row(t0);
  const Index rows = std::min(first_row(t1), rows_) - r;
  const Index keys = keys_of_panel(t0, t1, n);
  const AdditiveScores<T>* additive = call_.dot.additive;
  const Range range =
      additive == nullptr
          ? Range::kSmall
          : std::max(additive->of_queries(unit_.b, h_, unit_.s.q0 + i0_ + r, rows),
                     additive->of_keys(unit_.b, unit_.g, unit_.s.k0 + j0_ + n * kPanel, keys));
  call_.dot.scores(h_, {q_rows_.data + r * q_rows_.stride, q_rows_.stride}, rows,
                   k_panels_ + n * kPanel * call_.terms(call_.dot.score_width()), keys, range,
                   {scores(r) + n * kPanel, kGradientStride});
}

template <class T>
void FusedGradientBlock<T>::tile_gradients(Index t) {
  const KeyRange keys = keys_of(t);
  const Index first = first_row(t);
  const Index count = std::min(keys.end, pieces(keys_, kMostLanes) * kMostLanes) - keys.begin;
  const bool plain = call_.is_plain() && full_[t] && !with_care_;
  for (Index r = first; !plain && r < first + rows_of(t); ++r) {
    change(t, r);
    change_gradients(t, r);
  }
  const bool apart = call_.has_slopes() || call_.sums_score_gradients();
  const T scale = apart ? T(1) : static_cast<T>(p_.scale);
  g_.score_gradients({scores(first) + keys.begin, kGradientStride},
                     {gradients(first) + keys.begin, kGradientStride}, rows_of(t), count,
                     {state_.lse + first, state_.factor + first, state_.delta + first}, scale);
  for (Index r = first; !plain && r < first + rows_of(t); ++r) {
    T* ds = gradients(r) + keys.begin;
    if (call_.sums_score_gradients()) query_sums(query(r), r, keys);
    if (call_.has_slopes()) {
      g_.multiply(ds, slopes_ + (r - first) * kGradientBlock, count);
    } else if (apart) {
      k_.scale_row(ds, static_cast<T>(p_.scale), count, ds);
    }
    if (p_.dropout != 0) {
      g_.keep(scores(r) + keys.begin, factors_ + (r - first) * kGradientBlock, count);
    }
  }
}

}  // namespace qkv::attn

#include "attention/fused/additive_products.h"  // likewise, of the additive score
#include "attention/fused/gradient_options.h"   // what options change
#include "attention/fused/gradient_products.h"  // the products that follow
#include "attention/fused/odd_keys.h"           // and of keys that are not finite

#endif  // QKV_ATTENTION_FUSED_GRADIENT_BLOCK_H_
