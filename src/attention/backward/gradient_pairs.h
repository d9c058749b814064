// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_GRADIENT_PAIRS_H_
#define QKV_ATTENTION_BACKWARD_GRADIENT_PAIRS_H_

#include <algorithm>
#include <bit>

#include "attention/backward/gradient_keys.h"
#include "attention/backward/gradient_queries.h"
#include "core/integers.h"

namespace qkv::attn {

// The query-key pairs of a block of queries and a block of keys in step 2 (backward.h).
// GradientPairs finds the live panels of each tile: those with an unmasked pair, as far as is
// known. Where interval masks alone do not tell which pairs are masked, a byte for each pair
// [queries][keys] does, from element-wise masks or from scores. Owned by FusedGradientBlock.
template <class T>
class GradientPairs {
 public:
  template <class AnyArena>
  GradientPairs(const FusedGradientCall<T>& call, AnyArena& arena)
      : keys(call, arena), queries(call, arena), call_(call), p_(call.p) {
    live_pairs_ = arena.template take<std::uint8_t>(kGradientBlock * kGradientBlock).data();
  }

  // Moves to the block of keys that starts at key block * kGradientBlock of a unit.
  void start(const KeyUnit& unit, Index block) {
    keys.start(unit, block);
    queries.start(unit);
  }
  // Moves to the block of queries that starts at query block * kGradientBlock of head h; returns
  // false if no pair is live.
  bool go_to(Index h, Index block);

  // Whether ElementwiseProducts computes the products, without masked pairs: some factor may be NaN
  // or infinite, and 0 times such a factor is NaN.
  bool need_elementwise() const { return need_elementwise_; }
  // Whether panel n of tile t, or any panel of tile t, has unmasked pairs.
  bool is_live(Index t, Index n) const { return (panels_[t] >> n & 1U) != 0; }
  bool is_live(Index t) const { return panels_[t] != 0; }
  bool has_same_panels(Index t, Index other) const { return panels_[t] == panels_[other]; }
  // Whether each live panel of tile t has kPanel keys, and no mask forbids any of its pairs.
  bool is_full(Index t) const { return full_[t]; }
  // Whether element-wise masks forbid some pairs of the live panels: then live_pairs(r) tells
  // which.
  bool is_partial(Index t) const { return partial_[t]; }

  // The keys from the tile's first to its last live panel.
  KeyRange keys_of(Index t) const {
    return {std::countr_zero(panels_[t]) * kPanel, std::bit_width(panels_[t]) * kPanel};
  }
  // The end of the keys that sums for tile t read: the end of the tile's last live panel (or of the
  // block) or, if trims_keys(), of the keys that interval masks allow some row of the tile.
  Index end_of(Index t) const {
    const Index last = std::min(keys_of(t).end, keys.count());
    if (!trims_keys() || full_[t]) return last;
    Index end = 0;
    for (Index r = queries.tile_begin(t); r < queries.tile_end(t); ++r) {
      end = std::max(end, range_[r].end);
    }
    return std::min(end, last);
  }
  // Number of keys of panel n, which is live in tiles t0 .. t1-1, up to the largest end_of() of
  // these tiles.
  Index keys_of_panel(Index t0, Index t1, Index n) const {
    Index end = 0;
    for (Index t = t0; t < t1; ++t) end = std::max(end, end_of(t));
    return std::min(kPanel, end - n * kPanel);
  }
  // Reduces `rows` to the range from the first to the last row that interval masks let attend to a
  // key of `some`.
  KeyRange rows_seeing(const KeyRange& some, KeyRange rows) const {
    const auto sees = [&](Index r) {
      return range_[r].begin < some.end && range_[r].end > some.begin;
    };
    while (!rows.empty() && !sees(rows.begin)) ++rows.begin;
    while (!rows.empty() && !sees(rows.end - 1)) --rows.end;
    return rows;
  }
  // Whether sums over the rows of tiles t0 .. t1-1 leave out the rows that rows_seeing() excludes:
  // keys are trimmed and some tile is not full.
  bool trims_rows(Index t0, Index t1) const {
    return trims_keys() && !std::all_of(full_ + t0, full_ + t1, [](bool x) { return x; });
  }
  // The keys that interval masks allow row r, counted from the block's first key.
  const KeyRange& range(Index r) const { return range_[r]; }
  // A byte for each key of the block: 1 if its pair with row r is live. The bytes come from
  // element-wise masks in partial tiles and, if need_elementwise(), from the scores once these are
  // computed.
  std::uint8_t* live_pairs(Index r) const { return live_pairs_ + r * kGradientBlock; }
  // Whether masks let row r attend to key n.
  bool may_see(Index r, Index n) const {
    const Index t = r / kTileRows;
    if (!is_live(t, n / kPanel) || n < range_[r].begin || n >= range_[r].end) return false;
    return !partial_[t] || live_pairs(r)[n] != 0;
  }

  GradientKeys<T> keys;
  GradientQueries<T> queries;

 private:
  // Whether sums leave out keys behind the last one that interval masks allow some row of a tile.
  bool trims_keys() const { return !call_.dot.in_words && call_.dot.additive == nullptr; }
  void find_live(Index t);
  void ask_masks(Index t);
  bool sees_non_finite_key() const;

  const FusedGradientCall<T>& call_;
  const Problem& p_;
  bool need_elementwise_ = false;
  KeyRange range_[kGradientBlock];        // see range()
  unsigned panels_[kGradientTiles] = {};  // bit n: the tile's panel n has live keys
  bool partial_[kGradientTiles] = {};
  bool full_[kGradientTiles] = {};
  std::uint8_t* live_pairs_ = nullptr;  // [queries][keys]
};

template <class T>
bool GradientPairs<T>::go_to(Index h, Index block) {
  queries.go_to(h, block);
  call_.dot.stop();
  unsigned any_live = 0;
  for (Index t = 0; t < queries.tiles(); ++t) {
    find_live(t);
    any_live |= panels_[t];
  }
  if (any_live == 0) return false;
  queries.find_rows();
  const bool non_finite_key =
      !keys.are_finite() && (!keys.have_non_finite() || sees_non_finite_key());
  if (keys.have_non_finite()) keys.keep_non_finite(non_finite_key);
  need_elementwise_ = non_finite_key || call_.finite[queries.place()] == 0 ||
                      (call_.dot.additive != nullptr && call_.dot.additive->is_non_finite(h));
  return true;
}

// Finds the keys of the block that masks allow the rows of tile t.
template <class T>
void GradientPairs<T>::find_live(Index t) {
  const Index first = queries.tile_begin(t);
  const Index end = queries.tile_end(t);
  const auto panels_between = [](const KeyRange& some) {
    return (1U << core::divide_up(some.end, kPanel)) - (1U << some.begin / kPanel);
  };
  partial_[t] = false;
  if (p_.masks.empty()) {
    std::fill(range_ + first, range_ + end, KeyRange{0, keys.count()});
    panels_[t] = panels_between({0, keys.count()});
    full_[t] = keys.count() % kPanel == 0;
    return;
  }
  unsigned panels = 0;
  for (Index r = first; r < end; ++r) {
    const KeyRange all = live_range(p_, queries.at(r), keys.unit().s.Tk);
    const KeyRange range{std::max(all.begin - keys.first(), Index{0}),
                         std::min(all.end - keys.first(), keys.count())};
    range_[r] = range.empty() ? KeyRange{} : range;
    if (!range.empty()) panels |= panels_between(range);
  }
  panels_[t] = panels;
  if (panels == 0) return;
  const KeyRange live = keys_of(t);
  full_[t] = std::all_of(range_ + first, range_ + end, [&](const KeyRange& range) {
    return range.begin <= live.begin && range.end >= live.end;
  });
  if (call_.dot.key_masks) ask_masks(t);
}

// Reduces the tile's live panels to those in which element-wise masks allow a pair. If the tile is
// partial, sets live_pairs() of its rows.
template <class T>
void GradientPairs<T>::ask_masks(Index t) {
  const Index first = queries.tile_begin(t);
  const Index end = queries.tile_end(t);
  // Precomputed masks tell the class of a panel without being evaluated.
  unsigned live = 0;
  for (Index n = 0; n < kGradientPanels; ++n) {
    if (!is_live(t, n)) continue;
    const Index tile_j = keys.first() / kPanel + n;
    core::TileClass known = tile_class(p_, queries.at(first), tile_j);
    for (Index r = first + 1; r < end; ++r) {
      if (tile_class(p_, queries.at(r), tile_j) != known) known = core::TileClass::kPartial;
    }
    if (known != core::TileClass::kDead) live |= 1U << n;
    partial_[t] = partial_[t] || known == core::TileClass::kPartial;
  }
  panels_[t] = live;
  if (!partial_[t]) return;
  full_[t] = false;
  unsigned panels = 0;
  call_.dot.before_user_code();
  for (Index r = first; r < end; ++r) {
    const Index count = keys.count();
    std::uint8_t* const row = live_pairs(r);
    find_allowed(p_, call_.dot.instances, queries.at(r), keys.first(), count, row);
    for (Index n = 0; n < kGradientPanels; ++n) {
      std::uint8_t* const stop = row + std::min((n + 1) * kPanel, count);
      if (std::find(row + std::min(n * kPanel, count), stop, std::uint8_t{1}) != stop) {
        panels |= 1U << n;
      }
    }
  }
  panels_[t] &= panels;
}

template <class T>
bool GradientPairs<T>::sees_non_finite_key() const {
  const Index count = keys.count();
  for (Index n = keys.next_non_finite(0, count); n < count;
       n = keys.next_non_finite(n + 1, count)) {
    for (Index r = 0; r < queries.count(); ++r) {
      if (may_see(r, n)) return true;
    }
  }
  return false;
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_GRADIENT_PAIRS_H_
