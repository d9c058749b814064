// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_BLOCK_SCORES_H_
#define QKV_ATTENTION_FUSED_BLOCK_SCORES_H_

#include <algorithm>
#include <bit>
#include <limits>

#include "attention/fused/chunk_reads.h"
#include "attention/fused/pack.h"
#include "attention/fused/query_rows.h"
#include "attention/fused/tile_masks.h"
#include "core/head_rows.h"

namespace qkv::attn {

// The scores of a block's queries and a chunk of keys, a group of rows at a time, in the steps of
// their definition: product and scale, soft-cap, user functions, bias, ALiBi, masks.
template <class T>
class BlockScores {
 public:
  // Whether dead tiles are skipped, or every score is computed.
  enum class Tiles { kLive, kAll };

  template <class AnyArena>
  BlockScores(const FusedCall<T>& call, AnyArena& arena)
      : queries(call, arena), call_(call), p_(call.p), k_(call.kernels), masks_(call, arena) {
    s_ = arena.template take<T>(kGroupRows * kScoreStride).data();
    spare_ = arena.template take<T>(kKeyChunk).data();
    if (!call.reads_keys) panels_ = arena.template take<T>(p_.key_chunk * p_.Dk).data();
  }

  // Starts with rows n0 .. n0 + count - 1 of a unit's queries, or without rows. `packed`: the
  // unit's panels, or null to pack them when needed.
  void start(const KeyUnit& unit, const T* packed, Index n0, Index count) {
    queries.start(unit, n0, count);
    start_keys(unit, packed);
  }
  void start(const KeyUnit& unit, const T* packed) {
    queries.start(unit);
    start_keys(unit, packed);
  }
  // No key from `end` on will be asked of this block.
  void read_until(Index end) { reads_end_ = end; }

  // Begins with keys j0 ..; false if no row may see one. `values`: these rows are read besides, as
  // they are stored, or null.
  bool begin_chunk(Index j0, Tiles tiles, const core::HeadRows* values);
  // The scores after scale of tiles t0 .. t1-1, of one group.
  void compute(Index t0, Index t1, Tiles tiles);
  // The same again for tile t, whose live panels are known.
  void compute_again(Index t) {
    for (Index n = 0; n < kPanelsPerChunk; ++n) {
      if ((tiles_[t].live_panels >> n & 1U) != 0) score_panel(t, t + 1, n);
    }
  }
  // The scores after scale of keys j0 .., for one group of rows after another; then calls use(first
  // row, rows), which reads them with row(), piece() by piece().
  template <class Use>
  void for_each_group(Index j0, Tiles tiles, const Use& use) {
    begin_chunk(j0, tiles, nullptr);
    for (Index t = 0; t < queries.tiles(); t += kGroupTiles) {
      const Index end = std::min(t + kGroupTiles, queries.tiles());
      compute(t, end, tiles);
      const Index first = queries.tile_begin(t);
      use(first, queries.tile_end(end - 1) - first);
    }
  }

  // The chunk: its first key and their number.
  Index first_key() const { return j0_; }
  Index keys() const { return keys_; }
  // After the last of them that a row of the current group may see, as far as that is known.
  Index group_end() const { return group_end_; }
  const Tile& tile(Index t) const { return tiles_[t]; }
  // Scores of keys first_key() + begin .. end - 1 of row r of the current group, live or not; no
  // other key of the chunk is live.
  T* row(Index r) const { return s_ + r % kGroupRows * kScoreStride; }
  KeyRange piece(Index r) const { return tiles_[r / kTileRows].keys; }
  void soft_cap(Index r) const {
    const KeyRange x = piece(r);
    if (p_.softcap == 0) return;
    k_.soft_cap(row(r) + x.begin, nullptr, static_cast<T>(p_.softcap),
                std::min(x.end, keys_) - x.begin);
  }
  // Applies user functions, bias, ALiBi and masks: -inf where masked.
  void change(Index r) const;
  // The keys of tile t that the softmax is over, in whole registers: -inf behind the last key.
  KeyRange pad(Index t) const {
    const KeyRange x = tiles_[t].keys;
    const Index end = std::min(x.end, pieces(group_end_, kMostLanes) * kMostLanes);
    for (Index r = queries.tile_begin(t); keys_ < end && r < queries.tile_end(t); ++r) {
      std::fill(row(r) + keys_, row(r) + end, -std::numeric_limits<T>::infinity());
    }
    return {x.begin, end};
  }
  // Whether masks let row r see key n of the chunk.
  bool may_see(Index r, Index n) const {
    const KeyRange& live = queries[r].live;
    if (j0_ + n < live.begin || j0_ + n >= live.end) return false;
    return !tiles_[r / kTileRows].partial || masks_.allowed(r)[n] != 0;
  }
  // Keys of the chunk that some row may see, in whole panels.
  KeyRange live_keys() const {
    const KeyRange& live = queries.live();
    return {std::max(live.begin - j0_, Index{0}) / kPanel * kPanel,
            std::min(keys_, pieces(live.end - j0_, kPanel) * kPanel)};
  }
  // If keys or values are read as they are stored: which of the chunk's, and where.
  const KeyRange& stored() const { return stored_; }
  const ChunkReads& reads() const { return reads_; }

  QueryRows<T> queries;

 private:
  void start_keys(const KeyUnit& unit, const T* packed) {
    packed_ = packed;
    reads_end_ = unit.s.Tk;
    rows_ = {p_, p_.k, unit.b, unit.g, unit.s.k0};
  }
  Index end_of(Index t0, Index t1) const {
    Index end = 0;
    for (Index t = t0; t < t1; ++t) end = std::max(end, tiles_[t].end);
    return end;
  }
  Tile live_tile(Index t, Tiles tiles) const;
  void prefetch_options(Index t0, Index t1, Index n) const;
  void score_panel(Index t0, Index t1, Index n);
  void score_stored(Index first, Index rows, Index n, Index keys);
  const T* panel(Index n);

  const FusedCall<T>& call_;
  const Problem& p_;
  const kernels::DotKernels<T>& k_;
  TileMasks<T> masks_;
  core::HeadRows rows_;  // the keys
  const T* packed_ = nullptr;
  Index j0_ = 0;    // the chunk
  Index keys_ = 0;  // and its length
  Index group_end_ = 0;
  ChunkReads reads_;
  KeyRange stored_;
  Index reads_end_ = 0;  // key after the last that this block is expected to read
  Tile tiles_[kBlockTiles];
  T* s_ = nullptr;           // [group's rows][kScoreStride]
  T* spare_ = nullptr;       // [kKeyChunk]
  T* panels_ = nullptr;      // packed by this block, of the chunk
  unsigned own_panels_ = 0;  // bit n: panel n is packed
};

// ---- a chunk --------------------------------------------------------------------------------

template <class T>
bool BlockScores<T>::begin_chunk(Index j0, Tiles tiles, const core::HeadRows* values) {
  call_.stop();
  j0_ = j0;
  keys_ = std::min(p_.key_chunk, queries.unit().s.Tk - j0);
  own_panels_ = 0;
  if (call_.reads_keys || call_.reads_values) {
    const KeyRange& live = queries.live();
    reads_ = {};
    if (call_.reads_keys) reads_.set_keys(p_.k, rows_, j0, p_.Dk);
    if (call_.reads_values && values != nullptr) reads_.set_values(p_.v, *values, j0, p_.E);
    stored_ = {0, keys_};
    if (tiles == Tiles::kLive) {
      constexpr Index kBlock = ChunkReads::kBlock;
      stored_ = {std::max(live.begin - j0, Index{0}) / kBlock * kBlock,
                 std::min(live.end - j0, keys_)};
    }
    reads_.expect(stored_.begin, stored_.end, std::min(live.end, reads_end_) - j0);
  }
  bool any_live = false;
  for (Index t = 0; t < queries.tiles(); ++t) {
    const Tile& tile = tiles_[t] = live_tile(t, tiles);
    any_live = any_live || !tile.keys.empty();
  }
  return any_live;
}

template <class T>
Tile BlockScores<T>::live_tile(Index t, Tiles tiles) const {
  KeyRange keys{keys_, 0};
  const bool all = tiles == Tiles::kAll || p_.masks.empty();
  if (all) keys = {0, keys_};
  for (Index r = queries.tile_begin(t); !all && r < queries.tile_end(t); ++r) {
    const KeyRange& live = queries[r].live;
    const Index begin = std::max(live.begin - j0_, Index{0});
    const Index end = std::min(live.end - j0_, keys_);
    if (begin < end) keys = {std::min(keys.begin, begin), std::max(keys.end, end)};
  }
  Tile tile;
  if (keys.empty()) return tile;
  tile.keys = {keys.begin / kPanel * kPanel, pieces(keys.end, kPanel) * kPanel};
  tile.end = keys.end;
  return tile;
}

// ---- scores ---------------------------------------------------------------------------------

template <class T>
void BlockScores<T>::compute(Index t0, Index t1, Tiles tiles) {
  group_end_ = call_.trims_keys() ? end_of(t0, t1) : keys_;
  for (Index t = t0; t < t1; ++t) {
    Tile& tile = tiles_[t];
    if (tile.keys.empty()) continue;
    const auto panels_of = [](const Tile& x) {
      return ((1U << x.keys.end / kPanel) - 1) & ~((1U << x.keys.begin / kPanel) - 1);
    };
    if (!call_.key_masks) {
      tile.live_panels = panels_of(tile);
      continue;
    }
    masks_.ask(queries, t, j0_, keys_, tiles == Tiles::kAll, tile);
    for (unsigned dead = panels_of(tile) & ~tile.live_panels; dead != 0; dead &= dead - 1) {
      const Index n = std::countr_zero(dead) * kPanel;
      for (Index r = queries.tile_begin(t); r < queries.tile_end(t); ++r) {
        std::fill_n(row(r) + n, kPanel, T(0));
      }
    }
  }
  for (Index n = 0; n < pieces(keys_, kPanel); ++n) {
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

// What panel n will read from far memory, once, and few lines can be asked for at a time: the bias
// of tiles t0 .. t1-1, and the masks of the next group's rows.
template <class T>
void BlockScores<T>::prefetch_options(Index t0, Index t1, Index n) const {
  const Index group_end = queries.tile_end(t1 - 1);
  for (Index r = queries.tile_begin(t0); p_.bias.given() && r < group_end; ++r) {
    const KeyRange x = piece(r);
    const Index begin = std::max(x.begin, n * kPanel);
    const Index end = std::min({x.end, keys_, (n + 1) * kPanel});
    prefetch_bias_row(p_, queries[r].at, j0_ + begin, end - begin);
  }
  const Index next_end = std::min(queries.count(), group_end + kGroupRows);
  for (Index r = group_end; call_.key_masks && r < next_end; ++r) {
    core::prefetch_masks(p_, queries[r].at, j0_ + n * kPanel);
  }
}

// Panel n of the chunk for tiles t0 .. t1-1: one tile, unless the call joins them.
template <class T>
void BlockScores<T>::score_panel(Index t0, Index t1, Index n) {
  const Index first = queries.tile_begin(t0);
  const Index end = queries.tile_end(t1 - 1);
  const Index panel_end = call_.trims_keys() ? end_of(t0, t1) : keys_;
  const Index keys = std::min(kPanel, panel_end - n * kPanel);
  if (call_.reads_keys && packed_ == nullptr) return score_stored(first, end - first, n, keys);
  Range range = Range::kSmall;
  if (call_.additive != nullptr && call_.additive->most != Range::kSmall) {
    const KeyUnit& unit = queries.unit();
    range = call_.additive->of_keys(unit.b, unit.g, unit.s.k0 + j0_ + n * kPanel, keys);
    for (Index r = first; r < end; ++r) range = std::max(range, queries[r].range);
  }
  call_.scores(queries[first].at.h, queries.channels(first), end - first, panel(n), keys, range,
               {row(first) + n * kPanel, kScoreStride});
}

// Keys that no row may see are not read; their scores are 0 until masked.
template <class T>
void BlockScores<T>::score_stored(Index first, Index rows, Index n, Index keys) {
  const Index panel = n * kPanel;
  const Index begin = std::clamp(stored_.begin, panel, panel + keys);
  const Index end = std::clamp(stored_.end, begin, panel + keys);
  for (Index r = first; r < first + rows && end - begin < keys; ++r) {
    std::fill(row(r) + panel, row(r) + panel + keys, T(0));
  }
  const T scale = static_cast<T>(p_.scale);
  for (Index key = begin, count = 0; key < end; key += count) {
    count = reads_.run_of_keys(key, end - key);
    const ReadAhead ahead = first == 0 ? reads_.beside_keys(key, count) : ReadAhead{};
    count = std::min(count, end - key);
    k_.stored_scores(queries.channels(first), rows, p_.Dk, reads_.keys(key), count, scale,
                     {row(first) + key, kScoreStride}, ahead);
  }
}

// Panel n of the chunk.
template <class T>
const T* BlockScores<T>::panel(Index n) {
  const Index j = j0_ + n * kPanel;
  if (packed_ != nullptr) return packed_ + j * p_.Dk;
  T* own = panels_ + n * kPanel * p_.Dk;
  if ((own_panels_ >> n & 1U) == 0) {
    const Index keys = std::min(kPanel, queries.unit().s.Tk - j);
    pack_rows(call_, p_.k, rows_, j, keys, call_.score_width(), own);
    own_panels_ |= 1U << n;
  }
  return own;
}

template <class T>
void BlockScores<T>::change(Index r) const {
  const KeyRange x = piece(r);
  if (x.empty()) return;
  const bool sees_all =
      queries[r].live.begin <= j0_ + x.begin && queries[r].live.end >= j0_ + x.end;
  if (sees_all && call_.only_intervals) return;
  T* s = row(r);
  const Index n = std::min(x.end, keys_) - x.begin;
  change_piece<T>({p_, k_, call_.instances, spare_}, queries[r].at, j0_ + x.begin, n, s + x.begin);
  if (tiles_[r / kTileRows].partial) k_.mask(s + x.begin, masks_.allowed(r) + x.begin, n);
  constexpr T kMasked = -std::numeric_limits<T>::infinity();
  const KeyRange& live = queries[r].live;
  const Index begin = std::clamp(live.begin - j0_, x.begin, x.end);
  const Index end = std::clamp(live.end - j0_, begin, x.end);
  std::fill(s + x.begin, s + begin, kMasked);
  std::fill(s + end, s + x.end, kMasked);
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FUSED_BLOCK_SCORES_H_
