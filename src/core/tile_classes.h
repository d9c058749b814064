// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_TILE_CLASSES_H_
#define QKV_CORE_TILE_CLASSES_H_

#include <cstdint>
#include <vector>

#include <qkv/view.h>

#include "core/integers.h"

namespace qkv::core {

// The class of a rectangle of pairs: a mask forbids all of them (kDead), some (kPartial) or none
// (kFull).
enum class TileClass : std::uint8_t { kDead, kPartial, kFull };

// The number of queries, and of keys, of a tile of a precomputed mask.
inline constexpr Index kTileSide = 64;

inline constexpr Index tiles_of(Index size) { return divide_up(size, kTileSide); }

}  // namespace qkv::core

namespace qkv::detail {

// The result of precompute(). If B = 1 (H = 1), the classes hold for all batch entries (heads).
struct TileClasses {
  Index Tq = 0;
  Index Tk = 0;
  Index B = 1;
  Index H = 1;
  std::vector<core::TileClass> classes{};  // [B, H, tiles of Tq, tiles of Tk]

  core::TileClass of(Index b, Index h, Index tile_i, Index tile_j) const noexcept {
    const Index head = (B == 1 ? 0 : b) * H + (H == 1 ? 0 : h);
    const Index row = head * core::tiles_of(Tq) + tile_i;
    return classes[static_cast<std::size_t>(row * core::tiles_of(Tk) + tile_j)];
  }
};

}  // namespace qkv::detail

#endif  // QKV_CORE_TILE_CLASSES_H_
