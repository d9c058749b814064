// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FORWARD_VALUE_SUMS_H_
#define QKV_ATTENTION_FORWARD_VALUE_SUMS_H_

#include <algorithm>

#include "attention/forward/non_finite_values.h"

namespace qkv::attn {

// The weighted sums of a chunk's values, for two tiles at a time: state.chunk.acc [rows][padded E]
// becomes weights (from SoftmaxState) times values [keys][E]. This is the last step of a chunk in
// the forward pass. ValueSums owns the converted copies of a chunk's values where they are needed.
// A live key, panel or tile has an unmasked query-key pair.
template <class T>
class ValueSums {
 public:
  template <class AnyArena>
  ValueSums(const FusedCall<T>& call, AnyArena& arena)
      : call_(call),
        p_(call.p),
        k_(call.kernels),
        width_(call.padded_width()),
        non_finite_(call, arena) {
    if (call.copies_values) copies_ = arena.template take<T>(p_.key_chunk * p_.E).data();
  }

  void start(const KeyUnit& unit) {
    if (p_.v.given()) rows_ = {p_, p_.v, unit.b, p_.value_head(unit.g), unit.s.k0};
  }
  const core::HeadRows& rows() const { return rows_; }
  void begin_chunk(const BlockScores<T>& scores) {
    values_ = find_values(scores);
    non_finite_.begin_chunk(values_, rows_);
  }
  // Computes the weighted sums of the current tiles, t0 .. t1-1, in state.chunk.acc.
  void sum(BlockScores<T>& scores, SoftmaxState<T>& state, Index t0, Index t1);

 private:
  StoredRows find_values(const BlockScores<T>& scores);
  void copy_words(const KeyRange& keys, Index j0);
  void sum_tiles(BlockScores<T>& scores, SoftmaxState<T>& state, Index t0, Index t1);
  // Whether stored values are widened once for all rows (q8).
  bool sums_all_rows_at_once() const { return p_.v.dtype == DType::kQ8; }
  bool joins(const BlockScores<T>& scores, Index t, Index t1) const;
  void sum_tile(const BlockScores<T>& scores, Index t, Index t1, KeyRange keys, T* to);
  void sum_run(const BlockScores<T>& scores, Index t, KeyRange keys, T* to);
  void sum_keys(const BlockScores<T>& scores, Index t, Index t1, KeyRange keys, T* to) const;

  const FusedCall<T>& call_;
  const Problem& p_;
  const kernels::DotKernels<T>& k_;
  Index width_ = 0;
  NonFiniteValues<T> non_finite_;
  core::HeadRows rows_;  // places of the unit's values
  // Row n is the value of the chunk's key n, or with products of BF16 the joined values of keys
  // 2n and 2n + 1. Absent if values are read as they are stored.
  StoredRows values_;
  T* copies_ = nullptr;
};

// ---- a chunk --------------------------------------------------------------------------------

// Finds the chunk's values. If they have to be copied, those of scores.live_keys() are copied.
template <class T>
StoredRows ValueSums<T>::find_values(const BlockScores<T>& scores) {
  const Index j0 = scores.first_key();
  if (call_.reads_values) return {};  // sum_keys() gets them from scores.reads()
  if (!call_.copies_values) {
    return RowsOf<const T>{static_cast<const T*>(p_.v.data) + rows_.offset(j0), p_.v.row_stride};
  }
  const KeyRange keys = scores.live_keys();
  if (call_.in_words) copy_words(keys, j0);
  for (Index n = keys.begin; !call_.in_words && n < keys.end; ++n) {
    call_.stop();
    const Index row = rows_.offset(j0 + n);
    if (is_readable<T>(p_.v)) {
      k_.widen(stored_rows(p_.v, row), 1, p_.E, {copies_ + n * p_.E, p_.E});
    } else {
      load_values(p_.v, row, p_.v.col_stride, p_.E, copies_ + n * p_.E);
    }
  }
  return RowsOf<const T>{copies_, p_.E};
}

template <class T>
void ValueSums<T>::copy_words(const KeyRange& keys, Index j0) {
  for (Index n = keys.begin; n < keys.end; n += 2) {
    call_.stop();
    const Index row = rows_.offset(j0 + n);
    const Index count = std::min<Index>(2, keys.end - n);
    T* to = copies_ + n / 2 * p_.E;
    if (is_readable<T>(p_.v)) {
      k_.join_values(stored_rows(p_.v, row), count, p_.E, {to, p_.E});
    } else {
      join_strided_values(p_.v, row, count, p_.E, to);
    }
  }
}

// ---- sums -----------------------------------------------------------------------------------

template <class T>
void ValueSums<T>::sum(BlockScores<T>& scores, SoftmaxState<T>& state, Index t0, Index t1) {
  const QueryRows<T>& queries = scores.queries;
  T* const first = state.chunk.acc;
  const Index count = (queries.tile_end(t1 - 1) - queries.tile_begin(t0)) * width_;
  std::fill(first, first + count, T(0));
  for (Index t = t0; call_.in_words && t < t1; ++t) {
    const KeyRange x = scores.tile(t).keys;
    for (Index r = queries.tile_begin(t); !x.empty() && r < queries.tile_end(t); ++r) {
      k_.round_weights(scores.row(r) + x.begin, x.end - x.begin, scores.row(r) + x.begin / 2);
    }
  }
  if (non_finite_.are_expected()) non_finite_.look(scores);
  sum_tiles(scores, state, t0, t1);
  if (non_finite_.has_looked() || !k_.has_nan(first, count)) return;
  non_finite_.expect();
  non_finite_.look(scores);
  if (non_finite_.found().none()) return;  // the NaN came from a score
  std::fill(first, first + count, T(0));
  sum_tiles(scores, state, t0, t1);
}

template <class T>
void ValueSums<T>::sum_tiles(BlockScores<T>& scores, SoftmaxState<T>& state, Index t0, Index t1) {
  const bool by_tile = call_.reads_values && !sums_all_rows_at_once() && scores.queries.count() > 2;
  const Index step = by_tile ? kStoredKeys : kValueKeys;
  non_finite_.begin_tiles();
  for (Index n = 0; n < scores.key_end(); n += step) {
    call_.stop();
    const KeyRange keys{n, std::min(n + step, scores.key_end())};
    for (Index t = t0; t < t1; ++t) {
      const Index first = t;
      while (joins(scores, t, t1)) ++t;
      const Index row = scores.queries.tile_begin(first) % kRowsAtOnce;
      sum_tile(scores, first, t + 1, keys, state.chunk.acc + row * width_);
    }
  }
  for (Index t = t0; t < t1; ++t) {
    if (non_finite_.is_ambiguous(t)) non_finite_.sum_elementwise(scores, state, t);
  }
}

// Whether tile t and the next one, if it is before t1, take the same keys in one kernel call.
template <class T>
bool ValueSums<T>::joins(const BlockScores<T>& scores, Index t, Index t1) const {
  if (t + 1 >= t1 || call_.products == Products::kDot2) return false;
  if (!non_finite_.found().none()) return false;
  if (call_.reads_values && !sums_all_rows_at_once() && call_.products != Products::kAmx) {
    return false;
  }
  const Tile& x = scores.tile(t);
  return x.live_panels == scores.tile(t + 1).live_panels && x.is_whole();
}

// Adds the weighted values of `keys` to the sums of tiles t .. t1-1 (one tile unless they are
// joined), in runs of live panels.
template <class T>
void ValueSums<T>::sum_tile(const BlockScores<T>& scores, Index t, Index t1, KeyRange keys, T* to) {
  const Tile& tile = scores.tile(t);
  keys = {std::max(keys.begin, tile.keys.begin), std::min(keys.end, tile.keys.end)};
  if (!keys.empty() && non_finite_.found().none() && tile.is_whole()) {
    return sum_keys(scores, t, t1, keys, to);
  }
  for (Index begin = keys.begin; begin < keys.end;) {
    Index stop = begin;
    while (stop < keys.end && (tile.live_panels >> (stop / kPanel) & 1U) != 0) {
      stop = std::min(keys.end, (stop / kPanel + 1) * kPanel);
    }
    if (stop > begin) sum_run(scores, t, {begin, stop}, to);
    begin = std::max(stop, (begin / kPanel + 1) * kPanel);
  }
}

// Adds the weighted values of `keys`, all in live panels, to the sums of tile t. Non-finite values
// are left to NonFiniteValues::add().
template <class T>
void ValueSums<T>::sum_run(const BlockScores<T>& scores, Index t, KeyRange keys, T* to) {
  if (non_finite_.found().none()) return sum_keys(scores, t, t + 1, keys, to);
  const Index each = core::step_of(call_.products);
  for (Index begin = keys.begin; begin < keys.end;) {
    const Index non_finite = non_finite_.found().next(begin, keys.end) / each * each;
    if (non_finite > begin) sum_keys(scores, t, t + 1, {begin, std::min(non_finite, keys.end)}, to);
    begin = std::min(non_finite + each, keys.end);
    if (non_finite < keys.end) non_finite_.add(scores, t, non_finite, begin, to);
  }
}

template <class T>
void ValueSums<T>::sum_keys(const BlockScores<T>& scores, Index t, Index t1, KeyRange keys,
                            T* to) const {
  const QueryRows<T>& queries = scores.queries;
  const Index r = queries.tile_begin(t);
  const Index rows = queries.tile_end(t1 - 1) - r;
  // Number of keys per word of weights and per row of copied values; keys.begin is a multiple of
  // it.
  const Index each = call_.in_words ? 2 : 1;
  if (!call_.reads_values) {
    const T* const first = static_cast<const T*>(values_.data) + keys.begin / each * values_.stride;
    k_.weighted_sum({scores.row(r) + keys.begin / each, kScoreStride}, rows,
                    {first, values_.stride}, keys.size(), p_.E, {to, width_});
    return;
  }
  const ChunkReads& reads = scores.reads();
  const Index end = std::min(keys.end, scores.stored().end);
  for (Index n = std::max(keys.begin, scores.stored().begin), count = 0; n < end; n += count) {
    count = reads.run_of_values(n, end - n);
    const ReadAhead ahead = t == 0 ? reads.beside_values(n, count) : ReadAhead{};
    count = std::min(count, end - n);
    k_.stored_sum({scores.row(r) + n / each, kScoreStride}, rows, reads.values(n), count, p_.E,
                  {to, width_}, ahead);
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FORWARD_VALUE_SUMS_H_
