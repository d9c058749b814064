// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_BLOCK_H_
#define QKV_ATTENTION_FUSED_BLOCK_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "attention/fused/additive_scores.h"
#include "attention/fused/bfloat16_pairs.h"
#include "attention/fused/chunk_reads.h"
#include "attention/fused/key_units.h"
#include "attention/fused/row_options.h"
#include "core/arena.h"
#include "core/head_rows.h"
#include "core/stop.h"
#include "kernels/dot_kernels.h"

// Some query rows of one key head, processed against the keys chunk by chunk: scores, softmax and
// weighted sum, in tiles. No buffer here is longer than a chunk.
namespace qkv::attn {

using core::kKeyChunk;
using kernels::kPanel;
using kernels::kTileRows;
using kernels::RowsOf;

// Rows that process a chunk together: their scores stay in the first-level cache.
inline constexpr Index kGroupTiles = 2;
inline constexpr Index kGroupRows = kGroupTiles * kTileRows;
// Rows of a block, group by group, while the keys and values of a chunk are in the second-level
// cache: the more rows, the fewer bytes come from farther away.
inline constexpr Index kBlockRows = 16 * kGroupRows;
inline constexpr Index kBlockTiles = kBlockRows / kTileRows;
inline constexpr Index kPanelsPerChunk = kKeyChunk / kPanel;
// One cache line more than a chunk, so that rows do not map to the same cache sets.
inline constexpr Index kScoreStride = kKeyChunk + 16;
// Keys whose values are used by all tiles of a group before the next ones are read.
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

// A query of the block.
struct BlockRow {
  QueryAt at;
  KeyRange live;
  Range range = Range::kSmall;  // of the additive score
};

// Keys of a chunk.
class KeySet {
 public:
  bool none() const { return none_; }
  void insert(Index n) {
    words_[n / kPanel] |= std::uint64_t{1} << n % kPanel;
    none_ = false;
  }
  bool contains(Index n) const { return (words_[n / kPanel] >> n % kPanel & 1U) != 0; }
  // The first of begin .. end-1, or end.
  Index next(Index begin, Index end) const {
    while (begin < end) {
      const std::uint64_t rest = words_[begin / kPanel] >> begin % kPanel;
      if (rest != 0) return std::min(end, begin + std::countr_zero(rest));
      begin = (begin / kPanel + 1) * kPanel;
    }
    return end;
  }

 private:
  static_assert(kPanel == 64);
  std::uint64_t words_[kPanelsPerChunk] = {};
  bool none_ = true;
};

template <class T>
class FusedBlock {
 public:
  // Whether dead tiles are skipped, or every score is computed.
  enum class Tiles { kLive, kAll };

  template <class AnyArena>
  FusedBlock(const FusedCall<T>& call, AnyArena& arena)
      : call_(call), p_(call.p), k_(call.kernels) {
    const auto take = [&](Index n) { return arena.template take<T>(n).data(); };
    rows_ = arena.template take<BlockRow>(kBlockRows).data();
    q_ = take(kBlockRows * p_.Dk);
    s_ = take(kGroupRows * kScoreStride);
    spare_ = take(kKeyChunk);
    if (!call.reads_keys) panels_ = take(p_.key_chunk * p_.Dk);
    for (T** array : {&max, &sum}) *array = take(kBlockRows + kMostLanes);
    for (T** array : {&chunk_max, &chunk_sum, &factor_, &chunk_factor_}) {
      *array = take(pieces(kGroupRows, kMostLanes) * kMostLanes);
    }
    width_ = call.padded_width();
    acc = take(kBlockRows * width_);
    chunk_acc = take(kGroupRows * width_);
    if (call.copies_values) values_ = take(p_.key_chunk * p_.E);
    if (call.reads_values && p_.v.dtype != dtype_of<T>) odd_row_ = take(width_);
    if (call.key_masks) allowed_ = arena.template take<std::uint8_t>(kGroupRows * kKeyChunk).data();
  }

  // Restarts with rows n0 .. of a unit's queries.
  void start(const KeyUnit& unit, const T* packed, Index n0, Index count) {
    start_unit(unit, packed);
    if (count == 0) return;
    Index h = unit.first_head + n0 / unit.s.Tq;
    Index i = n0 % unit.s.Tq;
    const bool in_place = i + count <= unit.s.Tq && reads_queries();
    if (in_place) {
      const Index offset = core::offset_of(p_.q, q_entry_, h, unit.s.q0 + i, 0);
      q_rows_ = {static_cast<const T*>(p_.q.data) + offset, p_.q.row_stride};
    }
    for (Index r = 0; r < count; ++r) {
      if (!in_place) copy_query(h, i);
      add_place(h, i);
      if (++i < unit.s.Tq) continue;
      i = 0;
      ++h;
    }
  }
  // Starts without rows; add_row() adds them. `packed`: the unit's panels, or null to pack them
  // when needed.
  void start_unit(const KeyUnit& unit, const T* packed) {
    unit_ = unit;
    packed_ = packed;
    q_rows_ = {q_, p_.Dk};
    clear_rows();
    clear_chunk();
    reads_end_ = unit.s.Tk;
    offset_ = p_.diagonal_offset(unit.b, unit.s);
    q_entry_ = core::batch_offset(p_.q, p_.batch, unit.b);
    k_rows_ = {p_, p_.k, unit.b, unit.g, unit.s.k0};
    if (p_.v.given()) v_rows_ = {p_, p_.v, unit.b, p_.value_head(unit.g), unit.s.k0};
  }
  // No key from `end` on will be asked of this block.
  void read_until(Index end) { reads_end_ = end; }
  void clear_rows() {
    count_ = 0;
    live_ = {unit_.s.Tk, 0};
  }
  void add_row(Index h, Index i) {
    copy_query(h, i);
    add_place(h, i);
  }
  const KeyUnit& unit() const { return unit_; }
  Index count() const { return count_; }
  const BlockRow& row(Index r) const { return rows_[r]; }
  Index width() const { return width_; }

  // Resets to the state before any key.
  void reset() {
    std::fill(max, max + count_ + kMostLanes, -std::numeric_limits<T>::infinity());
    std::fill(sum, sum + count_ + kMostLanes, T(0));
    for (Index r = 0; r < count_; ++r) {
      call_.stop();
      std::fill_n(acc + r * width_, width_, T(0));
    }
  }
  // Processes all keys.
  void run(bool with_values) {
    reset();
    const Index step = p_.key_chunk;
    for (Index j0 = live_.begin / step * step; j0 < live_.end; j0 += step) {
      chunk(j0, with_values, [&](Index first, Index rows) { absorb(first, rows, with_values); });
    }
  }
  // The softmax of keys j0 .., for one group of rows after another, into chunk_max, chunk_sum and
  // chunk_acc; then calls use(first row, rows). Groups without live keys are skipped.
  template <class Use>
  void chunk(Index j0, bool with_values, const Use& use);
  // Merges these into max, sum and acc of rows `first` ..
  void absorb(Index first, Index rows, bool with_values);
  // The state of a group without live keys.
  void clear_chunk() {
    constexpr Index kRows = pieces(kGroupRows, kMostLanes) * kMostLanes;
    std::fill(chunk_max, chunk_max + kRows, -std::numeric_limits<T>::infinity());
    std::fill(chunk_sum, chunk_sum + kRows, T(0));
  }

  // The scores after scale of keys j0 .., for one group of rows after another; then calls use(first
  // row, rows), which reads them with scores(), piece() by piece().
  template <class Use>
  void for_each_group(Index j0, Tiles tiles, const Use& use) {
    begin_chunk(j0, tiles, false);
    for (Index t = 0; t < tile_count(); t += kGroupTiles) {
      const Index end = std::min(t + kGroupTiles, tile_count());
      score_tiles(t, end, tiles);
      use(tile_begin(t), tile_end(end - 1) - tile_begin(t));
    }
  }
  // Scores of keys j0 + begin .. j0 + end - 1 of row r of the current group, live or not; no other
  // key of the chunk is live.
  T* scores(Index r) const { return s_ + r % kGroupRows * kScoreStride; }
  KeyRange piece(Index r) const { return tiles_[r / kTileRows].keys; }
  void soft_cap(Index r) const {
    const KeyRange x = piece(r);
    if (p_.softcap == 0) return;
    k_.soft_cap(scores(r) + x.begin, nullptr, static_cast<T>(p_.softcap),
                std::min(x.end, keys_) - x.begin);
  }
  // Applies user functions, bias, ALiBi and masks: -inf where masked.
  void change(Index r) const;

  T* max = nullptr;  // of each row so far
  T* sum = nullptr;
  T* acc = nullptr;        // [rows][width]
  T* chunk_max = nullptr;  // of the rows of a group

  T* chunk_sum = nullptr;
  T* chunk_acc = nullptr;  // [group's rows][width]

 private:
  // kTileRows rows of the chunk.
  struct Tile {
    KeyRange keys;             // live ones, in whole panels
    unsigned live_panels = 0;  // bit n: the chunk's panel n is computed
    bool partial = false;      // key masks forbid some of the pairs

    bool is_whole() const {
      return live_panels >> (keys.begin / kPanel) == (1U << keys.size() / kPanel) - 1;
    }
  };

  Index tile_count() const { return pieces(count_, kTileRows); }
  Index tile_begin(Index t) const { return t * kTileRows; }
  Index tile_end(Index t) const { return std::min(count_, (t + 1) * kTileRows); }
  // Whether a block's rows of one head are read where they are: close together, as copied ones are.
  bool reads_queries() const {
    return !call_.pairs && p_.q.dtype == dtype_of<T> && p_.q.col_stride == 1 &&
           p_.q.row_stride >= p_.Dk && p_.q.row_stride <= 2 * p_.Dk;
  }
  // To the place of the next row.
  void copy_query(Index h, Index i) {
    call_.stop();
    const Index offset = core::offset_of(p_.q, q_entry_, h, unit_.s.q0 + i, 0);
    T* to = q_ + count_ * p_.Dk;
    if (call_.pairs && p_.q.col_stride != 1) {
      join_channels(p_.q, offset, p_.Dk, to);
    } else if (is_readable<T>(p_.q)) {
      k_.widen(stored_rows(p_.q, offset), 1, call_.score_width(), {to, p_.Dk});
    } else {
      load_values(p_.q, offset, p_.q.col_stride, call_.score_width(), to);
    }
  }
  void add_place(Index h, Index i) {
    const QueryAt at{unit_.b, h, i, offset_};
    const KeyRange live =
        p_.masks.empty() ? KeyRange{0, unit_.s.Tk} : live_range(p_, at, unit_.s.Tk);
    rows_[count_++] = {at, live, range_of(h, i)};
    if (live.empty()) return;
    live_ = {std::min(live_.begin, live.begin), std::max(live_.end, live.end)};
  }
  Range range_of(Index h, Index i) const {
    if (call_.additive == nullptr) return Range::kSmall;
    return call_.additive->of_queries(unit_.b, h, unit_.s.q0 + i, 1);
  }
  void score_panel(Index t0, Index t1, Index n);
  Tile live_tile(Index t, Tiles tiles) const;
  core::TileClass allowed_class(Index t, Index panel) const;
  core::TileClass class_of(Index t, Index panel) const;
  void ask_key_masks(Index t, Tiles tiles);
  void prefetch_bias(Index t0, Index t1, Index n) const;
  const T* panel(Index n);
  StoredRows values();
  void score_stored(Index first, Index rows, Index n, Index keys);
  void softmax_rows(Index t);
  void drop(Index r) const;
  std::uint8_t* allowed(Index r) const { return allowed_ + r % kGroupRows * kKeyChunk; }
  bool begin_chunk(Index j0, Tiles tiles, bool with_values);
  void score_tiles(Index t0, Index t1, Tiles tiles);
  void sum_values(Index t0, Index t1, const StoredRows& v);
  bool joins_sums(Index t, Index t1) const;
  void sum_tile(Index t, Index t1, Index begin, Index end, const StoredRows& v);
  void sum_tiles(Index t0, Index t1, const StoredRows& v);
  void sum_run(Index t, Index begin, Index end, const StoredRows& v);
  void sum_keys(Index t, Index t1, Index begin, Index end, const StoredRows& v);
  void find_odd_values(const StoredRows& v);
  bool is_odd_value(Index n, const StoredRows& v) const;
  bool may_see(Index r, Index n) const;
  void sum_one_by_one(Index t, Index begin, Index end, const StoredRows& v);
  void add_value(Index n, const T* weight, const StoredRows& v, T* row) const;
  void sum_with_care(Index t, const StoredRows& v);
  void add_rounded(Index n, T weight, T* row);

  const FusedCall<T>& call_;
  const Problem& p_;
  const kernels::DotKernels<T>& k_;
  KeyUnit unit_;
  const T* packed_ = nullptr;
  Index count_ = 0;
  Index width_ = 0;
  Index offset_ = 0;
  Index q_entry_ = 0;
  core::HeadRows k_rows_, v_rows_;
  KeyRange live_;   // of any row
  Index j0_ = 0;    // the current chunk
  Index keys_ = 0;  // and its length
  ChunkReads reads_;
  KeyRange stored_;      // of the chunk: read if keys or values are read as stored
  Index reads_end_ = 0;  // key after the last that this block is expected to read
  Tile tiles_[kBlockTiles];
  BlockRow* rows_ = nullptr;
  T* q_ = nullptr;           // [rows][D], copied
  RowsOf<const T> q_rows_;   // these, or the rows of q where they are
  T* s_ = nullptr;           // [group's rows][kScoreStride]
  T* spare_ = nullptr;       // [kKeyChunk]
  T* panels_ = nullptr;      // packed by this block, of the chunk
  unsigned own_panels_ = 0;  // bit n: panel n is packed
  T* values_ = nullptr;
  bool expects_odd_ = false;  // some chunk before had odd values: fused/odd_values.h
  bool knows_odd_ = false;
  KeySet odd_;              // of the chunk
  unsigned ambiguous_ = 0;  // bit n: tile n of the group
  T* odd_row_ = nullptr;    // [width]
  T* factor_ = nullptr;
  T* chunk_factor_ = nullptr;
  std::uint8_t* allowed_ = nullptr;  // [group's rows][kKeyChunk]
};

}  // namespace qkv::attn

#include "attention/fused/chunk.h"  // the members that work on a chunk

#endif  // QKV_ATTENTION_FUSED_BLOCK_H_
