// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_BLOCK_TILES_H_
#define QKV_ATTENTION_TILES_BLOCK_TILES_H_

#include <algorithm>
#include <bit>
#include <cstring>

#include "attention/tiles/query_rows.h"
#include "core/integers.h"

namespace qkv::attn {

// A tile: kTileRows rows of a block and the keys of a chunk. A key, panel or tile is live if it has
// an unmasked query-key pair, as far as is known.
struct Tile {
  KeyRange keys;             // the live keys in whole panels, counted from the chunk's first
  Index end = 0;             // chunk index after the last key that interval masks allow a row
  unsigned live_panels = 0;  // bit n: scores of the chunk's panel n are computed
  bool partial = false;      // element-wise masks forbid some of the pairs

  // Whether all panels of `keys` are live.
  bool is_whole() const {
    return live_panels >> (keys.begin / kPanel) == (1U << keys.size() / kPanel) - 1;
  }
};

// The live tiles of a block for the current chunk: the panels of 64 keys for which each of the
// kBlockTiles tiles computes scores, and the bytes [kRowsAtOnce][kKeyChunk] of element-wise masks
// for the two current tiles. BlockScores owns this object, and calls find_panels() for a tile
// before it computes the tile's scores.
template <class T>
class BlockTiles {
 public:
  template <class AnyArena>
  BlockTiles(const FusedCall<T>& call, AnyArena& arena) : call_(call), p_(call.p) {
    constexpr Index kPairs = kRowsAtOnce * kKeyChunk;
    if (call.key_masks) allowed_ = arena.template take<std::uint8_t>(kPairs).data();
  }

  // Goes to keys j0 .. j0 + keys - 1; returns false if interval masks forbid every pair. With
  // `all`, every key counts as live.
  bool go_to(const QueryRows<T>& queries, Index j0, Index keys, bool all) {
    j0_ = j0;
    keys_ = keys;
    all_ = all;
    bool any_live = false;
    for (Index t = 0; t < queries.tiles(); ++t) {
      const Tile& tile = tiles_[t] = live_tile(queries, t);
      any_live = any_live || !tile.keys.empty();
    }
    return any_live;
  }
  // Finds the live panels of tile t. Returns a bit for each panel that is not live but lies between
  // two live ones.
  unsigned find_panels(const QueryRows<T>& queries, Index t) {
    Tile& tile = tiles_[t];
    if (tile.keys.empty()) return 0;
    tile.live_panels = panels_of(tile);
    if (call_.key_masks) ask_masks(queries, t, tile);
    return panels_of(tile) & ~tile.live_panels;
  }

  const Tile& operator[](Index t) const { return tiles_[t]; }
  // The key after the last one that interval masks allow tiles t0 .. t1-1.
  Index end_of(Index t0, Index t1) const {
    Index end = 0;
    for (Index t = t0; t < t1; ++t) end = std::max(end, tiles_[t].end);
    return end;
  }
  // A byte for each key of the chunk: 1 if element-wise masks let row r attend to it. Valid for the
  // keys of the row's tile, and only if that tile is partial.
  std::uint8_t* allowed(Index r) const { return allowed_ + r % kRowsAtOnce * kKeyChunk; }
  // Whether masks let row r attend to key n of the chunk, one of the keys of the row's tile.
  bool may_see(const QueryRows<T>& queries, Index r, Index n) const {
    const KeyRange& live = queries[r].live;
    if (j0_ + n < live.begin || j0_ + n >= live.end) return false;
    return !tiles_[r / kTileRows].partial || allowed(r)[n] != 0;
  }

 private:
  struct Rows {
    const QueryRows<T>& queries;
    Index begin = 0;
    Index end = 0;
  };

  // Bits of the panels that the tile's keys cover.
  static unsigned panels_of(const Tile& tile) {
    return ((1U << tile.keys.end / kPanel) - 1) & ~((1U << tile.keys.begin / kPanel) - 1);
  }
  // Tile t with the keys that interval masks let at least one of its rows attend to.
  Tile live_tile(const QueryRows<T>& queries, Index t) const {
    KeyRange keys{keys_, 0};
    const bool all = all_ || p_.masks.empty();
    if (all) keys = {0, keys_};
    for (Index r = queries.tile_begin(t); !all && r < queries.tile_end(t); ++r) {
      const KeyRange& live = queries[r].live;
      const Index begin = std::max(live.begin - j0_, Index{0});
      const Index end = std::min(live.end - j0_, keys_);
      if (begin < end) keys = {std::min(keys.begin, begin), std::max(keys.end, end)};
    }
    Tile tile;
    if (keys.empty()) return tile;
    tile.keys = {keys.begin / kPanel * kPanel, core::divide_up(keys.end, kPanel) * kPanel};
    tile.end = keys.end;
    return tile;
  }

  // Evaluates the element-wise masks of tile t: finds its live panels and, where a panel is
  // partial, the allowed keys. Shrinks the tile's keys to its live panels.
  void ask_masks(const QueryRows<T>& queries, Index t, Tile& tile) const {
    const Rows rows{queries, queries.tile_begin(t), queries.tile_end(t)};
    const Index begin = tile.keys.begin / kPanel;
    const Index end = tile.keys.end / kPanel;
    unsigned live = 0;
    unsigned partial = 0;
    for (Index n = begin; n < end; ++n) {
      const core::TileClass known = known_class(rows, n);
      if (known != core::TileClass::kDead || all_) live |= 1U << n;
      if (known != core::TileClass::kFull) partial |= 1U << n;
    }
    // Evaluates runs of panels that may be live and are not known to be full.
    for (Index n = begin; n < end; ++n) {
      if ((live & partial & 1U << n) == 0) continue;
      Index stop = n + 1;
      while (stop < end && (live & partial & 1U << stop) != 0) ++stop;
      const Index first = n * kPanel;
      const Index count = std::min(stop * kPanel, keys_) - first;
      call_.before_user_code();
      for (Index r = rows.begin; r < rows.end; ++r) {
        find_allowed(p_, call_.instances, queries[r].at, j0_ + first, count, allowed(r) + first);
      }
      for (; n < stop; ++n) {
        const core::TileClass found = asked_class(rows, n);
        if (found == core::TileClass::kDead && !all_) live &= ~(1U << n);
        if (found == core::TileClass::kFull) partial &= ~(1U << n);
      }
    }
    tile.live_panels = live;
    tile.partial = (live & partial) != 0;
    tile.keys = {};
    if (live == 0) return;
    tile.keys = {std::countr_zero(live) * kPanel, std::bit_width(live) * kPanel};
    // Panels that are dead or full, evaluated or not, get constant bytes.
    for (Index n = tile.keys.begin / kPanel; n < tile.keys.end / kPanel; ++n) {
      const bool is_live = (live >> n & 1U) != 0;
      if (is_live && (partial >> n & 1U) != 0) continue;
      tile.partial = tile.partial || !is_live;
      for (Index r = rows.begin; r < rows.end; ++r) {
        std::fill_n(allowed(r) + n * kPanel, kPanel, static_cast<std::uint8_t>(is_live));
      }
    }
  }

  // The class of a panel for all rows, as far as precomputed masks tell without being evaluated.
  core::TileClass known_class(const Rows& rows, Index panel) const {
    static_assert(kPanel == core::kTileSide);
    const Index tile_j = j0_ / kPanel + panel;
    const core::TileClass first = tile_class(p_, rows.queries[rows.begin].at, tile_j);
    for (Index r = rows.begin + 1; r < rows.end; ++r) {
      if (tile_class(p_, rows.queries[r].at, tile_j) != first) return core::TileClass::kPartial;
    }
    return first;
  }

  // The class of a panel for all rows, from the evaluated bytes (0 or 1).
  core::TileClass asked_class(const Rows& rows, Index panel) const {
    const Index begin = panel * kPanel;
    const Index count = std::min(kPanel, keys_ - begin);
    // Combines eight keys per word; an incomplete last panel is padded with its first byte.
    constexpr std::size_t kWords = kPanel / sizeof(std::uint64_t);
    std::uint64_t any[kWords] = {};
    std::uint64_t none[kWords] = {};
    for (Index r = rows.begin; r < rows.end; ++r) {
      std::uint8_t* live = allowed(r) + begin;
      if (count < kPanel) std::fill(live + count, live + kPanel, live[0]);
      std::uint64_t words[kWords];
      std::memcpy(words, live, sizeof(words));
      for (std::size_t n = 0; n < kWords; ++n) {
        any[n] |= words[n];
        none[n] |= ~words[n];
      }
    }
    std::uint64_t some = 0;
    std::uint64_t missing = 0;
    for (std::size_t n = 0; n < kWords; ++n) {
      some |= any[n];
      missing |= none[n];
    }
    constexpr std::uint64_t kLowestBits = 0x0101010101010101U;
    return some == 0                      ? core::TileClass::kDead
           : (missing & kLowestBits) != 0 ? core::TileClass::kPartial
                                          : core::TileClass::kFull;
  }

  const FusedCall<T>& call_;
  const Problem& p_;
  Index j0_ = 0;    // first key of the chunk
  Index keys_ = 0;  // number of its keys
  bool all_ = false;
  Tile tiles_[kBlockTiles];
  std::uint8_t* allowed_ = nullptr;  // [rows at once][kKeyChunk]
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_BLOCK_TILES_H_
