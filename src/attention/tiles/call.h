// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_CALL_H_
#define QKV_ATTENTION_TILES_CALL_H_

#include "attention/tiles/additive_scores.h"
#include "attention/tiles/bfloat16_pairs.h"
#include "attention/tiles/key_units.h"
#include "attention/tiles/row_options.h"
#include "core/stop.h"
#include "kernels/dot_kernels.h"

// What all blocks of a call share, and the sizes of their parts.
namespace qkv::attn {

using core::kKeyChunk;
using kernels::kPanel;
using kernels::kTileRows;
using kernels::RowsOf;

// Tiles, and rows, that process a chunk together: their scores stay in the first-level cache.
inline constexpr Index kTilesAtOnce = 2;
inline constexpr Index kRowsAtOnce = kTilesAtOnce * kTileRows;
// Rows of a block, two tiles at a time, while the keys and values of a chunk are in the
// second-level cache: the more rows, the fewer bytes come from farther away.
inline constexpr Index kBlockRows = 16 * kRowsAtOnce;
inline constexpr Index kBlockTiles = kBlockRows / kTileRows;
inline constexpr Index kPanelsPerChunk = kKeyChunk / kPanel;
// One cache line more than a chunk, so that rows do not map to the same cache sets.
inline constexpr Index kScoreStride = kKeyChunk + 16;
// Keys whose values are used by both tiles before the next ones are read.
inline constexpr Index kValueKeys = 2 * kPanel;
// Rows in whole registers, for any target.
inline constexpr Index kMostLanes = 16;

// Up to so many query rows of a key head read keys and values as they are stored.
inline constexpr Index kStoredRows = 16;
// Values of so many keys stay in the first-level cache until the tiles of more than two rows, which
// take the channels in parts, have used them.
inline constexpr Index kStoredKeys = 32;

// Shared by all blocks of a call.
template <class T>
struct FusedCall {
  const Problem& p;
  const kernels::DotKernels<T>& kernels;
  bool pairs = false;  // products are of bfloat16 in pairs: kernels/pair_kernels.h
  InstanceTarget instances = InstanceTarget::kBaseline;
  bool changes_scores = false;  // something comes between the product and the softmax
  bool only_intervals = false;  // nothing but masks of intervals of keys
  bool key_masks = false;       // some mask is evaluated key by key
  bool reads_keys = false;      // as they are stored, by few queries
  bool reads_values = false;    // the same for values
  bool copies_values = false;   // else: they are converted, not contiguous, or in pages
  const AdditiveScores<T>* additive = nullptr;  // null: scores are dot products
  core::StopPoint stop;                         // of the call, when running

  FusedCall(const Problem& problem, kernels::Target target,
            const AdditiveScores<T>* additive_scores = nullptr,
            Products products = Products::kPlain)
      : p(problem),
        kernels(kernels_of<T>(target, products)),
        pairs(products == Products::kPairs),
        instances(instances_of(target)),
        changes_scores(problem.softcap != 0 || !problem.mods.empty() || problem.bias.given() ||
                       problem.alibi.given() || !problem.masks.empty()),
        only_intervals(problem.softcap == 0 && problem.mods.empty() && !problem.bias.given() &&
                       !problem.alibi.given() && !has_key_masks(problem)),
        key_masks(has_key_masks(problem)),
        reads_keys(additive_scores == nullptr && has_few_rows(problem) &&
                   is_readable<T>(problem.k)),
        reads_values(has_few_rows(problem) && problem.v.given() && is_readable<T>(problem.v)),
        copies_values(
            !reads_values && problem.v.given() &&
            (problem.v.dtype != dtype_of<T> || problem.v.col_stride != 1 || problem.v.in_pages())),
        additive(additive_scores) {}

  // Few rows read keys and values once: packing would cost more than it saves.
  static bool has_few_rows(const Problem& p) { return p.G > 0 && p.H / p.G * p.Tq <= kStoredRows; }

  // Values per row of q or k that scores read; memory is allocated for Dk of them.
  Index score_width() const { return additive == nullptr ? p.Dk : additive->width(); }
  // Whether scores() takes the rows of several tiles: all of them then read blocks of channels of a
  // panel while these are in the first-level cache.
  bool joins_tiles() const { return additive == nullptr; }
  // Whether keys of a panel behind the last that some row of a tile may see are left out.
  bool trims_keys() const {
    return only_intervals && !p.masks.empty() && additive == nullptr && !pairs && !reads_values;
  }
  // Scores after scale of a tile's queries, of head h, and the first `keys` keys of a panel.
  // `range`, for the additive score: the highest of all these rows.
  void scores(Index h, const RowsOf<const T>& q, Index rows, const T* panel, Index keys,
              Range range, const RowsOf<T>& s) const {
    const T scale = static_cast<T>(p.scale);
    if (additive == nullptr) {
      return kernels.scores_of_keys(q, rows, p.Dk, panel, keys, scale, s);
    }
    additive->scores(h, q, rows, panel, keys, range, scale, s);
  }
  // E in whole registers, for any target.
  Index padded_width() const { return p.v.given() ? pieces(p.E, kMostLanes) * kMostLanes : 0; }
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_CALL_H_
