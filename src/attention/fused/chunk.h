// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_CHUNK_H_
#define QKV_ATTENTION_FUSED_CHUNK_H_

#include <bit>
#include <cstring>

#include "attention/fused/block.h"
#include "attention/fused/pack.h"

// The work of a FusedBlock on one chunk of keys.
namespace qkv::attn {

// ---- scores ---------------------------------------------------------------------------------

template <class T>
typename FusedBlock<T>::Tile FusedBlock<T>::live_tile(Index t, Tiles tiles) const {
  KeyRange keys{keys_, 0};
  if (tiles == Tiles::kAll) keys = {0, keys_};
  for (Index r = tile_begin(t); r < tile_end(t) && tiles == Tiles::kLive; ++r) {
    const KeyRange& live = rows_[r].live;
    const Index begin = std::max(live.begin - j0_, Index{0});
    const Index end = std::min(live.end - j0_, keys_);
    if (begin < end) keys = {std::min(keys.begin, begin), std::max(keys.end, end)};
  }
  Tile tile;
  if (keys.empty()) return tile;
  tile.keys = {keys.begin / kPanel * kPanel, pieces(keys.end, kPanel) * kPanel};
  return tile;
}

// The combined state of a panel's allowed keys (0 or 1) for the tile's rows.
template <class T>
core::TileClass FusedBlock<T>::allowed_class(Index t, Index panel) const {
  const Index begin = panel * kPanel;
  const Index count = std::min(kPanel, keys_ - begin);
  // Eight keys at a time; a last, partial panel is padded with its first key.
  constexpr std::size_t kWords = kPanel / sizeof(std::uint64_t);
  std::uint64_t any[kWords] = {};
  std::uint64_t none[kWords] = {};
  for (Index r = tile_begin(t); r < tile_end(t); ++r) {
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

// Panel n of the chunk.
template <class T>
const T* FusedBlock<T>::panel(Index n) {
  const Index j = j0_ + n * kPanel;
  if (packed_ != nullptr) return packed_ + j * p_.Dk;
  T* own = panels_ + n * kPanel * p_.Dk;
  if ((own_panels_ >> n & 1U) == 0) {
    pack_rows(call_, p_.k, k_rows_, j, std::min(kPanel, unit_.s.Tk - j), call_.score_width(), own);
    own_panels_ |= 1U << n;
  }
  return own;
}

template <class T>
bool FusedBlock<T>::begin_chunk(Index j0, Tiles tiles, bool with_values) {
  call_.stop();
  j0_ = j0;
  keys_ = std::min(p_.key_chunk, unit_.s.Tk - j0);
  own_panels_ = 0;
  odd_ = {};
  knows_odd_ = false;
  if (call_.reads_keys || call_.reads_values) {
    reads_ = {};
    if (call_.reads_keys) reads_.set_keys(p_.k, k_rows_, j0, p_.Dk);
    if (call_.reads_values && with_values) reads_.set_values(p_.v, v_rows_, j0, p_.E);
    stored_ = {0, keys_};
    if (tiles == Tiles::kLive) {
      constexpr Index kBlock = ChunkReads::kBlock;
      stored_ = {std::max(live_.begin - j0, Index{0}) / kBlock * kBlock,
                 std::min(live_.end - j0, keys_)};
    }
    reads_.expect(stored_.begin, stored_.end, std::min(live_.end, reads_end_) - j0);
  }
  bool any_live = false;
  for (Index t = 0; t < tile_count(); ++t) {
    const Tile& tile = tiles_[t] = live_tile(t, tiles);
    any_live = any_live || !tile.keys.empty();
  }
  return any_live;
}

// What precomputed masks know of the tile's rows combined.
template <class T>
core::TileClass FusedBlock<T>::class_of(Index t, Index panel) const {
  static_assert(kPanel == core::kTileSide);
  const Index tile_j = j0_ / kPanel + panel;
  const core::TileClass first = tile_class(p_, rows_[tile_begin(t)].at, tile_j);
  for (Index r = tile_begin(t) + 1; r < tile_end(t); ++r) {
    if (tile_class(p_, rows_[r].at, tile_j) != first) return core::TileClass::kPartial;
  }
  return first;
}

// Which panels have a live key, and which keys are allowed where only some are. Shrinks the tile's
// keys to its live panels.
template <class T>
void FusedBlock<T>::ask_key_masks(Index t, Tiles tiles) {
  Tile& tile = tiles_[t];
  const Index begin = tile.keys.begin / kPanel;
  const Index end = tile.keys.end / kPanel;
  unsigned live = 0;
  unsigned partial = 0;
  for (Index n = begin; n < end; ++n) {
    const core::TileClass known = class_of(t, n);
    if (known != core::TileClass::kDead || tiles == Tiles::kAll) live |= 1U << n;
    if (known != core::TileClass::kFull) partial |= 1U << n;
  }
  // Runs of panels that may be live.
  for (Index n = begin; n < end; ++n) {
    if ((live & partial & 1U << n) == 0) continue;
    Index stop = n + 1;
    while (stop < end && (live & partial & 1U << stop) != 0) ++stop;
    const Index first = n * kPanel;
    const Index count = std::min(stop * kPanel, keys_) - first;
    for (Index r = tile_begin(t); r < tile_end(t); ++r) {
      find_allowed(p_, call_.instances, rows_[r].at, j0_ + first, count, allowed(r) + first);
    }
    for (; n < stop; ++n) {
      const core::TileClass found = allowed_class(t, n);
      if (found == core::TileClass::kDead && tiles == Tiles::kLive) live &= ~(1U << n);
      if (found == core::TileClass::kFull) partial &= ~(1U << n);
    }
  }
  tile.live_panels = live;
  tile.partial = (live & partial) != 0;
  if (live == 0) {
    tile.keys = {};
    return;
  }
  tile.keys = {std::countr_zero(live) * kPanel, std::bit_width(live) * kPanel};
  // Within that: dead panels, which are masked, and full ones.
  for (Index n = tile.keys.begin / kPanel; n < tile.keys.end / kPanel; ++n) {
    const bool is_live = (live >> n & 1U) != 0;
    if (is_live && (partial >> n & 1U) != 0) continue;
    tile.partial = tile.partial || !is_live;
    for (Index r = tile_begin(t); r < tile_end(t); ++r) {
      std::fill_n(allowed(r) + n * kPanel, kPanel, static_cast<std::uint8_t>(is_live));
      if (!is_live) std::fill_n(scores(r) + n * kPanel, kPanel, T(0));
    }
  }
}

template <class T>
void FusedBlock<T>::score_tiles(Index t0, Index t1, Tiles tiles) {
  for (Index t = t0; t < t1; ++t) {
    Tile& tile = tiles_[t];
    if (tile.keys.empty()) continue;
    if (call_.key_masks) {
      ask_key_masks(t, tiles);
    } else {
      const unsigned below_end = (1U << tile.keys.end / kPanel) - 1;
      tile.live_panels = below_end & ~((1U << tile.keys.begin / kPanel) - 1);
    }
  }
  for (Index n = 0; n < pieces(keys_, kPanel); ++n) {
    call_.stop();
    if (p_.bias.given()) prefetch_bias(t0, t1, n);
    for (Index r = tile_end(t1 - 1);
         call_.key_masks && r < std::min(count_, tile_end(t1 - 1) + kGroupRows); ++r) {
      core::prefetch_masks(p_, rows_[r].at, j0_ + n * kPanel);
    }
    const auto is_live = [&](Index t) { return (tiles_[t].live_panels >> n & 1U) != 0; };
    for (Index t = t0; t < t1; ++t) {
      if (!is_live(t)) continue;
      const Index first = t;
      while (call_.joins_tiles() && t + 1 < t1 && is_live(t + 1)) ++t;
      score_panel(first, t + 1, n);
    }
  }
}

// Panel n of the chunk for tiles t0 .. t1-1: one tile, unless the call joins them.
template <class T>
void FusedBlock<T>::score_panel(Index t0, Index t1, Index n) {
  const Index first = tile_begin(t0);
  const Index end = tile_end(t1 - 1);
  const Index keys = std::min(kPanel, keys_ - n * kPanel);
  if (call_.reads_keys && packed_ == nullptr) return score_stored(first, end - first, n, keys);
  Range range = Range::kSmall;
  if (call_.additive != nullptr && call_.additive->most != Range::kSmall) {
    range = call_.additive->of_keys(unit_.b, unit_.g, unit_.s.k0 + j0_ + n * kPanel, keys);
    for (Index r = first; r < end; ++r) range = std::max(range, rows_[r].range);
  }
  call_.scores(rows_[first].at.h, {q_rows_.data + first * q_rows_.stride, q_rows_.stride},
               end - first, panel(n), keys, range, {scores(first) + n * kPanel, kScoreStride});
}

// Keys that no row may see are not read; their scores are 0 until masked.
template <class T>
void FusedBlock<T>::score_stored(Index first, Index rows, Index n, Index keys) {
  const Index panel = n * kPanel;
  const Index begin = std::clamp(stored_.begin, panel, panel + keys);
  const Index end = std::clamp(stored_.end, begin, panel + keys);
  for (Index r = first; r < first + rows && end - begin < keys; ++r) {
    std::fill(scores(r) + panel, scores(r) + panel + keys, T(0));
  }
  const T scale = static_cast<T>(p_.scale);
  for (Index key = begin, count = 0; key < end; key += count) {
    count = reads_.run_of_keys(key, end - key);
    const ReadAhead ahead = first == 0 ? reads_.beside_keys(key, count) : ReadAhead{};
    count = std::min(count, end - key);
    k_.stored_scores({q_rows_.data + first * q_rows_.stride, q_rows_.stride}, rows, p_.Dk,
                     reads_.keys(key), count, scale, {scores(first) + key, kScoreStride}, ahead);
  }
}

// Prefetches the bias of panel n of the tiles t0 .. t1-1: it is read once, from far memory, and few
// lines can be asked for at a time.
template <class T>
void FusedBlock<T>::prefetch_bias(Index t0, Index t1, Index n) const {
  for (Index r = tile_begin(t0); r < tile_end(t1 - 1); ++r) {
    const KeyRange x = piece(r);
    const Index begin = std::max(x.begin, n * kPanel);
    const Index end = std::min({x.end, keys_, (n + 1) * kPanel});
    prefetch_bias_row(p_, rows_[r].at, j0_ + begin, end - begin);
  }
}

template <class T>
void FusedBlock<T>::change(Index r) const {
  const KeyRange x = piece(r);
  if (x.empty()) return;
  T* s = scores(r);
  const Index n = std::min(x.end, keys_) - x.begin;
  change_piece<T>({p_, k_, call_.instances, spare_}, rows_[r].at, j0_ + x.begin, n, s + x.begin);
  if (tiles_[r / kTileRows].partial) k_.mask(s + x.begin, allowed(r) + x.begin, n);
  constexpr T kMasked = -std::numeric_limits<T>::infinity();
  const KeyRange& live = rows_[r].live;
  const Index begin = std::clamp(live.begin - j0_, x.begin, x.end);
  const Index end = std::clamp(live.end - j0_, begin, x.end);
  std::fill(s + x.begin, s + begin, kMasked);
  std::fill(s + end, s + x.end, kMasked);
}

// ---- softmax --------------------------------------------------------------------------------

template <class T>
template <class Use>
void FusedBlock<T>::chunk(Index j0, bool with_values, const Use& use) {
  if (!begin_chunk(j0, Tiles::kLive, with_values)) return;
  StoredRows v;
  if (with_values) v = values();
  for (Index t0 = 0; t0 < tile_count(); t0 += kGroupTiles) {
    const Index t1 = std::min(t0 + kGroupTiles, tile_count());
    score_tiles(t0, t1, Tiles::kLive);
    bool any_live = false;
    for (Index t = t0; t < t1; ++t) {
      softmax_rows(t);
      any_live = any_live || tiles_[t].live_panels != 0;
    }
    if (!any_live) continue;
    if (with_values) sum_values(t0, t1, v);
    use(tile_begin(t0), tile_end(t1 - 1) - tile_begin(t0));
  }
}

template <class T>
void FusedBlock<T>::softmax_rows(Index t) {
  const KeyRange x = tiles_[t].keys;
  const Index first = tile_begin(t);
  const Index rows = tile_end(t) - first;
  const Index in_group = first % kGroupRows;
  if (tiles_[t].live_panels == 0) {
    std::fill_n(chunk_max + in_group, rows, -std::numeric_limits<T>::infinity());
    std::fill_n(chunk_sum + in_group, rows, T(0));
    return;
  }
  for (Index r = first; call_.changes_scores && r < first + rows; ++r) {
    soft_cap(r);
    change(r);
  }
  // A part of a panel at the end: in whole registers.
  const Index end = std::min(x.end, pieces(keys_, kMostLanes) * kMostLanes);
  for (Index r = first; keys_ < end && r < first + rows; ++r) {
    std::fill(scores(r) + keys_, scores(r) + end, -std::numeric_limits<T>::infinity());
  }
  k_.softmax({scores(first) + x.begin, kScoreStride}, rows, end - x.begin, chunk_max + in_group,
             chunk_sum + in_group);
  for (Index r = first; p_.dropout != 0 && r < first + rows; ++r) drop(r);
}

template <class T>
void FusedBlock<T>::drop(Index r) const {
  const QueryAt& at = rows_[r].at;
  const KeyRange x = piece(r);
  k_.drop(scores(r) + x.begin, p_.dropout_mask.row(at.b, at.h, at.i), j0_ + x.begin,
          x.end - x.begin);
}

template <class T>
void FusedBlock<T>::absorb(Index first, Index rows, bool with_values) {
  // Whole registers: the rows beyond the group's have the state of a chunk without live keys, which
  // changes nothing.
  for (Index r = rows; r % kMostLanes != 0; ++r) {
    chunk_max[r] = -std::numeric_limits<T>::infinity();
    chunk_sum[r] = T(0);
  }
  k_.merge(pieces(rows, kMostLanes) * kMostLanes, {max + first, sum + first},
           {chunk_max, chunk_sum}, factor_, chunk_factor_);
  if (!with_values) return;
  for (Index r = 0; r < rows; ++r) {
    k_.merge_row(acc + (first + r) * width_, factor_[r], chunk_acc + r * width_, chunk_factor_[r],
                 width_);
  }
}

// ---- weighted sum ---------------------------------------------------------------------------

// Row n: the values of the chunk's key n. Copied values are copied in whole panels, when used.
template <class T>
StoredRows FusedBlock<T>::values() {
  if (call_.reads_values) return {};  // by reads_
  if (!call_.copies_values) {
    return RowsOf<const T>{static_cast<const T*>(p_.v.data) + v_rows_.offset(j0_), p_.v.row_stride};
  }
  const Index begin = std::max(live_.begin - j0_, Index{0}) / kPanel * kPanel;
  const Index end = std::min(keys_, pieces(live_.end - j0_, kPanel) * kPanel);
  for (Index n = begin; call_.pairs && n < end; n += 2) {
    call_.stop();
    const Index row = v_rows_.offset(j0_ + n);
    const Index count = std::min<Index>(2, end - n);
    T* to = values_ + n / 2 * p_.E;
    if (is_readable<T>(p_.v)) {
      k_.pair_values(stored_rows(p_.v, row), count, p_.E, {to, p_.E});
    } else {
      pair_strided_values(p_.v, row, count, p_.E, to);
    }
  }
  for (Index n = begin; !call_.pairs && n < end; ++n) {
    call_.stop();
    const Index row = v_rows_.offset(j0_ + n);
    if (is_readable<T>(p_.v)) {
      k_.widen(stored_rows(p_.v, row), 1, p_.E, {values_ + n * p_.E, p_.E});
    } else {
      load_values(p_.v, row, p_.v.col_stride, p_.E, values_ + n * p_.E);
    }
  }
  return RowsOf<const T>{values_, p_.E};
}

template <class T>
void FusedBlock<T>::sum_values(Index t0, Index t1, const StoredRows& v) {
  T* first = chunk_acc + tile_begin(t0) % kGroupRows * width_;
  const Index count = (tile_end(t1 - 1) - tile_begin(t0)) * width_;
  std::fill(first, first + count, T(0));
  for (Index t = t0; call_.pairs && t < t1; ++t) {
    const KeyRange x = tiles_[t].keys;
    for (Index r = tile_begin(t); !x.empty() && r < tile_end(t); ++r) {
      k_.round_weights(scores(r) + x.begin, x.end - x.begin, scores(r) + x.begin / 2);
    }
  }
  // A masked key has weight 0, and 0 times NaN or infinity is NaN. So values that are not finite
  // show in the sums; from then on they are looked for before a chunk's sums.
  if (expects_odd_) find_odd_values(v);
  sum_tiles(t0, t1, v);
  if (knows_odd_ || !k_.has_nan(first, count)) return;
  expects_odd_ = true;
  find_odd_values(v);
  if (odd_.none()) return;  // a score is NaN
  std::fill(first, first + count, T(0));
  sum_tiles(t0, t1, v);
}

template <class T>
void FusedBlock<T>::sum_tiles(Index t0, Index t1, const StoredRows& v) {
  const Index step = call_.reads_values && count_ > 2 ? kStoredKeys : kValueKeys;
  ambiguous_ = 0;
  for (Index n = 0; n < keys_; n += step) {
    call_.stop();
    const Index end = std::min(n + step, keys_);
    for (Index t = t0; t < t1; ++t) {
      const Index first = t;
      while (joins_sums(t, t1)) ++t;
      sum_tile(first, t + 1, n, end, v);
    }
  }
  for (Index t = t0; t < t1; ++t) {
    if ((ambiguous_ >> t % kGroupTiles & 1U) != 0) sum_with_care(t, v);
  }
}

// Whether tile t and the next one, if it is before t1, take the same sums.
template <class T>
bool FusedBlock<T>::joins_sums(Index t, Index t1) const {
  if (t + 1 >= t1 || call_.pairs || call_.reads_values || !odd_.none()) return false;
  const Tile& x = tiles_[t];
  const Tile& y = tiles_[t + 1];
  return x.live_panels == y.live_panels && x.is_whole();
}

// Keys begin .. end-1 of the chunk, for the rows of tiles t .. t1-1, one tile unless they are
// joined: the runs of live panels.
template <class T>
void FusedBlock<T>::sum_tile(Index t, Index t1, Index begin, Index end, const StoredRows& v) {
  const Tile& tile = tiles_[t];
  begin = std::max(begin, tile.keys.begin);
  end = std::min(end, tile.keys.end);
  if (begin < end && odd_.none() && tile.is_whole()) return sum_keys(t, t1, begin, end, v);
  while (begin < end) {
    Index stop = begin;
    while (stop < end && (tile.live_panels >> (stop / kPanel) & 1U) != 0) {
      stop = std::min(end, (stop / kPanel + 1) * kPanel);
    }
    if (stop > begin) sum_run(t, begin, stop, v);
    begin = std::max(stop, (begin / kPanel + 1) * kPanel);
  }
}

// The same of a run of live panels.
template <class T>
void FusedBlock<T>::sum_run(Index t, Index begin, Index end, const StoredRows& v) {
  if (odd_.none()) return sum_keys(t, t + 1, begin, end, v);
  const Index each = call_.pairs ? 2 : 1;
  while (begin < end) {
    const Index odd = odd_.next(begin, end) / each * each;
    if (odd > begin) sum_keys(t, t + 1, begin, std::min(odd, end), v);
    begin = std::min(odd + each, end);
    if (odd < end) sum_one_by_one(t, odd, begin, v);
  }
}

template <class T>
void FusedBlock<T>::sum_keys(Index t, Index t1, Index begin, Index end, const StoredRows& v) {
  const Index r = tile_begin(t);
  const Index rows = tile_end(t1 - 1) - r;
  const RowsOf<T> to{chunk_acc + r % kGroupRows * width_, width_};
  // Keys of a weight, and of a row of copied values: pieces begin at even keys.
  const Index each = call_.pairs ? 2 : 1;
  if (!call_.reads_values) {
    const T* const first = static_cast<const T*>(v.data) + begin / each * v.stride;
    k_.weighted_sum({scores(r) + begin / each, kScoreStride}, rows, {first, v.stride}, end - begin,
                    p_.E, to);
    return;
  }
  begin = std::max(begin, stored_.begin);
  end = std::min(end, stored_.end);
  for (Index n = begin, count = 0; n < end; n += count) {
    count = reads_.run_of_values(n, end - n);
    const ReadAhead ahead = t == 0 ? reads_.beside_values(n, count) : ReadAhead{};
    count = std::min(count, end - n);
    k_.stored_sum({scores(r) + n / each, kScoreStride}, rows, reads_.values(n), count, p_.E, to,
                  ahead);
  }
}

}  // namespace qkv::attn

#include "attention/fused/odd_values.h"  // likewise, of values that are not finite

#endif  // QKV_ATTENTION_FUSED_CHUNK_H_
