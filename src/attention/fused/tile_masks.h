// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_TILE_MASKS_H_
#define QKV_ATTENTION_FUSED_TILE_MASKS_H_

#include <algorithm>
#include <bit>
#include <cstring>

#include "attention/fused/query_rows.h"

namespace qkv::attn {

// kTileRows rows of a block and the keys of a chunk.
struct Tile {
  KeyRange keys;             // live ones, in whole panels, counted from the chunk's first
  Index end = 0;             // after the last of them that interval masks let some row see
  unsigned live_panels = 0;  // bit n: the chunk's panel n is computed
  bool partial = false;      // masks that are asked forbid some of the pairs

  // Whether all of these panels are live.
  bool is_whole() const {
    return live_panels >> (keys.begin / kPanel) == (1U << keys.size() / kPanel) - 1;
  }
};

// What the masks that are asked, key by key, allow the rows of a group.
template <class T>
class TileMasks {
 public:
  template <class AnyArena>
  TileMasks(const FusedCall<T>& call, AnyArena& arena) : call_(call), p_(call.p) {
    if (call.key_masks) allowed_ = arena.template take<std::uint8_t>(kGroupRows * kKeyChunk).data();
  }

  // Whether row r may see each key of the chunk; only where its tile is partial.
  std::uint8_t* allowed(Index r) const { return allowed_ + r % kGroupRows * kKeyChunk; }

  // Which panels of tile t have a live key, or all if `every`, and which keys are allowed where
  // only some are. Shrinks the tile's keys to its live panels. The chunk is keys j0 ..
  // j0 + keys - 1.
  void ask(const QueryRows<T>& queries, Index t, Index j0, Index keys, bool every,
           Tile& tile) const {
    const Rows rows{queries, queries.tile_begin(t), queries.tile_end(t), j0, keys};
    const Index begin = tile.keys.begin / kPanel;
    const Index end = tile.keys.end / kPanel;
    unsigned live = 0;
    unsigned partial = 0;
    for (Index n = begin; n < end; ++n) {
      const core::TileClass known = known_class(rows, n);
      if (known != core::TileClass::kDead || every) live |= 1U << n;
      if (known != core::TileClass::kFull) partial |= 1U << n;
    }
    // Runs of panels that may be live.
    for (Index n = begin; n < end; ++n) {
      if ((live & partial & 1U << n) == 0) continue;
      Index stop = n + 1;
      while (stop < end && (live & partial & 1U << stop) != 0) ++stop;
      const Index first = n * kPanel;
      const Index count = std::min(stop * kPanel, keys) - first;
      for (Index r = rows.begin; r < rows.end; ++r) {
        find_allowed(p_, call_.instances, queries[r].at, j0 + first, count, allowed(r) + first);
      }
      for (; n < stop; ++n) {
        const core::TileClass found = asked_class(rows, n);
        if (found == core::TileClass::kDead && !every) live &= ~(1U << n);
        if (found == core::TileClass::kFull) partial &= ~(1U << n);
      }
    }
    tile.live_panels = live;
    tile.partial = (live & partial) != 0;
    tile.keys = {};
    if (live == 0) return;
    tile.keys = {std::countr_zero(live) * kPanel, std::bit_width(live) * kPanel};
    // Within that: dead panels, which are masked, and full ones.
    for (Index n = tile.keys.begin / kPanel; n < tile.keys.end / kPanel; ++n) {
      const bool is_live = (live >> n & 1U) != 0;
      if (is_live && (partial >> n & 1U) != 0) continue;
      tile.partial = tile.partial || !is_live;
      for (Index r = rows.begin; r < rows.end; ++r) {
        std::fill_n(allowed(r) + n * kPanel, kPanel, static_cast<std::uint8_t>(is_live));
      }
    }
  }

 private:
  struct Rows {
    const QueryRows<T>& queries;
    Index begin = 0;
    Index end = 0;
    Index j0 = 0;
    Index keys = 0;
  };

  // What precomputed masks know of the rows combined.
  core::TileClass known_class(const Rows& rows, Index panel) const {
    static_assert(kPanel == core::kTileSide);
    const Index tile_j = rows.j0 / kPanel + panel;
    const core::TileClass first = tile_class(p_, rows.queries[rows.begin].at, tile_j);
    for (Index r = rows.begin + 1; r < rows.end; ++r) {
      if (tile_class(p_, rows.queries[r].at, tile_j) != first) return core::TileClass::kPartial;
    }
    return first;
  }

  // The combined state of a panel's allowed keys (0 or 1) for the rows.
  core::TileClass asked_class(const Rows& rows, Index panel) const {
    const Index begin = panel * kPanel;
    const Index count = std::min(kPanel, rows.keys - begin);
    // Eight keys at a time; a last, partial panel is padded with its first key.
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
  std::uint8_t* allowed_ = nullptr;  // [group's rows][kKeyChunk]
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FUSED_TILE_MASKS_H_
