// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_CALL_H_
#define QKV_ATTENTION_TILES_CALL_H_

#include "attention/tiles/additive_scores.h"
#include "attention/tiles/bfloat16_words.h"
#include "attention/tiles/chunk_reads.h"
#include "attention/tiles/key_units.h"
#include "attention/tiles/row_options.h"
#include "core/integers.h"
#include "core/stop.h"
#include "kernels/amx_kernels.h"
#include "kernels/dot_kernels.h"

// Constants and state that all blocks of a call share: the sizes of tiles, blocks and chunks, and
// FusedCall.
namespace qkv::attn {

using core::kKeyChunk;
using kernels::kPanel;
using kernels::kTileRows;
using kernels::RowsOf;

// Number of tiles, and of their rows, that go through a chunk of keys together: the scores of these
// rows stay in the first-level cache.
inline constexpr Index kTilesAtOnce = 2;
inline constexpr Index kRowsAtOnce = kTilesAtOnce * kTileRows;
// Query rows of a block. They are processed two tiles at a time while the keys and values of a
// chunk are in the second-level cache: the more rows, the fewer bytes come from farther away.
inline constexpr Index kBlockRows = 16 * kRowsAtOnce;
inline constexpr Index kBlockTiles = kBlockRows / kTileRows;
inline constexpr Index kPanelsPerChunk = kKeyChunk / kPanel;
// Distance between two rows of scores, in elements: one cache line more than a chunk (float32), so
// that rows do not map to the same cache sets.
inline constexpr Index kScoreStride = kKeyChunk + 16;
// Number of keys whose values are used by both tiles before the next values are read.
inline constexpr Index kValueKeys = 2 * kPanel;
// Largest number of elements in a vector register on any target: arrays are padded to a multiple of
// it.
inline constexpr Index kMostLanes = 16;

// Up to this many query rows of a key head read keys and values as they are stored, without
// packing.
inline constexpr Index kStoredRows = 16;
// The number that replaces kValueKeys where values are read as they are stored, tile by tile, for
// more than two rows. Kernels then read a value's channels in parts, and the values of this many
// keys stay in the first-level cache until all tiles have used them.
inline constexpr Index kStoredKeys = 32;

// The state that all blocks of one forward or backward pass share, read-only while tasks run: the
// problem, the target's kernels, and the decisions that follow from both. It owns no arrays.
template <class T>
struct FusedCall {
  const Problem& p;
  const kernels::DotKernels<T>& kernels;
  Products products = Products::kPlain;  // of scores and sums: core/bfloat16_products.h
  bool in_words = false;  // operands of products are words of two BF16: kernels/dot2_kernels.h
  InstanceTarget instances = InstanceTarget::kBaseline;
  bool changes_scores = false;  // some option is applied between the product and the softmax
  bool only_intervals = false;  // no option but interval masks changes scores
  bool key_masks = false;       // some mask is element-wise: evaluated key by key
  bool runs_user_code = false;  // some score or mask is a user's function
  bool reads_keys = false;      // keys are read as they are stored (few queries)
  bool reads_values = false;    // values are read as they are stored
  bool copies_values = false;  // values are copied: they are converted, not contiguous, or in pages
  const AdditiveScores<T>* additive = nullptr;  // null if scores are dot products
  core::StopPoint stop;                         // polled by tasks; set when the pass starts

  FusedCall(const Problem& problem, kernels::Target target,
            const AdditiveScores<T>* additive_scores = nullptr,
            Products kind_of_products = Products::kPlain)
      : p(problem),
        kernels(kernels_of<T>(target, kind_of_products)),
        products(kind_of_products),
        in_words(are_in_words(kind_of_products)),
        instances(instances_of(target)),
        changes_scores(problem.softcap != 0 || !problem.mods.empty() || problem.bias.given() ||
                       problem.alibi.given() || !problem.masks.empty()),
        only_intervals(problem.softcap == 0 && problem.mods.empty() && !problem.bias.given() &&
                       !problem.alibi.given() && !has_key_masks(problem)),
        key_masks(has_key_masks(problem)),
        runs_user_code(!problem.mods.empty() || has_user_masks(problem)),
        reads_keys(additive_scores == nullptr && has_few_rows(problem) &&
                   is_readable<T>(problem.k)),
        reads_values(has_few_rows(problem) && problem.v.given() && is_readable<T>(problem.v) &&
                     !(kind_of_products == Products::kAmx && problem.v.in_pages())),
        copies_values(
            !reads_values && problem.v.given() &&
            (problem.v.dtype != dtype_of<T> || problem.v.col_stride != 1 || problem.v.in_pages())),
        additive(additive_scores) {}

  // True if a key head has so few query rows that packing its keys would cost more than it saves.
  static bool has_few_rows(const Problem& p) { return p.G > 0 && p.H / p.G * p.Tq <= kStoredRows; }

  // Called before user functions, which may use AMX themselves: releases AMX's tile registers,
  // which are configured anew for the products that follow.
  void before_user_code() const {
    if (runs_user_code) kernels::release_tiles();
  }
  // Sums over keys that are read as they are stored begin at multiples of this number of keys:
  // whole registers for any target, and whole steps of the products.
  Index key_block() const { return std::max(ChunkReads::kBlock, core::step_of(products)); }
  // Elements per row of q or k that scores read. Memory is allocated for Dk elements per row, which
  // is at least as many.
  Index score_width() const { return additive == nullptr ? p.Dk : additive->width(); }
  // Whether scores() takes the rows of several tiles in one call: all of them then read a block of
  // channels of a panel while it is in the first-level cache.
  bool joins_tiles() const { return additive == nullptr; }
  // Whether the last panel of a tile is cut off behind the last key that interval masks allow one
  // of the tile's rows.
  bool trims_keys() const {
    return only_intervals && !p.masks.empty() && additive == nullptr && !in_words && !reads_values;
  }
  // Computes the scaled scores s [rows][keys] of query rows of head h and the first `keys` keys of
  // a packed panel. `form` is for the additive score: the most general form of all these rows and
  // keys.
  void scores(Index h, const RowsOf<const T>& q, Index rows, const T* panel, Index keys,
              ExponentialForm form, const RowsOf<T>& s) const {
    const T scale = static_cast<T>(p.scale);
    if (additive == nullptr) {
      return kernels.scores_of_keys(q, rows, p.Dk, panel, keys, scale, s);
    }
    additive->scores(h, q, rows, panel, keys, form, scale, s);
  }
  // E rounded up to whole registers of any target; 0 without values.
  Index padded_width() const {
    return p.v.given() ? core::divide_up(p.E, kMostLanes) * kMostLanes : 0;
  }
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_CALL_H_
