// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_BLOCK_SCORES_H_
#define QKV_ATTENTION_TILES_BLOCK_SCORES_H_

#include <algorithm>
#include <bit>
#include <limits>

#include "attention/tiles/block_tiles.h"
#include "attention/tiles/chunk_keys.h"
#include "core/integers.h"

namespace qkv::attn {

// The scores of a block's queries against the current chunk of keys: [kRowsAtOnce][kScoreStride],
// two tiles at a time. Its functions are the steps between the input rows and the softmax, in the
// order of the definition: product and scale, soft-cap, user functions, bias, ALiBi, masks. The
// forward pass and all passes that recompute scores use it. Live tiles and keys are defined in
// block_tiles.h.
template <class T>
class BlockScores {
 public:
  // kLive skips panels without an unmasked pair; kAll computes every score.
  enum class Tiles { kLive, kAll };

  template <class AnyArena>
  BlockScores(const FusedCall<T>& call, AnyArena& arena)
      : queries(call, arena),
        call_(call),
        p_(call.p),
        k_(call.kernels),
        tiles_(call, arena),
        chunk_(call, arena) {
    s_ = arena.template take<T>(kRowsAtOnce * kScoreStride).data();
    spare_ = arena.template take<T>(kKeyChunk).data();
  }

  // Starts with rows n0 .. n0 + count - 1 of a unit's queries, or without rows. `packed`: the
  // unit's panels, or null if they are packed when needed.
  void start(const KeyUnit& unit, const T* packed, Index n0, Index count) {
    queries.start(unit, n0, count);
    chunk_.start(unit, packed);
  }
  void start(const KeyUnit& unit, const T* packed) {
    queries.start(unit);
    chunk_.start(unit, packed);
  }
  // Promises that this block reads no key from `end` on.
  void read_until(Index end) { chunk_.read_until(end); }

  // Begins the chunk at key j0; returns false if interval masks forbid every pair. `values`: the
  // unit's rows of values, needed if the call reads_values and sums of values follow; else null.
  bool begin_chunk(Index j0, Tiles tiles, const core::HeadRows* values) {
    call_.stop();
    chunk_.go_to(j0, queries.live(), tiles == Tiles::kAll, values);
    return tiles_.go_to(queries, j0, chunk_.count(), tiles == Tiles::kAll);
  }
  // Computes the scaled scores of tiles t0 .. t1-1, at most two.
  void compute(Index t0, Index t1);
  // Recomputes the scaled scores of tile t, whose live panels are known.
  void compute_again(Index t) {
    for (Index n = 0; n < kPanelsPerChunk; ++n) {
      if ((tiles_[t].live_panels >> n & 1U) != 0) score_panel(t, t + 1, n);
    }
  }
  // Computes the scaled scores of the chunk at key j0, two tiles at a time. After each two it calls
  // use(first row, rows), which reads the scores with row() and piece().
  template <class Use>
  void go_through(Index j0, Tiles tiles, const Use& use) {
    begin_chunk(j0, tiles, nullptr);
    for (Index t = 0; t < queries.tiles(); t += kTilesAtOnce) {
      const Index end = std::min(t + kTilesAtOnce, queries.tiles());
      compute(t, end);
      const Index first = queries.tile_begin(t);
      use(first, queries.tile_end(end - 1) - first);
    }
  }

  // The first key of the chunk, and the number of its keys.
  Index first_key() const { return chunk_.first(); }
  Index keys() const { return chunk_.count(); }
  // End of the chunk's keys whose scores the current tiles need: the chunk's end, or less if the
  // call trims_keys().
  Index key_end() const { return key_end_; }
  const Tile& tile(Index t) const { return tiles_[t]; }
  // The scores of row r of the current tiles, indexed from the chunk's first key. Valid for the
  // keys piece(r) = begin .. end - 1, masked or not; the chunk's other keys are masked for this
  // row.
  T* row(Index r) const { return s_ + r % kRowsAtOnce * kScoreStride; }
  KeyRange piece(Index r) const { return tiles_[r / kTileRows].keys; }
  void soft_cap(Index r) const {
    const KeyRange x = piece(r);
    if (p_.softcap == 0) return;
    k_.soft_cap(row(r) + x.begin, nullptr, static_cast<T>(p_.softcap),
                std::min(x.end, chunk_.count()) - x.begin);
  }
  // Applies user functions, bias, ALiBi and masks to row r; masked scores become -inf.
  void change(Index r) const;
  // Returns the keys of tile t that the softmax reads, in whole registers. Sets those scores to
  // -inf that lie behind the chunk's last key.
  KeyRange pad(Index t) const {
    const KeyRange x = tiles_[t].keys;
    const Index end = std::min(x.end, core::divide_up(key_end_, kMostLanes) * kMostLanes);
    for (Index r = queries.tile_begin(t); chunk_.count() < end && r < queries.tile_end(t); ++r) {
      std::fill(row(r) + chunk_.count(), row(r) + end, -std::numeric_limits<T>::infinity());
    }
    return {x.begin, end};
  }
  // Whether masks let row r attend to key n of the chunk.
  bool may_see(Index r, Index n) const { return tiles_.may_see(queries, r, n); }
  // The keys of the chunk that interval masks allow some row, in whole panels.
  KeyRange live_keys() const {
    const KeyRange& live = queries.live();
    return {std::max(live.begin - chunk_.first(), Index{0}) / kPanel * kPanel,
            std::min(chunk_.count(), core::divide_up(live.end - chunk_.first(), kPanel) * kPanel)};
  }
  // If keys or values are read as they are stored: the keys of the chunk that are read, and where
  // their rows are.
  const KeyRange& stored() const { return chunk_.stored(); }
  const ChunkReads& reads() const { return chunk_.reads(); }

  QueryRows<T> queries;

 private:
  void prefetch_options(Index t0, Index t1, Index n) const;
  void score_panel(Index t0, Index t1, Index n);
  void score_stored(Index first, Index rows, Index n, Index keys);

  const FusedCall<T>& call_;
  const Problem& p_;
  const kernels::DotKernels<T>& k_;
  BlockTiles<T> tiles_;
  ChunkKeys<T> chunk_;
  Index key_end_ = 0;
  T* s_ = nullptr;      // [rows at once][kScoreStride]
  T* spare_ = nullptr;  // [kKeyChunk]
  kernels::TileScope tile_scope_;
};

template <class T>
void BlockScores<T>::compute(Index t0, Index t1) {
  key_end_ = call_.trims_keys() ? tiles_.end_of(t0, t1) : chunk_.count();
  for (Index t = t0; t < t1; ++t) {
    for (unsigned dead = tiles_.find_panels(queries, t); dead != 0; dead &= dead - 1) {
      const Index n = std::countr_zero(dead) * kPanel;
      for (Index r = queries.tile_begin(t); r < queries.tile_end(t); ++r) {
        std::fill_n(row(r) + n, kPanel, T(0));
      }
    }
  }
  for (Index n = 0; n < core::divide_up(chunk_.count(), kPanel); ++n) {
    call_.stop();
    if (call_.changes_scores) prefetch_options(t0, t1, n);
    const auto is_live = [&](Index t) { return (tiles_[t].live_panels >> n & 1U) != 0; };
    for (Index t = t0; t < t1; ++t) {
      if (!is_live(t)) continue;
      const Index first = t;
      while (call_.joins_tiles() && t + 1 < t1 && is_live(t + 1)) ++t;
      score_panel(first, t + 1, n);
    }
  }
}

// Prefetches, for panel n, the arrays that options read once from main memory: the bias of tiles t0
// .. t1-1 and the masks of the next tiles' rows. The function is called panel by panel because few
// cache lines can be outstanding at a time.
template <class T>
void BlockScores<T>::prefetch_options(Index t0, Index t1, Index n) const {
  const Index end = queries.tile_end(t1 - 1);
  for (Index r = queries.tile_begin(t0); p_.bias.given() && r < end; ++r) {
    const KeyRange x = piece(r);
    const Index begin = std::max(x.begin, n * kPanel);
    const Index stop = std::min({x.end, chunk_.count(), (n + 1) * kPanel});
    prefetch_bias_row(p_, queries[r].at, chunk_.first() + begin, stop - begin);
  }
  const Index next_end = std::min(queries.count(), end + kRowsAtOnce);
  for (Index r = end; call_.key_masks && r < next_end; ++r) {
    core::prefetch_masks(p_, queries[r].at, chunk_.first() + n * kPanel);
  }
}

// Computes the scores of panel n of the chunk for tiles t0 .. t1-1: one tile, unless the call
// joins_tiles().
template <class T>
void BlockScores<T>::score_panel(Index t0, Index t1, Index n) {
  const Index first = queries.tile_begin(t0);
  const Index end = queries.tile_end(t1 - 1);
  const Index panel_end = call_.trims_keys() ? tiles_.end_of(t0, t1) : chunk_.count();
  const Index keys = std::min(kPanel, panel_end - n * kPanel);
  if (chunk_.are_stored()) return score_stored(first, end - first, n, keys);
  ExponentialForm form = ExponentialForm::kSmall;
  if (call_.additive != nullptr && call_.additive->most != ExponentialForm::kSmall) {
    const KeyUnit& unit = queries.unit();
    form = call_.additive->of_keys(unit.b, unit.g, unit.s.k0 + chunk_.first() + n * kPanel, keys);
    for (Index r = first; r < end; ++r) form = std::max(form, queries[r].form);
  }
  call_.scores(queries[first].at.h, queries.channels(first), end - first, chunk_.panel(n), keys,
               form, {row(first) + n * kPanel, kScoreStride});
}

// Computes scores of keys that are read as they are stored. Keys that no row may attend to are not
// read; their scores are 0 until they are masked.
template <class T>
void BlockScores<T>::score_stored(Index first, Index rows, Index n, Index keys) {
  const Index panel = n * kPanel;
  const Index begin = std::clamp(chunk_.stored().begin, panel, panel + keys);
  const Index end = std::clamp(chunk_.stored().end, begin, panel + keys);
  for (Index r = first; r < first + rows && end - begin < keys; ++r) {
    std::fill(row(r) + panel, row(r) + panel + keys, T(0));
  }
  const T scale = static_cast<T>(p_.scale);
  for (Index key = begin, count = 0; key < end; key += count) {
    count = chunk_.reads().run_of_keys(key, end - key);
    const ReadAhead ahead = first == 0 ? chunk_.reads().beside_keys(key, count) : ReadAhead{};
    count = std::min(count, end - key);
    k_.stored_scores(queries.channels(first), rows, p_.Dk, chunk_.reads().keys(key), count, scale,
                     {row(first) + key, kScoreStride}, ahead);
  }
}

template <class T>
void BlockScores<T>::change(Index r) const {
  const KeyRange x = piece(r);
  if (x.empty()) return;
  const bool sees_all = queries[r].live.begin <= chunk_.first() + x.begin &&
                        queries[r].live.end >= chunk_.first() + x.end;
  if (sees_all && call_.only_intervals) return;
  T* s = row(r);
  const Index n = std::min(x.end, chunk_.count()) - x.begin;
  call_.before_user_code();
  change_piece<T>({p_, k_, call_.instances, spare_}, queries[r].at, chunk_.first() + x.begin, n,
                  s + x.begin);
  if (tiles_[r / kTileRows].partial) k_.mask(s + x.begin, tiles_.allowed(r) + x.begin, n);
  constexpr T kMasked = -std::numeric_limits<T>::infinity();
  const KeyRange& live = queries[r].live;
  const Index begin = std::clamp(live.begin - chunk_.first(), x.begin, x.end);
  const Index end = std::clamp(live.end - chunk_.first(), begin, x.end);
  std::fill(s + x.begin, s + begin, kMasked);
  std::fill(s + end, s + x.end, kMasked);
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_BLOCK_SCORES_H_
