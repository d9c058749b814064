// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <qkv/mods.h>

#include "core/instances.h"
#include "core/integers.h"
#include "core/message.h"
#include "core/tile_classes.h"
#include "expressions/indices.h"

namespace qkv {
namespace {

using core::kTileSide;
using core::text;
using core::TileClass;

void check(const MaskMod& mask, const detail::TileClasses& sizes) {
  if (mask.callable == nullptr || mask.instance_count < 1) {
    throw Error("precompute", "mask", "is empty; make it with mask_mod(...)");
  }
  constexpr Index kLargest = std::numeric_limits<std::int32_t>::max();
  const std::pair<const char*, Index> named[] = {
      {"Tq", sizes.Tq}, {"Tk", sizes.Tk}, {"B", sizes.B}, {"H", sizes.H}};
  for (const auto& [letter, size] : named) {
    if (size >= 0 && size <= kLargest) continue;
    throw Error("precompute", letter, text("must be in 0 to 2^31 - 1, got ", size));
  }
}

// Size of the table in bytes: one byte per tile of each batch entry and head.
std::size_t table_size(const detail::TileClasses& sizes) {
  // Each tile count is at most 2^25, B and H at most 2^31.
  const Index tiles = core::tiles_of(sizes.Tq) * core::tiles_of(sizes.Tk);
  const auto heads = core::checked_multiply(sizes.B, sizes.H);
  const auto all = heads ? core::checked_multiply(*heads, tiles) : std::nullopt;
  if (all) return static_cast<std::size_t>(*all);
  throw Error("precompute", "mask",
              text("would take a table above 2^63 bytes, got Tq, Tk, B, H = ", sizes.Tq, ", ",
                   sizes.Tk, ", ", sizes.B, ", ", sizes.H));
}

TileClass class_of(const MaskMod& mask, const detail::MaskInstance& instance,
                   const expressions::RowPlace& place, Index rows, Index cols) {
  std::array<std::uint8_t, kTileSide * kTileSide> allowed;
  const auto end = allowed.begin() + rows * cols;
  std::fill(allowed.begin(), end, std::uint8_t{1});
  instance.apply(mask.callable.get(), {place.at, place.lengths, static_cast<std::int32_t>(rows),
                                       static_cast<std::int32_t>(cols), cols, allowed.data()});
  Index count = 0;
  for (auto pair = allowed.begin(); pair != end; ++pair) count += *pair;
  if (count == 0) return TileClass::kDead;
  return count == rows * cols ? TileClass::kFull : TileClass::kPartial;
}

}  // namespace

MaskMod precompute(const MaskMod& mask, Index Tq, Index Tk, Index B, Index H) {
  detail::TileClasses found{Tq, Tk, B, H};
  check(mask, found);
  if (mask.program != nullptr) {
    expressions::check_indices("precompute", "mask", mask.program->program,
                               expressions::all_pairs(B, H, Tq, Tk), nullptr);
  }
  const std::size_t size = table_size(found);
  found.classes.reserve(size);
  const auto& instance = core::instance_for(mask, core::best_instance_target());
  const auto place = [](Index n) { return static_cast<std::int32_t>(n); };
  // Without tiles (size 0), B and H may be huge.
  for (Index b = 0; b < B && size > 0; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index i = 0; i < Tq; i += kTileSide) {
        for (Index j = 0; j < Tk; j += kTileSide) {
          const At at{place(b), place(h), place(i), place(j)};
          found.classes.push_back(class_of(mask, instance, {at, expressions::lengths_of(Tq, Tk)},
                                           std::min(kTileSide, Tq - i),
                                           std::min(kTileSide, Tk - j)));
        }
      }
    }
  }
  MaskMod result = mask;
  result.classes = std::make_shared<const detail::TileClasses>(std::move(found));
  return result;
}

}  // namespace qkv
