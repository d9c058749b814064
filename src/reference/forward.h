// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_FORWARD_H_
#define QKV_REFERENCE_FORWARD_H_

#include <algorithm>
#include <cmath>

#include "core/integers.h"
#include "core/results.h"
#include "core/stop.h"
#include "reference/columns.h"
#include "reference/row.h"
#include "reference/softmax.h"

// Computes out_i = sum_j softmax_j(s_ij) z_ij v_j (z_ij is the factor of dropout) and every other
// result, in plain loops.
namespace qkv::reference {

using core::ResultOperand;
using core::Results;
using core::RowsResult;

// The number of queries of one task, which changes no bit of the results.
inline constexpr Index kQueriesPerTask = 32;

template <class T>
void put(const Problem& p, const ResultOperand& to, Index b, Index h, Index row, Index col,
         const T& value) {
  const Index entry = core::batch_offset(to, p.batch, b);
  core::store(to.dtype, to.data, core::offset_of(to, entry, h, row, col), value);
}

template <class T>
class Forward {
 public:
  // `products` must be Products::kPlain unless multiplies_bfloat16(p).
  Forward(const Problem& p, const Results& results, Products products = Products::kPlain)
      : p_(p), to_(results), products_(products), columns_(p, results.columns, results.pooled) {}

  template <class AnyArena>
  void take_shared(AnyArena& arena) {
    x_ = take_prepared<T>(p_, arena);
    x_.products = products_;
    columns_.take_shared(arena);
  }
  std::size_t worker_bytes() const {
    MeasuringArena arena;
    take_worker(arena);
    return std::max({arena.bytes(), columns_.worker_bytes(), prepare_scratch<T>(p_)});
  }

  // Computes the results. `call` has the shared memory that take_shared() takes, and runs tasks
  // (runtime/tasks.h).
  template <class Call>
  void run(Call& call) {
    take_shared(call.shared());
    x_.stop = call.stop_point();
    prepare(p_, x_, call);
    const Index blocks = core::divide_up(p_.Tq, kQueriesPerTask);
    call.for_each_task(p_.B * p_.H * blocks, [&](Index task, core::Arena& arena) {
      const Index head = task / blocks;
      queries(head / p_.H, head % p_.H, task % blocks * kQueriesPerTask, arena);
    });
    for (const RowsResult* m : to_.matrices()) {
      if (!m->given() || !m->indices.given()) continue;
      call.for_each_task(p_.B * p_.H * m->count, [&](Index task, core::Arena& arena) {
        const Index head = task / m->count;
        listed_row(head / p_.H, head % p_.H, *m, task % m->count, arena);
      });
    }
    columns_.run(call, x_);
  }

 private:
  struct Worker {
    Row<T> row;
    std::uint8_t* kept = nullptr;  // [Tk]: 1, or 0 if the weight is dropped
    T* acc = nullptr;              // [E]: the weighted sum of values
    T* chunk_acc = nullptr;        // [E]: the sum of one chunk
    RowSums<T> sums;
    Index* top_keys = nullptr;  // [Tk]: the unmasked keys, largest weight first
    T* top_weights = nullptr;   // [Tk]: weights by key, of unmasked keys only
  };

  template <class AnyArena>
  Worker take_worker(AnyArena& arena) const {
    Worker w;
    w.row = Row<T>::take(arena, p_.Tk);
    w.kept = arena.template take<std::uint8_t>(p_.Tk).data();
    w.acc = arena.template take<T>(p_.E).data();
    w.chunk_acc = arena.template take<T>(p_.E).data();
    T* chains = arena.template take<T>(RowSums<T>::scratch(products_, p_.E)).data();
    w.sums = RowSums<T>(products_, chains, p_.E);
    const Index top = to_.top.count > 0 ? p_.Tk : 0;
    w.top_keys = arena.template take<Index>(top).data();
    w.top_weights = arena.template take<T>(top).data();
    return w;
  }

  // Processes one query: its scores, the softmax, and the weighted sum into w.acc. The state stored
  // for attention_step() is without the sink, the returned state with it.
  Softmax<T> process(const QueryAt& at, Worker& w) const {
    const Sequence s = p_.sequence(at.b);
    score_row(p_, x_, at, 0, s.Tk, false, w.row);
    dropout_row(p_, at, 0, s.Tk, w.kept);
    WeightedSum<T> values;
    if (to_.out.given() || to_.state.acc.given())
      values = {x_.value_of(p_, at.b, at.h), w.kept, p_.E, w.acc, w.chunk_acc, w.sums};
    Softmax<T> state = load_state(at, s.q0 + at.i, values);
    continue_softmax(scores(w.row), values, x_.stop, state);
    if (to_.state.given()) store_state(at, s.q0 + at.i, state, values);
    if (p_.sinks.given()) add_sink(parameter<T>(p_.sinks, at.h, 0, 0), state, values);
    return state;
  }

  // Returns the softmax state before the call's keys: empty, or the state that attention_step()
  // continues. Writes its weighted sum to values.acc.
  Softmax<T> load_state(const QueryAt& at, Index row, const WeightedSum<T>& values) const {
    Softmax<T> state;
    std::fill_n(values.acc, values.width, T(0));
    const core::StateResult& from = to_.state;
    if (!from.given()) return state;
    const auto get = [&](const ResultOperand& x, Index col) {
      const Index entry = core::batch_offset(x, p_.batch, at.b);
      return core::load<T>(x.dtype, x.data, core::offset_of(x, entry, at.h, row, col));
    };
    state.max = get(from.max, 0);
    state.sum = get(from.sum, 0);
    state.nan = std::isnan(real_part(state.sum));
    state.empty = real_part(state.max) == -kInfinity<T> && real_part(state.sum) == 0;
    for (Index c = 0; c < values.width; ++c) values.acc[c] = get(from.acc, c);
    return state;
  }
  void store_state(const QueryAt& at, Index row, const Softmax<T>& state,
                   const WeightedSum<T>& values) const {
    const core::StateResult& to = to_.state;
    put(p_, to.max, at.b, at.h, row, 0, state.max);
    put(p_, to.sum, at.b, at.h, row, 0, state.nan ? T(kNaN<T>) : state.sum);
    for (Index c = 0; c < values.width; ++c) put(p_, to.acc, at.b, at.h, row, c, values.acc[c]);
  }

  Scores<T> scores(const Row<T>& row) const { return {row.s, row.live, row.count, p_.key_chunk}; }

  QueryAt query_at(Index b, Index h, Index i) const {
    return {b, h, i, p_.diagonal_offset(b, p_.sequence(b))};
  }

  void queries(Index b, Index h, Index i0, core::Arena& arena) const {
    Worker w = take_worker(arena);
    const Sequence s = p_.sequence(b);
    for (Index i = i0; i < std::min(s.Tq, i0 + kQueriesPerTask); ++i) {
      x_.stop();
      const QueryAt at = query_at(b, h, i);
      const Softmax<T> state = process(at, w);
      write_row(at, s.q0 + i, state, w);
      for (const RowsResult* m : to_.matrices()) {
        if (m->given() && !m->indices.given()) write_matrix_row(at, *m, i, state, w);
      }
      if (to_.top.count > 0) write_top(at, s.q0 + i, state, w);
    }
  }

  void write_row(const QueryAt& at, Index row, const Softmax<T>& state, const Worker& w) const {
    if (to_.out.given()) {
      const T norm = RealOf<T>(1) / (state.sum * static_cast<RealOf<T>>(1 - p_.dropout));
      for (Index c = 0; c < p_.E; ++c) {
        const T value = state.empty ? T(0) : state.nan ? T(kNaN<T>) : w.acc[c] * norm;
        put(p_, to_.out, at.b, at.h, row, c, value);
      }
    }
    if (to_.lse.given()) put(p_, to_.lse, at.b, at.h, row, 0, log_sum_exp(state));
    if (to_.row_max.given()) {
      put(p_, to_.row_max, at.b, at.h, row, 0, state.nan ? T(kNaN<T>) : state.max);
    }
    if (to_.entropy.given()) {
      put(p_, to_.entropy, at.b, at.h, row, 0, entropy(scores(w.row), state));
    }
    columns_.store_state(at.b, at.h, row, state);
  }

  // Writes row `to_row` of matrix `m` from the query that process() put into `w` last.
  void write_matrix_row(const QueryAt& at, const RowsResult& m, Index to_row,
                        const Softmax<T>& state, const Worker& w) const {
    const RealOf<T> keep = static_cast<RealOf<T>>(1 - p_.dropout);
    for (Index n = 0; n < w.row.count; ++n) {
      T value(0);
      if (&m == &to_.weights) {
        value = weight(scores(w.row), state, n);
      } else if (&m == &to_.dropped_weights) {
        value = w.kept[n] ? weight(scores(w.row), state, n) / keep : T(0);
      } else if (&m == &to_.raw_scores) {
        value = w.row.raw[n];
      } else if (&m == &to_.capped_scores) {
        value = w.row.capped[n];
      } else {
        value = w.row.live[n] ? w.row.s[n] : T(-kInfinity<T>);
      }
      put(p_, m.matrix, at.b, at.h, to_row, n, value);
    }
  }

  void listed_row(Index b, Index h, const RowsResult& m, Index r, core::Arena& arena) const {
    Worker w = take_worker(arena);
    const QueryAt at = query_at(
        b, h, core::load<Index>(m.indices.dtype, m.indices.data, r * m.indices.row_stride));
    const Softmax<T> state = process(at, w);
    write_matrix_row(at, m, r, state, w);
  }

  // Writes the largest weights of a query; of equal weights the lower key comes first.
  void write_top(const QueryAt& at, Index row, const Softmax<T>& state, const Worker& w) const {
    Index found = 0;
    for (Index n = 0; n < w.row.count && !state.nan; ++n) {
      if (!w.row.live[n]) continue;
      w.top_weights[n] = weight(scores(w.row), state, n);
      w.top_keys[found++] = n;
    }
    std::sort(w.top_keys, w.top_keys + found, [&](Index a, Index b) {
      const auto x = real_part(w.top_weights[a]);
      const auto y = real_part(w.top_weights[b]);
      return x > y || (x == y && a < b);
    });
    for (Index r = 0; r < to_.top.count; ++r) {
      const T none = state.nan ? T(kNaN<T>) : T(0);
      put(p_, to_.top.weights, at.b, at.h, row, r, r < found ? w.top_weights[w.top_keys[r]] : none);
      put(p_, to_.top.keys, at.b, at.h, row, r, r < found ? w.top_keys[r] : Index{-1});
    }
  }

  const Problem& p_;
  const Results& to_;
  const Products products_;
  Prepared<T> x_;
  Columns<T> columns_;
};

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_FORWARD_H_
