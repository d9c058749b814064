// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FORWARD_FORWARD_H_
#define QKV_ATTENTION_FORWARD_FORWARD_H_

#include <cmath>
#include <limits>

#include "attention/forward/block.h"
#include "attention/forward/column_pass.h"
#include "attention/forward/inspection.h"
#include "core/elementary.h"
#include "core/integers.h"
#include "core/results.h"

// The fused forward pass of attention (Dao et al. 2022, section 3.1; chunks of the softmax are
// merged as in Milakov and Gimelshein 2018). A call processes its units (key heads) by one of two
// strategies, with bit-identical results:
//   many queries   all keys are packed once, then blocks of queries are tasks
//   few queries    a unit's queries are one block, which reads keys as they are stored or packs a
//                  chunk at a time; neighbouring chunks are a task, and the chunks' partial results
//                  are merged in order afterwards (unless one chunk has all keys)
namespace qkv::attn {

using core::MeasuringArena;
using core::ResultOperand;
using core::Results;

// Up to this many query rows of a key head count as few: packing all keys would cost more than it
// saves.
inline constexpr Index kFewRows = 48;

// The forward pass of one call. Its shared memory holds, for a block of units, packed panels
// [panels][Dk][kPanel] or partial results of chunks, and RowStates if a pass that recomputes scores
// follows. The tasks of its steps are pack() and query_block() or, for few queries, key_chunks()
// and merge_chunks().
template <class T>
class FusedForward {
 public:
  // `most_units`: the largest number of units that one run_units() gets.
  FusedForward(const Problem& p, const Results& to, kernels::Target target,
               const AdditiveScores<T>* additive = nullptr,
               Index most_units = std::numeric_limits<Index>::max())
      : p_(p),
        to_(to),
        most_units_(std::min(most_units, unit_count(p))),
        call_(p, target, additive, products_of<T>(p, target)),
        columns_(call_, to, states_) {}

  template <class AnyArena>
  void take_shared(AnyArena& arena);
  std::size_t worker_bytes() const;
  void run(runtime::Call& call) {
    start(call);
    run_units(call, 0, most_units_);
  }
  // Alternative to run(): start() once, then run_units() until all units are done, at most
  // `most_units` at a time.
  void start(runtime::Call& call);
  void run_units(runtime::Call& call, Index begin, Index end);

 private:
  // Number of elements of the partial results of one chunk for a unit's rows: max, sum, acc.
  Index partial_values() const { return most_rows() * (2 + call_.padded_width()); }
  // Largest number of query rows of a unit.
  Index most_rows() const { return p_.G > 0 ? p_.H / p_.G * p_.Tq : 0; }
  bool few_queries() const { return p_.G > 0 && most_rows() <= kFewRows; }
  bool with_values() const { return to_.out.given() || to_.state.acc.given(); }
  // Whether a later pass recomputes scores and needs the state of each row's softmax.
  bool needs_states() const { return looks_inside(to_) || columns_.wanted(); }
  // Number of pieces of a unit in the shared memory: panels, or partial results of chunks.
  Index pieces_of(const KeyUnit& unit) const {
    return few_queries() ? live_chunks(unit).size() : core::divide_up(unit.s.Tk, kPanel);
  }
  // The chunks from the first to the last key that interval masks allow some row of the unit.
  KeyRange live_chunks(const KeyUnit& unit) const;
  Index piece_values() const { return few_queries() ? partial_values() : kPanel * p_.Dk; }
  Index most_pieces() const;
  Index cached_pieces(Index threads) const;
  Index choose_block_rows(int threads, Index units) const;
  struct Partial {
    T* max = nullptr;
    T* sum = nullptr;
    T* acc = nullptr;
  };
  // Partial results of the block's unit n. `chunk` is counted from the unit's first live chunk.
  Partial partial_of(Index n, Index chunk) const {
    T* first = shared_ + (units_.offset(n) + chunk) * piece_values();
    return {first, first + most_rows(), first + 2 * most_rows()};
  }

  // The packed panels of the block's unit n; null for few queries.
  const T* packed(Index n) const {
    return few_queries() ? nullptr : shared_ + units_.offset(n) * piece_values();
  }
  void pack(const KeyUnit& unit, Index n, Index chunk);
  void query_block(const KeyUnit& unit, Index n, Index block, core::Arena& arena);
  void key_chunks(const KeyUnit& unit, Index n, Index task, core::Arena& arena);
  void merge_chunks(const KeyUnit& unit, Index n, core::Arena& arena);
  Index place_in(const ResultOperand& x, const FusedBlock<T>& block, Index r) const;
  void load_state(FusedBlock<T>& block);
  void store_state(const FusedBlock<T>& block);
  void finish(FusedBlock<T>& block);
  void add_sinks(FusedBlock<T>& block, const bool* empty);
  void write(const FusedBlock<T>& block, const bool* empty);

  const Problem& p_;
  const Results& to_;
  const Index most_units_;
  FusedCall<T> call_;
  UnitBlock units_;
  Index block_rows_ = kBlockRows;
  Index task_chunks_ = 1;
  T* shared_ = nullptr;  // panels or partial results of the block's units
  RowStates<T> states_;  // of all rows, if a pass recomputes scores afterwards
  ColumnPass<T> columns_;
};

// ---- memory ---------------------------------------------------------------------------------

// Number of pieces that the shared memory holds: 32 MiB of them, but at least one unit's and at
// most those of all units.
template <class T>
Index FusedForward<T>::most_pieces() const {
  constexpr Index kBudget = Index{32} << 20;
  const Index bytes = std::max<Index>(piece_values() * static_cast<Index>(sizeof(T)), 1);
  const Index length = few_queries() ? p_.key_chunk : kPanel;
  const Index one = core::divide_up(p_.Tk, length);
  // A packed sequence may have one partial piece, its last.
  const Index all = p_.packed() ? p_.G * (p_.k_rows / length + p_.B) : most_units_ * one;
  return std::max(one, std::min(kBudget / bytes, all));
}

// Number of pieces that a block of units gets: few enough that what is packed is still in the
// caches when it is read, and enough that each thread has some tasks in each round.
template <class T>
Index FusedForward<T>::cached_pieces(Index threads) const {
  constexpr Index kBudget = Index{3} << 19;
  const Index bytes = std::max<Index>(piece_values() * static_cast<Index>(sizeof(T)), 1);
  if (few_queries()) return most_pieces();
  return std::min(most_pieces(), std::max<Index>(threads * kBudget / bytes, 1));
}

// Rows of a block: reduced, to no less than eight tiles, until each thread has eight blocks, so
// that threads finish together. Any number gives bit-identical results.
template <class T>
Index FusedForward<T>::choose_block_rows(int threads, Index units) const {
  if (threads <= 1 || p_.G == 0) return kBlockRows;
  const Index rows = units * (p_.H / p_.G) * std::min(p_.Tq, Index{1} << 20);
  const Index share = core::divide_up(rows, Index{8} * threads);
  return std::clamp(core::divide_up(share, kRowsAtOnce) * kRowsAtOnce, 4 * kRowsAtOnce, kBlockRows);
}

template <class T>
KeyRange FusedForward<T>::live_chunks(const KeyUnit& unit) const {
  KeyRange keys{0, unit.s.Tk};
  if (!p_.masks.empty()) {
    keys = {unit.s.Tk, 0};
    const Index offset = p_.diagonal_offset(unit.b, unit.s);
    for (Index r = 0; r < unit.rows(); ++r) {
      const QueryAt at{unit.b, unit.first_head + r / unit.s.Tq, r % unit.s.Tq, offset};
      const KeyRange live = live_range(p_, at, unit.s.Tk);
      if (!live.empty()) keys = {std::min(keys.begin, live.begin), std::max(keys.end, live.end)};
    }
  }
  if (keys.empty()) return {};
  return {keys.begin / p_.key_chunk, core::divide_up(keys.end, p_.key_chunk)};
}

template <class T>
template <class AnyArena>
void FusedForward<T>::take_shared(AnyArena& arena) {
  units_ = UnitBlock::take(arena);
  shared_ = arena.template take<T>(most_pieces() * piece_values()).data();
  if (!needs_states()) return;
  states_ = RowStates<T>::take(arena, p_);
  columns_.take_shared(arena);
}

template <class T>
std::size_t FusedForward<T>::worker_bytes() const {
  MeasuringArena block;
  FusedBlock<T> rows(call_, block);
  MeasuringArena inspection;
  if (looks_inside(to_)) FusedInspection<T>::take_worker(inspection);
  MeasuringArena columns;
  if (columns_.wanted()) columns_.take_worker(columns);
  return block.bytes() + std::max(inspection.bytes(), columns.bytes());
}

// ---- the pass -------------------------------------------------------------------------------

template <class T>
void FusedForward<T>::start(runtime::Call& call) {
  take_shared(call.shared());
  call_.stop = call.stop_point();
}

template <class T>
void FusedForward<T>::run_units(runtime::Call& call, Index begin, Index end) {
  block_rows_ = choose_block_rows(call.concurrency(), end - begin);
  const Index budget = cached_pieces(call.concurrency());
  const auto size = [&](const KeyUnit& unit) { return pieces_of(unit); };
  for (; units_.next(p_, begin, end, budget, size); begin = units_.end()) {
    const auto chunks = [&](const KeyUnit& unit) {
      return core::divide_up(unit.s.Tk, p_.key_chunk);
    };
    // Neighbouring chunks form a task, since a task that reads keys as they are stored prefetches
    // the next chunk's. Each thread gets at least 16 tasks if there are enough chunks.
    constexpr Index kMostChunks = 32;
    task_chunks_ =
        std::clamp(units_.pieces() / (Index{16} * call.concurrency()), Index{1}, kMostChunks);
    if (few_queries() && p_.Tk <= p_.key_chunk) {
      units_.for_each_task(
          p_, call, [](const KeyUnit&) { return Index{1}; },
          [&](const KeyUnit& u, Index n, Index, auto& arena) { query_block(u, n, 0, arena); });
    } else if (few_queries()) {
      units_.for_each_task(
          p_, call,
          [&](const KeyUnit& unit) { return core::divide_up(pieces_of(unit), task_chunks_); },
          [&](const KeyUnit& u, Index n, Index task, auto& arena) {
            key_chunks(u, n, task, arena);
          });
      units_.for_each_task(
          p_, call, [](const KeyUnit&) { return Index{1}; },
          [&](const KeyUnit& u, Index n, Index, auto& arena) { merge_chunks(u, n, arena); });
    } else {
      units_.for_each_task(p_, call, chunks,
                           [&](const KeyUnit& u, Index n, Index task, auto&) { pack(u, n, task); });
      units_.for_each_task(
          p_, call, [&](const KeyUnit& unit) { return core::divide_up(unit.rows(), block_rows_); },
          [&](const KeyUnit& u, Index n, Index task, auto& arena) {
            query_block(u, n, task, arena);
          });
    }
    const auto panels = [&](Index n) { return packed(n); };
    if (looks_inside(to_)) FusedInspection<T>(call_, to_, states_).run(call, units_, panels);
    columns_.run(call, units_, panels);
  }
}

// Task: packs the panels of one chunk.
template <class T>
void FusedForward<T>::pack(const KeyUnit& unit, Index n, Index chunk) {
  const core::HeadRows rows(p_, p_.k, unit.b, unit.g, unit.s.k0);
  T* panels = shared_ + units_.offset(n) * piece_values();
  for (Index j = chunk * p_.key_chunk; j < std::min(unit.s.Tk, (chunk + 1) * p_.key_chunk);
       j += kPanel) {
    pack_rows(call_, p_.k, rows, j, std::min(kPanel, unit.s.Tk - j), call_.score_width(),
              panels + j * p_.Dk);
  }
}

template <class T>
void FusedForward<T>::query_block(const KeyUnit& unit, Index n, Index block, core::Arena& arena) {
  FusedBlock<T> x(call_, arena);
  x.start(unit, packed(n), block * block_rows_,
          std::min(block_rows_, unit.rows() - block * block_rows_));
  x.run(with_values(), to_.state.given(), [&] { load_state(x); });
  finish(x);
}

template <class T>
void FusedForward<T>::key_chunks(const KeyUnit& unit, Index n, Index task, core::Arena& arena) {
  FusedBlock<T> x(call_, arena);
  const SoftmaxState<T>& state = x.state;
  x.start(unit, nullptr, 0, unit.rows());
  const KeyRange live = live_chunks(unit);
  const Index first_chunk = live.begin + task * task_chunks_;
  const Index end = std::min(live.end, first_chunk + task_chunks_);
  x.scores.read_until(end * p_.key_chunk);
  for (Index chunk = first_chunk; chunk < end; ++chunk) {
    const Partial partial = partial_of(n, chunk - live.begin);
    std::fill_n(partial.max, unit.rows(), -std::numeric_limits<T>::infinity());
    std::fill_n(partial.sum, unit.rows(), T(0));
    x.chunk(chunk * p_.key_chunk, with_values(), [&](Index first, Index rows) {
      std::copy_n(state.chunk.max, rows, partial.max + first);
      std::copy_n(state.chunk.sum, rows, partial.sum + first);
      if (!with_values()) return;
      std::copy_n(state.chunk.acc, rows * state.width(), partial.acc + first * state.width());
    });
  }
}

template <class T>
void FusedForward<T>::merge_chunks(const KeyUnit& unit, Index n, core::Arena& arena) {
  FusedBlock<T> x(call_, arena);
  x.start(unit, nullptr, 0, unit.rows());
  SoftmaxState<T>& state = x.state;
  state.reset(unit.rows());
  if (to_.state.given()) load_state(x);
  const Index chunks = live_chunks(unit).size();
  for (Index chunk = 0; chunk < chunks; ++chunk) {
    const Partial partial = partial_of(n, chunk);
    for (Index first = 0; first < unit.rows(); first += kRowsAtOnce) {
      const Index rows = std::min(kRowsAtOnce, unit.rows() - first);
      const T* max = partial.max + first;
      if (std::all_of(partial.sum + first, partial.sum + first + rows,
                      [](T sum) { return sum == T(0); })) {
        continue;  // no row has a live key, and acc was not written
      }
      std::copy_n(max, rows, state.chunk.max);
      std::copy_n(partial.sum + first, rows, state.chunk.sum);
      if (with_values()) {
        std::copy_n(partial.acc + first * state.width(), rows * state.width(), state.chunk.acc);
      }
      state.absorb(first, rows, with_values());
    }
  }
  finish(x);
}

// ---- results of rows ------------------------------------------------------------------------

// The offset, in elements, of the block's row r in a result.
template <class T>
Index FusedForward<T>::place_in(const ResultOperand& x, const FusedBlock<T>& block, Index r) const {
  const KeyUnit& unit = block.queries().unit();
  const QueryAt& at = block.queries()[r].at;
  return core::offset_of(x, core::batch_offset(x, p_.batch, unit.b), at.h, unit.s.q0 + at.i, 0);
}

// Loads the softmax states that earlier steps left for the block's rows.
template <class T>
void FusedForward<T>::load_state(FusedBlock<T>& block) {
  SoftmaxState<T>& state = block.state;
  const core::StateResult& from = to_.state;
  const auto values = [&](const ResultOperand& x, Index r) {
    return static_cast<const T*>(x.data) + place_in(x, block, r);
  };
  for (Index r = 0; r < block.queries().count(); ++r) {
    call_.stop();
    state.max[r] = *values(from.max, r);
    state.sum[r] = *values(from.sum, r);
    if (!from.acc.given()) continue;
    const T* acc = values(from.acc, r);
    for (Index c = 0; c < p_.E; ++c)
      state.acc[r * state.width() + c] = acc[c * from.acc.col_stride];
  }
}

template <class T>
void FusedForward<T>::store_state(const FusedBlock<T>& block) {
  const SoftmaxState<T>& state = block.state;
  const core::StateResult& to = to_.state;
  const auto values = [&](const ResultOperand& x, Index r) {
    return static_cast<T*>(x.data) + place_in(x, block, r);
  };
  for (Index r = 0; r < block.queries().count(); ++r) {
    call_.stop();
    *values(to.max, r) = state.max[r];
    *values(to.sum, r) = state.sum[r];
    if (!to.acc.given()) continue;
    T* acc = values(to.acc, r);
    for (Index c = 0; c < p_.E; ++c) acc[c * to.acc.col_stride] = state.acc[r * state.width() + c];
  }
}

template <class T>
void FusedForward<T>::finish(FusedBlock<T>& block) {
  const QueryRows<T>& queries = block.queries();
  const SoftmaxState<T>& state = block.state;
  if (to_.state.given()) store_state(block);
  bool empty[kBlockRows];
  for (Index r = 0; r < queries.count(); ++r) {
    empty[r] = state.max[r] == -std::numeric_limits<T>::infinity() && state.sum[r] == 0;
  }
  if (p_.sinks.given()) add_sinks(block, empty);
  if (needs_states()) {
    for (Index r = 0; r < queries.count(); ++r) {
      const Index at = states_.index(queries.unit().s.q0, queries[r].at);
      states_.max[at] = state.max[r];
      states_.sum[at] = state.sum[r];
    }
  }
  write(block, empty);
}

// Merges the sinks: one more score per row, whose value vector is 0. A sink of -inf counts as none.
// A sink of NaN or +inf makes rows with live keys NaN, and is the lse of rows without live keys.
template <class T>
void FusedForward<T>::add_sinks(FusedBlock<T>& block, const bool* empty) {
  const QueryRows<T>& queries = block.queries();
  SoftmaxState<T>& state = block.state;
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  const auto sink = [&](Index r) {
    const Index offset = core::offset_of(p_.sinks, 0, queries[r].at.h, 0, 0);
    return core::load<T>(p_.sinks.dtype, p_.sinks.data, offset);
  };
  for (Index first = 0; first < queries.count(); first += kRowsAtOnce) {
    const Index rows = std::min(kRowsAtOnce, queries.count() - first);
    for (Index r = 0; r < rows; ++r) {
      const T value = sink(first + r);
      state.chunk.max[r] = std::isfinite(value) ? value : kNone;
      state.chunk.sum[r] = std::isfinite(value) ? T(1) : T(0);
    }
    std::fill(state.chunk.acc, state.chunk.acc + rows * state.width(), T(0));
    state.absorb(first, rows, with_values());
  }
  for (Index r = 0; r < queries.count(); ++r) {
    const T value = sink(r);
    if (std::isfinite(value) || value == kNone) continue;
    state.max[r] = value;
    state.sum[r] = empty[r] ? T(1) : std::numeric_limits<T>::quiet_NaN();
  }
}

template <class T>
void FusedForward<T>::write(const FusedBlock<T>& block, const bool* empty) {
  const QueryRows<T>& queries = block.queries();
  const SoftmaxState<T>& state = block.state;
  constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();
  const KeyUnit& unit = queries.unit();
  const auto entry = [&](const ResultOperand& x) {
    return x.given() ? core::batch_offset(x, p_.batch, unit.b) : 0;
  };
  const Index lse_entry = entry(to_.lse);
  const Index max_entry = entry(to_.row_max);
  const Index out_entry = entry(to_.out);
  const auto place = [&](const ResultOperand& x, Index first, const QueryAt& at) {
    return core::offset_of(x, first, at.h, unit.s.q0 + at.i, 0);
  };
  const bool in_place = to_.out.dtype == dtype_of<T> && to_.out.col_stride == 1;
  for (Index r = 0; r < queries.count(); ++r) {
    call_.stop();
    const QueryAt& at = queries[r].at;
    const T max = state.max[r];
    const T sum = state.sum[r];
    const bool nan = std::isnan(sum);
    if (to_.lse.given()) {
      const T lse = nan                                          ? kNaN
                    : max == -std::numeric_limits<T>::infinity() ? max
                                                                 : max + core::portable_log(sum);
      core::store(to_.lse.dtype, to_.lse.data, place(to_.lse, lse_entry, at), lse);
    }
    if (to_.row_max.given()) {
      core::store(to_.row_max.dtype, to_.row_max.data, place(to_.row_max, max_entry, at),
                  nan ? kNaN : max);
    }
    if (!to_.out.given()) continue;
    const Index offset = place(to_.out, out_entry, at);
    T* acc = state.acc + r * state.width();
    T* row = in_place ? static_cast<T*>(to_.out.data) + offset : acc;
    if (empty[r]) {
      std::fill(row, row + p_.E, T(0));
    } else if (nan) {
      std::fill(row, row + p_.E, kNaN);
    } else {
      call_.kernels.result_row(acc, T(1) / (sum * static_cast<T>(1 - p_.dropout)), p_.E, row);
    }
    if (!in_place) store_values(to_.out, offset, acc, p_.E);
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FORWARD_FORWARD_H_
