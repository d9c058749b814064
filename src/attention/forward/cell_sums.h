// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FORWARD_CELL_SUMS_H_
#define QKV_ATTENTION_FORWARD_CELL_SUMS_H_

#include <algorithm>

#include "attention/tiles/key_units.h"
#include "core/integers.h"
#include "core/masks.h"
#include "core/order.h"
#include "core/results.h"
#include "core/stop.h"

// Sums for pooled weights: what one chunk of keys adds to the m x n cells of a query head. Used by
// ColumnPass.
namespace qkv::attn {

using core::KeyRange;
using core::PooledResult;

// The m x n cells of one query head in the caller's buffer.
template <class T>
class CellPlaces {
 public:
  CellPlaces(const Problem& p, const PooledResult& to, Index b, Index h)
      : to_(to),
        first_(static_cast<T*>(to.cells.data) +
               core::offset_of(to.cells, core::batch_offset(to.cells, p.batch, b), h, 0, 0)) {}

  T& at(Index row, Index col) const {
    return first_[row * to_.cells.row_stride + col * to_.cells.col_stride];
  }
  void clear(const core::StopPoint& stop) const {
    for (Index row = 0; row < to_.m; ++row) {
      stop();
      for (Index col = 0; col < to_.n; ++col) at(row, col) = T(0);
    }
  }
  // Divides each cell by its number of queries, of Tq in all, so that sums become means.
  void divide(Index Tq, const core::StopPoint& stop) const {
    for (Index row = 0; row < to_.m; ++row) {
      stop();
      const Index queries = core::cell_begin(row + 1, Tq, to_.m) - core::cell_begin(row, Tq, to_.m);
      if (queries == 0) continue;
      for (Index col = 0; col < to_.n; ++col) at(row, col) /= static_cast<T>(queries);
    }
  }

 private:
  const PooledResult& to_;
  T* first_ = nullptr;
};

// Sums of weights over one chunk of keys, to which queries are added in ascending order. For each
// key of the chunk, weights are summed over the queries of the current row of cells, in blocks of
// kGradientBlock queries. When a row of cells is complete, these sums are summed over the keys of
// each cell. A live key, panel or tile has an unmasked query-key pair.
template <class T>
class CellSums {
 public:
  CellSums() = default;
  template <class AnyArena>
  static CellSums take(AnyArena& arena, const PooledResult& to) {
    CellSums x;
    x.m_ = to.m;
    x.n_ = to.n;
    x.stride_ = std::min(core::kKeyChunk, to.n);
    // Number of rows of cells that may end in one block of queries.
    const Index rows = std::min(core::kGradientBlock, to.m);
    x.total_ = arena.template take<T>(core::kKeyChunk).data();
    x.block_ = arena.template take<T>(core::kKeyChunk).data();
    x.parts_ = arena.template take<T>(rows * x.stride_).data();
    x.row_of_ = arena.template take<Index>(rows).data();
    x.cell_of_ = arena.template take<Index>(x.stride_).data();
    x.key_end_ = arena.template take<Index>(x.stride_).data();
    return x;
  }

  // Starts with the chunk `keys` of a head with Tq queries and Tk keys.
  void start(Index Tq, Index Tk, const KeyRange& keys) {
    Tq_ = Tq;
    finished_ = 0;
    cells_ = 0;
    for (Index j = keys.begin; j < keys.end;) {
      const Index cell = core::cell_of(j, Tk, n_);
      j = std::min(keys.end, core::cell_begin(cell + 1, Tk, n_));
      cell_of_[cells_] = cell;
      key_end_[cells_++] = j - keys.begin;
    }
    std::fill_n(total_, core::kKeyChunk, T(0));
    std::fill_n(block_, core::kKeyChunk, T(0));
    start_row(0);
  }
  // The query after the last one of the current row of cells.
  Index end_of_row() const { return end_; }
  // The array [kKeyChunk] to which the caller adds the weights of the next queries, which must be
  // before end_of_row() and in one block of kGradientBlock queries.
  T* block() {
    live_ = true;
    return block_;
  }
  // Tells that all queries before i have been added.
  void reach(Index i) {
    if (i % core::kGradientBlock == 0 || i == end_) add_block();
    while (end_ <= i && row_ < m_) finish_row();
  }
  // Adds to the caller's cells the rows of cells that were completed since the last delivery.
  void deliver(const CellPlaces<T>& to) {
    for (Index row = 0; row < finished_; ++row) {
      const T* parts = parts_ + row * stride_;
      for (Index c = 0; c < cells_; ++c) to.at(row_of_[row], cell_of_[c]) += parts[c];
    }
    finished_ = 0;
  }

 private:
  void start_row(Index first_query) {
    row_ = first_query < Tq_ ? core::cell_of(first_query, Tq_, m_) : m_;
    end_ = core::cell_begin(row_ + 1, Tq_, m_);
    live_ = false;
  }
  void add_block() {
    if (!live_) return;
    for (Index n = 0; n < core::kKeyChunk; ++n) total_[n] += block_[n];
    std::fill_n(block_, core::kKeyChunk, T(0));
  }
  void finish_row() {
    if (live_) {
      T* parts = parts_ + finished_ * stride_;
      Index n = 0;
      for (Index c = 0; c < cells_; ++c) {
        T part(0);
        for (; n < key_end_[c]; ++n) part += total_[n];
        parts[c] = part;
      }
      row_of_[finished_++] = row_;
      std::fill_n(total_, core::kKeyChunk, T(0));
    }
    start_row(end_);
  }

  Index m_ = 0, n_ = 0, Tq_ = 0;
  Index row_ = 0;             // current row of cells
  Index end_ = 0;             // end of the row's queries
  bool live_ = false;         // whether any query of the row has a live key in this chunk
  T* total_ = nullptr;        // [kKeyChunk]: sums over the row of cells, without the current block
  T* block_ = nullptr;        // [kKeyChunk]: sums over the current block of queries
  Index cells_ = 0;           // number of columns of cells with keys in this chunk
  Index* cell_of_ = nullptr;  // [cells_]: which columns of cells these are
  Index* key_end_ = nullptr;  // [cells_]: end of each cell's keys, from the chunk's first key
  Index finished_ = 0;        // number of completed rows of cells that are not delivered yet
  Index* row_of_ = nullptr;   // [finished_]: which rows of cells these are
  Index stride_ = 0;
  T* parts_ = nullptr;  // [finished_][stride_]: sums over the keys of each cell
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FORWARD_CELL_SUMS_H_
