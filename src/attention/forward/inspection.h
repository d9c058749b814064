// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FORWARD_INSPECTION_H_
#define QKV_ATTENTION_FORWARD_INSPECTION_H_

#include <cmath>

#include "attention/tiles/block_scores.h"
#include "attention/tiles/row_places.h"
#include "core/integers.h"
#include "core/results.h"

// Results that show single pairs of a query row: weights, scores, largest weights. A second pass
// recomputes the scores, tile by tile, once the softmax of every row is known, and writes directly
// to the caller's buffers.
namespace qkv::attn {

using core::ResultOperand;
using core::Results;
using core::RowsResult;

// Whether any result of the second pass is requested.
inline bool looks_inside(const Results& to) {
  const auto all = to.matrices();
  return to.top.count > 0 ||
         std::any_of(all.begin(), all.end(), [](const RowsResult* m) { return m->given(); });
}

// The second pass. It runs if looks_inside(), once `states` holds the softmax of every row.
template <class T>
class FusedInspection {
 public:
  FusedInspection(const FusedCall<T>& call, const Results& to, const RowStates<T>& states)
      : call_(call), p_(call.p), to_(to), states_(states) {}

  struct Worker {
    T* weights = nullptr;          // [kKeyChunk]: weights of a row, for add_top
    T* block = nullptr;            // [kKeyChunk]: a result's part of a row, for put_scored
    Index found[kBlockRows] = {};  // number of largest weights found so far for each row
  };
  template <class AnyArena>
  static Worker take_worker(AnyArena& arena) {
    Worker w;
    w.weights = arena.template take<T>(kKeyChunk).data();
    w.block = arena.template take<T>(kKeyChunk).data();
    return w;
  }

  // Runs the pass for the units of a block; packed(n) is the n-th unit's packed panels, or null.
  template <class Packed>
  void run(runtime::Call& call, const UnitBlock& units, const Packed& packed) const;

 private:
  struct TopRow;

  // Whether the result holds scores before masks, so that masked pairs have a score, too.
  static bool shows_all(const Results& to, const RowsResult& m) {
    return &m == &to.raw_scores || &m == &to.capped_scores;
  }
  void all_rows(BlockScores<T>& x, Worker& w) const;
  void listed_rows(BlockScores<T>& x, const RowsResult& m, Index n0, Index count, Worker& w) const;
  void row_weights(const BlockScores<T>& x, Index r, T* to) const;
  void put(const BlockScores<T>& x, const RowsResult& m, Index r, Index to_row, Index j0,
           const T* values, Index n) const;
  void put_scored(BlockScores<T>& x, const RowsResult& m, Index r, Index to_row, Index j0,
                  Index keys, Worker& w) const;
  void add_top(const BlockScores<T>& x, Index r, Index j0, Worker& w) const;
  void fill_top(const BlockScores<T>& x, Index r, const Worker& w) const;
  TopRow top_row(const BlockScores<T>& x, Index r) const;

  T max_of(const BlockScores<T>& x, Index r) const {
    return states_.max[states_.index(x.queries.unit().s.q0, x.queries[r].at)];
  }
  T sum_of(const BlockScores<T>& x, Index r) const {
    return states_.sum[states_.index(x.queries.unit().s.q0, x.queries[r].at)];
  }

  const FusedCall<T>& call_;
  const Problem& p_;
  const Results& to_;
  const RowStates<T>& states_;
};

template <class T>
template <class Packed>
void FusedInspection<T>::run(runtime::Call& call, const UnitBlock& units,
                             const Packed& packed) const {
  const auto all = to_.matrices();
  const auto blocks_of = [](Index rows) { return core::divide_up(rows, kBlockRows); };
  const bool every_row =
      to_.top.count > 0 || std::any_of(all.begin(), all.end(), [](const auto* m) {
        return m->given() && !m->indices.given();
      });
  if (every_row) {
    units.for_each_task(
        p_, call, [&](const KeyUnit& unit) { return blocks_of(unit.rows()); },
        [&](const KeyUnit& unit, Index n, Index task, core::Arena& arena) {
          BlockScores<T> x(call_, arena);
          Worker w = take_worker(arena);
          x.start(unit, packed(n), task * kBlockRows,
                  std::min(kBlockRows, unit.rows() - task * kBlockRows));
          all_rows(x, w);
        });
  }
  for (const RowsResult* m : all) {
    if (!m->given() || !m->indices.given()) continue;
    units.for_each_task(
        p_, call, [&](const KeyUnit& unit) { return blocks_of(unit.heads * m->count); },
        [&](const KeyUnit& unit, Index n, Index task, core::Arena& arena) {
          BlockScores<T> x(call_, arena);
          Worker w = take_worker(arena);
          x.start(unit, packed(n));
          const Index n0 = task * kBlockRows;
          listed_rows(x, *m, n0, std::min(kBlockRows, unit.heads * m->count - n0), w);
        });
  }
}

// ---- matrices -------------------------------------------------------------------------------

// Writes the weights of row r for the keys x.piece(r): 0 where masked, NaN for unmasked keys of a
// NaN row.
template <class T>
void FusedInspection<T>::row_weights(const BlockScores<T>& x, Index r, T* to) const {
  const KeyRange keys = x.piece(r);
  const T* s = x.row(r) + keys.begin;
  const Index n = keys.end - keys.begin;
  const T max = max_of(x, r);
  const T sum = sum_of(x, r);
  if (!std::isnan(sum)) {
    if (std::isfinite(max))
      return call_.kernels.weights(s, n, core::kLeastExponent<T>, max, sum, to);
    std::fill(to, to + n, T(0));  // no key is unmasked: max is -inf, or a NaN or +inf sink
    return;
  }
  for (Index c = 0; c < n; ++c) to[c] = s[c] == -std::numeric_limits<T>::infinity() ? T(0) : sum;
}

// Stores n values in row `to_row` of a matrix, from key j0 on.
template <class T>
void FusedInspection<T>::put(const BlockScores<T>& x, const RowsResult& m, Index r, Index to_row,
                             Index j0, const T* values, Index n) const {
  const QueryAt& at = x.queries[r].at;
  const Index entry = core::batch_offset(m.matrix, p_.batch, at.b);
  store_values(m.matrix, core::offset_of(m.matrix, entry, at.h, to_row, j0), values, n);
}

// Stores a row's weights, dropped weights or masked scores for all keys of one chunk. Keys outside
// x.piece(r) are masked.
template <class T>
void FusedInspection<T>::put_scored(BlockScores<T>& x, const RowsResult& m, Index r, Index to_row,
                                    Index j0, Index keys, Worker& w) const {
  const KeyRange piece = x.piece(r);
  const bool scores = &m == &to_.masked_scores;
  std::fill(w.block, w.block + keys, scores ? -std::numeric_limits<T>::infinity() : T(0));
  if (!piece.empty()) {
    T* to = w.block + piece.begin;
    const Index n = piece.end - piece.begin;
    if (scores) {
      std::copy_n(x.row(r) + piece.begin, n, to);
    } else {
      row_weights(x, r, to);
    }
    if (&m == &to_.dropped_weights && p_.dropout != 0) {
      const QueryAt& at = x.queries[r].at;
      call_.kernels.drop(to, p_.dropout_row(at.b, at.h, at.i), j0 + piece.begin + p_.first_key(),
                         n);
      const T keep = static_cast<T>(1 - p_.dropout);
      for (Index c = 0; c < n; ++c) to[c] /= keep;
    }
  }
  put(x, m, r, to_row, j0, w.block, keys);
}

template <class T>
void FusedInspection<T>::all_rows(BlockScores<T>& x, Worker& w) const {
  using Tiles = typename BlockScores<T>::Tiles;
  const auto wanted = [](const RowsResult& m) { return m.given() && !m.indices.given(); };
  const bool all = wanted(to_.raw_scores) || wanted(to_.capped_scores);
  const Index Tk = x.queries.unit().s.Tk;
  for (Index j0 = 0; j0 < Tk; j0 += p_.key_chunk) {
    const Index keys = std::min(p_.key_chunk, Tk - j0);
    x.go_through(j0, all ? Tiles::kAll : Tiles::kLive, [&](Index first, Index rows) {
      for (Index r = first; r < first + rows; ++r) {
        const Index i = x.queries[r].at.i;
        if (wanted(to_.raw_scores)) put(x, to_.raw_scores, r, i, j0, x.row(r), keys);
        if (!x.piece(r).empty()) x.soft_cap(r);
        if (wanted(to_.capped_scores)) put(x, to_.capped_scores, r, i, j0, x.row(r), keys);
        x.change(r);
        for (const RowsResult* m : {&to_.weights, &to_.dropped_weights, &to_.masked_scores}) {
          if (wanted(*m)) put_scored(x, *m, r, i, j0, keys, w);
        }
        if (to_.top.count > 0) add_top(x, r, j0, w);
      }
    });
  }
  for (Index r = 0; to_.top.count > 0 && r < x.queries.count(); ++r) fill_top(x, r, w);
}

// Writes rows of a result that lists queries. Item n of n0 .. n0 + count - 1 is query n % m.count
// of the list, in head n / m.count of the unit.
template <class T>
void FusedInspection<T>::listed_rows(BlockScores<T>& x, const RowsResult& m, Index n0, Index count,
                                     Worker& w) const {
  using Tiles = typename BlockScores<T>::Tiles;
  for (Index n = n0; n < n0 + count; ++n) {
    const Index query =
        core::load<Index>(m.indices.dtype, m.indices.data, n % m.count * m.indices.row_stride);
    x.queries.add(x.queries.unit().first_head + n / m.count, query);
  }
  const Index Tk = x.queries.unit().s.Tk;
  const bool all = shows_all(to_, m);
  for (Index j0 = 0; j0 < Tk; j0 += p_.key_chunk) {
    const Index keys = std::min(p_.key_chunk, Tk - j0);
    x.go_through(j0, all ? Tiles::kAll : Tiles::kLive, [&](Index first, Index rows) {
      for (Index r = first; r < first + rows; ++r) {
        const Index to_row = (n0 + r) % m.count;
        if (&m != &to_.raw_scores && !x.piece(r).empty()) x.soft_cap(r);
        if (all) {
          put(x, m, r, to_row, j0, x.row(r), keys);
        } else {
          x.change(r);
          put_scored(x, m, r, to_row, j0, keys, w);
        }
      }
    });
  }
}

// ---- largest weights ------------------------------------------------------------------------

// A row's largest weights and their keys, in the caller's buffers. During the search they are a
// heap, whose first element is the next to be replaced: the smallest weight, and among equal
// weights the one with the highest key.
template <class T>
struct FusedInspection<T>::TopRow {
  T* weights = nullptr;
  Index stride = 0;
  const ResultOperand& keys;
  Index first_key = 0;

  T weight(Index rank) const { return weights[rank * stride]; }
  Index key(Index rank) const { return core::load<Index>(keys.dtype, keys.data, key_offset(rank)); }
  void put(Index rank, T weight, Index key) const {
    weights[rank * stride] = weight;
    core::store(keys.dtype, keys.data, key_offset(rank), key);
  }

  // Adds an element to a heap of `count` others, whose keys are all lower.
  void add(Index count, T weight, Index key) const {
    put(count, weight, key);
    for (Index place = count; place > 0;) {
      const Index above = (place - 1) / 2;
      if (!goes_before(place, above)) return;
      swap(place, above);
      place = above;
    }
  }
  // Replaces the first of `count` elements.
  void replace_first(Index count, T weight, Index key) const {
    put(0, weight, key);
    sink_first(count);
  }
  // Sorts by weight, largest first, and in a tie by key, lowest first.
  void sort(Index count) const {
    while (count > 1) {
      swap(0, --count);
      sink_first(count);
    }
  }

 private:
  Index key_offset(Index rank) const { return first_key + rank * keys.col_stride; }
  bool goes_before(Index a, Index b) const {
    return weight(a) < weight(b) || (weight(a) == weight(b) && key(a) > key(b));
  }
  void swap(Index a, Index b) const {
    const T its_weight = weight(a);
    const Index its_key = key(a);
    put(a, weight(b), key(b));
    put(b, its_weight, its_key);
  }
  void sink_first(Index count) const {
    for (Index place = 0;;) {
      Index below = 2 * place + 1;
      if (below >= count) return;
      if (below + 1 < count && goes_before(below + 1, below)) ++below;
      if (!goes_before(below, place)) return;
      swap(place, below);
      place = below;
    }
  }
};

template <class T>
typename FusedInspection<T>::TopRow FusedInspection<T>::top_row(const BlockScores<T>& x,
                                                                Index r) const {
  const QueryAt& at = x.queries[r].at;
  const auto place = [&](const ResultOperand& to) {
    const Index entry = core::batch_offset(to, p_.batch, at.b);
    return core::offset_of(to, entry, at.h, x.queries.unit().s.q0 + at.i, 0);
  };
  return {static_cast<T*>(to_.top.weights.data) + place(to_.top.weights),
          to_.top.weights.col_stride, to_.top.keys, place(to_.top.keys)};
}

template <class T>
void FusedInspection<T>::add_top(const BlockScores<T>& x, Index r, Index j0, Worker& w) const {
  const KeyRange piece = x.piece(r);
  if (piece.empty() || std::isnan(sum_of(x, r))) return;
  row_weights(x, r, w.weights);
  const Index most = std::min(to_.top.count, p_.Tk);
  const TopRow top = top_row(x, r);
  Index& found = w.found[r];
  const T* s = x.row(r) + piece.begin;
  for (Index n = 0; n < piece.end - piece.begin; ++n) {
    const T value = w.weights[n];
    if (found == most && !(value > top.weight(0))) continue;
    if (s[n] == -std::numeric_limits<T>::infinity()) continue;
    const Index key = j0 + piece.begin + n;
    if (found == most) {
      top.replace_first(most, value, key);
    } else {
      top.add(found++, value, key);
    }
  }
}

// Sorts the weights found. Ranks for which there is no unmasked key get weight 0 and key -1. A NaN
// row has weight NaN and key -1 in all ranks.
template <class T>
void FusedInspection<T>::fill_top(const BlockScores<T>& x, Index r, const Worker& w) const {
  const TopRow top = top_row(x, r);
  const T sum = sum_of(x, r);
  top.sort(w.found[r]);
  for (Index rank = w.found[r]; rank < to_.top.count; ++rank) {
    top.put(rank, std::isnan(sum) ? sum : T(0), Index{-1});
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FORWARD_INSPECTION_H_
