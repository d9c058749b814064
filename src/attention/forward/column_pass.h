// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FORWARD_COLUMN_PASS_H_
#define QKV_ATTENTION_FORWARD_COLUMN_PASS_H_

#include <cmath>

#include "attention/forward/cell_sums.h"
#include "attention/tiles/block_scores.h"
#include "attention/tiles/row_places.h"
#include "core/elementary.h"
#include "core/floats.h"
#include "core/integers.h"
#include "core/results.h"
#include "runtime/task_order.h"

// Results that are sums over pairs: of weights over queries (column_sums, value_sums) or over the
// pairs of a cell (pooled), and of the terms of the entropy over keys. One pass that recomputes
// scores gives them all, once the softmax of every row is known. A task is one chunk of keys of a
// query head; it goes through the queries in blocks of kGradientBlock. No other task writes to the
// columns of these keys. Rows (entropy) and cells are sums over chunks, which add to them in task
// order, with a counter for each block of queries.
namespace qkv::attn {

using core::kGradientBlock;
using core::ResultOperand;
using core::Results;

// The last step of the forward pass, if column sums, value sums, pooled weights or entropy are
// requested. A worker's arrays hold one chunk of keys.
template <class T>
class ColumnPass {
 public:
  ColumnPass(const FusedCall<T>& call, const Results& to, const RowStates<T>& states)
      : call_(call), p_(call.p), to_(to), states_(states) {}

  bool wanted() const { return to_.columns.given() || to_.pooled.given() || to_.entropy.given(); }
  template <class AnyArena>
  void take_shared(AnyArena& arena);
  struct Worker;
  template <class AnyArena>
  Worker take_worker(AnyArena& arena) const;

  // Runs the pass for the units of a block; packed(n): the n-th unit's packed panels, or null.
  template <class Packed>
  void run(runtime::Call& call, const UnitBlock& units, const Packed& packed) const;

  // A task: one chunk of keys of one query head.
  struct Chunk {
    KeyUnit unit;
    Index h = 0;
    Index number = 0;
    KeyRange keys;
  };

 private:
  // Whether columns are summed over listed queries only.
  bool lists_queries() const { return to_.columns.indices.given(); }
  // Whether the pass goes through all queries.
  bool takes_all() const {
    return to_.entropy.given() || to_.pooled.given() || (to_.columns.given() && !lists_queries());
  }
  // Whether several chunks add to the same elements, so that they need ordered accumulation.
  bool is_ordered() const { return to_.entropy.given() || to_.pooled.given(); }
  Index blocks_of_head() const {
    return p_.packed() ? p_.q_rows / kGradientBlock + p_.B : core::divide_up(p_.Tq, kGradientBlock);
  }
  Index block_index(const KeyUnit& unit, Index h, Index block) const {
    if (!p_.packed()) return (unit.b * p_.H + h) * blocks_of_head() + block;
    // Each sequence starts a new block, so it may have one block more than its rows fill.
    return h * blocks_of_head() + unit.s.q0 / kGradientBlock + unit.b + block;
  }
  T* entropy_at(const KeyUnit& unit, Index h, Index i) const {
    const Index entry = core::batch_offset(to_.entropy, p_.batch, unit.b);
    return static_cast<T*>(to_.entropy.data) +
           core::offset_of(to_.entropy, entry, h, unit.s.q0 + i, 0);
  }
  void prepare_block(const KeyUnit& unit, Index h, Index block) const;
  void measure_values(const KeyUnit& unit, Index chunk, Worker& w) const;
  void listed_rows(BlockScores<T>& x, const Chunk& chunk, Worker& w) const;
  bool all_rows(BlockScores<T>& x, const Chunk& chunk, runtime::Call& call, Worker& w) const;
  bool deliver(const Chunk& chunk, Index block, runtime::Call& call, Worker& w) const;
  void add_rows(BlockScores<T>& x, const Chunk& chunk, const kernels::WeightSums<T>& to,
                Worker& w) const;
  Index add_run(const BlockScores<T>& x, Index first, Index end,
                const kernels::WeightSums<T>& to) const;
  void write_columns(const Chunk& chunk, const Worker& w) const;

  const FusedCall<T>& call_;
  const Problem& p_;
  const Results& to_;
  const RowStates<T>& states_;
  T* log_sums_ = nullptr;            // [B,H,q_rows]: ln of each row's sum, for entropy
  KeyRange* live_chunks_ = nullptr;  // chunks that interval masks allow each block of queries
  runtime::TaskOrder order_;         // counters of the blocks, for ordered accumulation
  T* lengths_ = nullptr;             // [B,G,k_rows]: Euclidean length of each value
};

template <class T>
struct ColumnPass<T>::Worker {
  T* total = nullptr;    // [kKeyChunk]: sums of columns over all queries so far
  T* block = nullptr;    // [kKeyChunk]: sums over one block of queries
  T* value = nullptr;    // [E]: one value
  T* entropy = nullptr;  // [kGradientBlock]: this chunk's part of a block's entropy
  CellSums<T> cells;
};

// ---- memory ---------------------------------------------------------------------------------

template <class T>
template <class AnyArena>
void ColumnPass<T>::take_shared(AnyArena& arena) {
  if (!wanted()) return;
  if (to_.entropy.given()) log_sums_ = arena.template take<T>(states_.places.count(p_.B)).data();
  if (to_.columns.value_sums.given()) {
    lengths_ = arena.template take<T>(RowPlaces::of_keys(p_).count(p_.B)).data();
  }
  if (!takes_all()) return;
  const Index blocks = (p_.packed() ? 1 : p_.B) * p_.H * blocks_of_head();
  live_chunks_ = arena.template take<KeyRange>(blocks).data();
  if (is_ordered()) order_ = runtime::TaskOrder::take(arena, blocks);
}

template <class T>
template <class AnyArena>
typename ColumnPass<T>::Worker ColumnPass<T>::take_worker(AnyArena& arena) const {
  Worker w;
  w.total = arena.template take<T>(kKeyChunk).data();
  w.block = arena.template take<T>(kKeyChunk).data();
  if (to_.columns.value_sums.given()) w.value = arena.template take<T>(p_.E).data();
  if (to_.entropy.given()) w.entropy = arena.template take<T>(kGradientBlock).data();
  if (to_.pooled.given()) w.cells = CellSums<T>::take(arena, to_.pooled);
  return w;
}

// ---- the pass -------------------------------------------------------------------------------

template <class T>
template <class Packed>
void ColumnPass<T>::run(runtime::Call& call, const UnitBlock& units, const Packed& packed) const {
  if (!wanted()) return;
  const auto chunks_of = [&](const KeyUnit& unit) {
    return core::divide_up(unit.s.Tk, p_.key_chunk);
  };
  const auto blocks_of = [](const KeyUnit& unit) {
    return core::divide_up(unit.s.Tq, kGradientBlock);
  };
  const auto for_each_head = [&](const auto& pieces_of, const auto& f) {
    units.for_each_task(
        p_, call, [&](const KeyUnit& unit) { return unit.heads * pieces_of(unit); },
        [&](const KeyUnit& unit, Index n, Index task, core::Arena& arena) {
          const Index count = pieces_of(unit);
          f(unit, n, unit.first_head + task / count, task % count, arena);
        });
  };
  if (takes_all()) {
    for_each_head(blocks_of, [&](const KeyUnit& unit, Index, Index h, Index block, core::Arena&) {
      prepare_block(unit, h, block);
    });
  }
  const auto one = [](const KeyUnit&) { return Index{1}; };
  const auto of_cells = [&](const auto& f) {
    if (!to_.pooled.given()) return;
    for_each_head(one, [&](const KeyUnit& unit, Index, Index h, Index, core::Arena&) {
      f(CellPlaces<T>(p_, to_.pooled, unit.b, h), unit.s.Tq);
    });
  };
  of_cells([&](const CellPlaces<T>& cells, Index) { cells.clear(call_.stop); });
  if (to_.columns.value_sums.given()) {
    units.for_each_task(p_, call, chunks_of,
                        [&](const KeyUnit& unit, Index, Index chunk, core::Arena& arena) {
                          Worker w = take_worker(arena);
                          measure_values(unit, chunk, w);
                        });
  }
  for_each_head(chunks_of,
                [&](const KeyUnit& unit, Index n, Index h, Index number, core::Arena& arena) {
                  BlockScores<T> x(call_, arena);
                  Worker w = take_worker(arena);
                  x.start(unit, packed(n));
                  const Index j0 = number * p_.key_chunk;
                  const Chunk chunk{unit, h, number, {j0, std::min(unit.s.Tk, j0 + p_.key_chunk)}};
                  std::fill_n(w.total, kKeyChunk, T(0));
                  if (takes_all() && !all_rows(x, chunk, call, w)) return;
                  if (to_.columns.given() && lists_queries()) listed_rows(x, chunk, w);
                  if (to_.columns.given()) write_columns(chunk, w);
                });
  of_cells([&](const CellPlaces<T>& cells, Index Tq) { cells.divide(Tq, call_.stop); });
}

// First step of run(), a task for each block of queries: finds the chunks that interval masks allow
// the block, and starts the block's counter. For the entropy, computes log_sums_ and starts each
// row's sum at 0, or at NaN in NaN rows.
template <class T>
void ColumnPass<T>::prepare_block(const KeyUnit& unit, Index h, Index block) const {
  call_.stop();
  const Index end = std::min(unit.s.Tq, (block + 1) * kGradientBlock);
  QueryAt at{unit.b, h, block * kGradientBlock, p_.diagonal_offset(unit.b, unit.s)};
  KeyRange live{unit.s.Tk, 0};
  for (; at.i < end; ++at.i) {
    const KeyRange keys = p_.masks.empty() ? KeyRange{0, unit.s.Tk} : live_range(p_, at, unit.s.Tk);
    if (!keys.empty()) live = {std::min(live.begin, keys.begin), std::max(live.end, keys.end)};
    if (!to_.entropy.given()) continue;
    const Index row = states_.index(unit.s.q0, at);
    const T sum = states_.sum[row];
    log_sums_[row] = core::portable_log(sum);
    *entropy_at(unit, h, at.i) = std::isnan(sum) ? sum : T(0);
  }
  const Index index = block_index(unit, h, block);
  KeyRange& chunks = live_chunks_[index] = {};
  if (!live.empty()) chunks = {live.begin / p_.key_chunk, core::divide_up(live.end, p_.key_chunk)};
  // In pooling, each chunk waits for its turn at each block, even if masks forbid all their pairs:
  // a row of cells that it has summed over earlier blocks may end in this block.
  if (is_ordered()) order_.begin(index, to_.pooled.given() ? 0 : chunks.begin);
}

template <class T>
void ColumnPass<T>::measure_values(const KeyUnit& unit, Index chunk, Worker& w) const {
  const core::HeadRows rows(p_, p_.v, unit.b, p_.value_head(unit.g), unit.s.k0);
  T* lengths = lengths_ + RowPlaces::of_keys(p_).of(unit.b, unit.g, unit.s.k0);
  const Index j0 = chunk * p_.key_chunk;
  for (Index j = j0; j < std::min(unit.s.Tk, j0 + p_.key_chunk); ++j) {
    call_.stop();
    load_values(p_.v, rows.offset(j), p_.v.col_stride, p_.E, w.value);
    lengths[j] = static_cast<T>(core::euclidean_length(p_.E, [&](Index c) { return w.value[c]; }));
  }
}

template <class T>
void ColumnPass<T>::listed_rows(BlockScores<T>& x, const Chunk& chunk, Worker& w) const {
  const core::ColumnSumsResult& listed = to_.columns;
  std::fill_n(w.total, kKeyChunk, T(0));
  for (Index n0 = 0; n0 < listed.count; n0 += kGradientBlock) {
    x.queries.clear();
    for (Index n = n0; n < std::min(listed.count, n0 + kGradientBlock); ++n) {
      x.queries.add(chunk.h, core::load<Index>(listed.indices.dtype, listed.indices.data,
                                               n * listed.indices.row_stride));
    }
    std::fill_n(w.block, kKeyChunk, T(0));
    const kernels::WeightSums<T> to{w.block, nullptr, nullptr};
    x.go_through(chunk.keys.begin, BlockScores<T>::Tiles::kLive, [&](Index first, Index rows) {
      for (Index r = first; r < first + rows;) r = add_run(x, r, first + rows, to);
    });
    for (Index n = 0; n < kKeyChunk; ++n) w.total[n] += w.block[n];
  }
}

// Adds the weights of all queries for the chunk's keys to w.total, and to entropies and cells if
// requested. Returns false if the call has failed.
template <class T>
bool ColumnPass<T>::all_rows(BlockScores<T>& x, const Chunk& chunk, runtime::Call& call,
                             Worker& w) const {
  const Index Tq = chunk.unit.s.Tq;
  if (to_.pooled.given()) w.cells.start(Tq, chunk.unit.s.Tk, chunk.keys);
  for (Index i0 = 0; i0 < Tq; i0 += kGradientBlock) {
    const Index end = std::min(Tq, i0 + kGradientBlock);
    const Index block = i0 / kGradientBlock;
    const KeyRange& chunks = live_chunks_[block_index(chunk.unit, chunk.h, block)];
    const bool live = chunk.number >= chunks.begin && chunk.number < chunks.end;
    if (live) {
      x.queries.clear();
      for (Index i = i0; i < end; ++i) x.queries.add(chunk.h, i);
      std::fill_n(w.block, kKeyChunk, T(0));
      if (to_.entropy.given()) std::fill_n(w.entropy, kGradientBlock, T(0));
      add_rows(x, chunk, {w.block, nullptr, w.entropy}, w);
      for (Index n = 0; n < kKeyChunk; ++n) w.total[n] += w.block[n];
    }
    if (to_.pooled.given()) w.cells.reach(end);
    if (!is_ordered() || (!live && !to_.pooled.given())) continue;
    if (!order_.wait(call, block_index(chunk.unit, chunk.h, block), chunk.number)) return false;
    if (live && to_.entropy.given()) {
      for (Index i = i0; i < end; ++i) {
        *entropy_at(chunk.unit, chunk.h, i) += w.entropy[i - i0];
      }
    }
    if (to_.pooled.given()) {
      w.cells.deliver(CellPlaces<T>(p_, to_.pooled, chunk.unit.b, chunk.h));
    }
    order_.pass_on(block_index(chunk.unit, chunk.h, block), chunk.number);
  }
  return true;
}

// Adds the weights of the rows of one block to the sums `to` and, if requested, to w.cells.
template <class T>
void ColumnPass<T>::add_rows(BlockScores<T>& x, const Chunk& chunk,
                             const kernels::WeightSums<T>& to, Worker& w) const {
  x.go_through(chunk.keys.begin, BlockScores<T>::Tiles::kLive, [&](Index first, Index rows) {
    for (Index r = first; r < first + rows;) {
      kernels::WeightSums<T> of_run = to;
      Index end = first + rows;
      if (to_.pooled.given()) {
        end = std::min(end, r + w.cells.end_of_row() - x.queries[r].at.i);
        of_run.cells = w.cells.block();
      }
      r = add_run(x, r, end, of_run);
      if (to_.pooled.given() && r == end) w.cells.reach(x.queries[r - 1].at.i + 1);
    }
  });
}

// Adds the weights of the rows from `first` on, before `end`, that are in the tile of row `first`;
// returns the row after them.
template <class T>
Index ColumnPass<T>::add_run(const BlockScores<T>& x, Index first, Index end,
                             const kernels::WeightSums<T>& to) const {
  end = std::min(end, (first / kTileRows + 1) * kTileRows);
  const KeyRange keys = x.piece(first);
  if (keys.empty()) return end;
  const Index n = keys.end - keys.begin;
  kernels::SummedRow<T> rows[kTileRows];
  Index count = 0;
  const auto add = [&](Index next) {
    if (count == 0) return;
    call_.kernels.sum_weights(
        rows, count, n,
        {to.columns + keys.begin, to.cells == nullptr ? nullptr : to.cells + keys.begin,
         to.entropy == nullptr ? nullptr : to.entropy + next - count});
    count = 0;
  };
  for (Index r = first; r < end; ++r) {
    x.soft_cap(r);
    x.change(r);
    const T* s = x.row(r) + keys.begin;
    const Index row = states_.index(x.queries.unit().s.q0, x.queries[r].at);
    const T max = states_.max[row];
    const T sum = states_.sum[row];
    if (std::isfinite(max) && !std::isnan(sum)) {
      rows[count++] = {s, max, sum, to.entropy == nullptr ? T(0) : log_sums_[row]};
      continue;
    }
    add(r);
    if (!std::isnan(sum)) continue;  // no unmasked key: max is -inf, or a NaN or +inf sink
    for (Index c = 0; c < n; ++c) {
      if (s[c] == -std::numeric_limits<T>::infinity()) continue;
      to.columns[keys.begin + c] = sum;
      if (to.cells != nullptr) to.cells[keys.begin + c] = sum;
    }
  }
  add(end);
  return end;
}

template <class T>
void ColumnPass<T>::write_columns(const Chunk& chunk, const Worker& w) const {
  const auto place = [&](const ResultOperand& to, Index j) {
    const Index entry = core::batch_offset(to, p_.batch, chunk.unit.b);
    return static_cast<T*>(to.data) + core::offset_of(to, entry, chunk.h, chunk.unit.s.k0 + j, 0);
  };
  const Index first = RowPlaces::of_keys(p_).of(chunk.unit.b, chunk.unit.g, chunk.unit.s.k0);
  for (Index j = chunk.keys.begin; j < chunk.keys.end; ++j) {
    const T sum = w.total[j - chunk.keys.begin];
    if (to_.columns.sums.given()) *place(to_.columns.sums, j) = sum;
    if (!to_.columns.value_sums.given()) continue;
    *place(to_.columns.value_sums, j) = sum == T(0) ? T(0) : sum * lengths_[first + j];
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FORWARD_COLUMN_PASS_H_
