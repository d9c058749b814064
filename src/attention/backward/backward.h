// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_BACKWARD_H_
#define QKV_ATTENTION_BACKWARD_BACKWARD_H_

#include <algorithm>
#include <limits>

#include "attention/backward/gradient_block.h"
#include "attention/backward/query_preparation.h"
#include "core/integers.h"

// The fused backward pass of attention, from out and lse alone (Dao et al. 2022, appendix B.2).
// Step 1 computes, for each query,
//   delta = dout . out + sum_j w_j dweights_j - dlse
// Step 2 is one sweep over the keys, whose tasks are blocks of keys
// (attention/backward/gradient_block.h). Besides the results, memory holds a few numbers per query,
// copies of inputs that are not stored as T, and sums that cannot be accumulated in the result
// itself.
namespace qkv::attn {

using core::MeasuringArena;

// The backward pass of one call: step 1 (QueryPreparation), step 2 (FusedGradientBlock), then sums
// over the rows that share an element of a gradient. FusedGradientCall holds its shared memory.
template <class T>
class FusedBackward {
 public:
  // `most_entries`: the largest number of batch entries that one run_entries() gets.
  FusedBackward(const Problem& p, const GradientSources& from, const GradientResults& to,
                kernels::Target target, const AdditiveScores<T>* additive = nullptr,
                Index most_entries = std::numeric_limits<Index>::max())
      : p_(p), from_(from), to_(to), x_(p, from, to, target, additive, most_entries) {}

  template <class AnyArena>
  void take_shared(AnyArena& arena);
  std::size_t worker_bytes() const;
  void run(runtime::Call& call) {
    start(call);
    if (to_.weight_sums.given()) {
      x_.go_to(0);
      return prepare({0, p_.B}, call);
    }
    run_entries(call, {0, p_.B});
    finish();
  }
  // Alternative to run(): start(), then run_entries() for all entries in ascending order, at most
  // `most_entries` at a time, then finish(). Results are bit-identical however entries are divided.
  void start(runtime::Call& call);
  void run_entries(runtime::Call& call, const Entries& entries);
  void finish() {
    x_.own.deliver(x_.dot.stop);
    captured_.deliver(to_.captured, x_.dot.stop);
  }
  // Requests row_live and key_live, which gradients of input transforms need, and with `sums_v`
  // also v_sums. To be called before memory is taken.
  void ask_for_maps(bool sums_v) {
    x_.tells_live = true;
    x_.sums_v = sums_v;
  }
  // The shared state. After run_entries() it holds the results that ask_for_maps() requested, of
  // the entries that were run.
  const FusedGradientCall<T>& call() const { return x_; }

 private:
  // Whether `rows` (dk or dv) must be summed and are first stored per key head, to be summed after
  // the sweep: if sequences are packed, or the rows have at most kLittle elements or at most twice
  // as many as q and dout together. False without queries.
  bool sums_rows_later(const GradientRows<T>& rows, Index width) const;
  // Number of key heads that one task processes one after another because they add to the same
  // elements of a gradient.
  Index units_of_task() const;
  // Calls f(b, h, block of queries, arena) in parallel, each call a task.
  template <class F>
  void for_each_query_block(const Entries& entries, runtime::Call& call, const F& f);
  template <class Tasks, class F>
  void for_each_unit_block(runtime::Call& call, const Tasks& tasks, const F& f);
  void prepare(const Entries& entries, runtime::Call& call);
  void key_blocks(const Entries& entries, runtime::Call& call);
  void sum_up(const Entries& entries, runtime::Call& call);
  void add_query_sums(const Entries& entries);

  const Problem& p_;
  const GradientSources& from_;
  const GradientResults& to_;
  FusedGradientCall<T> x_;
  UnitBlock units_;
  expressions::CapturedGradients captured_;
};

// ---- memory ---------------------------------------------------------------------------------

template <class T>
template <class AnyArena>
void FusedBackward<T>::take_shared(AnyArena& arena) {
  const auto take = [&]<class V>(V*& to, Index n) { to = arena.template take<V>(n).data(); };
  const Index queries = x_.query_places.count(x_.entries);
  x_.q.take(arena, x_.entries);
  x_.dout.take(arena, x_.entries);
  take(x_.lse, queries);
  take(x_.factor, queries);
  take(x_.delta, queries);
  if (to_.alibi.given()) take(x_.alibi_rows, queries);
  if (x_.sums_bias_rows()) take(x_.bias_rows, queries);
  if (to_.sinks.given()) take(x_.sink_sums, x_.blocks());
  take(x_.finite, x_.blocks());
  if (x_.sums_captured()) x_.captured_order = runtime::TaskOrder::take(arena, 1);
  if (x_.lists_rows()) take(x_.listed, from_.dweights.count);
  take(x_.key_blocks, x_.blocks());
  if (x_.tells_live) {
    take(x_.row_live, queries);
    take(x_.key_live, x_.key_places.count(x_.entries));
  }
  if (x_.sums_v) take(x_.v_sums, x_.key_block_count() * x_.width());
  x_.order = runtime::TaskOrder::take(arena, x_.blocks());
  if (to_.q.given() && !x_.dq.is_in_place()) x_.dq.take(arena, x_.entries);
  if (sums_rows_later(x_.dk, x_.width())) x_.dk.take(arena, x_.entries);
  if (sums_rows_later(x_.dv, p_.E)) x_.dv.take(arena, x_.entries);
  x_.own.take(arena, [&](const GradientTarget& target) {
    if (&target == &to_.q) return x_.dq.is_summed();
    if (&target == &to_.k) return x_.dk.is_summed();
    if (&target == &to_.v) return x_.dv.is_summed();
    return true;
  });
  if (p_.packed()) units_ = UnitBlock::take(arena);
}

template <class T>
std::size_t FusedBackward<T>::worker_bytes() const {
  MeasuringArena queries;
  const QueryPreparation<T> preparation(x_, queries);
  const BlockScores<T> scores(x_.dot, queries);
  MeasuringArena keys;
  const FusedGradientBlock<T> block(x_, keys);
  return std::max(queries.bytes(), keys.bytes());
}

// ---- the pass -------------------------------------------------------------------------------

template <class T>
void FusedBackward<T>::start(runtime::Call& call) {
  take_shared(call.shared());
  x_.call = &call;
  x_.dot.stop = call.stop_point();
  if (x_.sums_captured()) {
    x_.captured = expressions::CapturedGradients(p_.mods, to_.captured);
    captured_ = x_.captured;
    captured_.start();
  }
  x_.own.clear(x_.dot.stop, [&](const GradientTarget& target) {
    return &target != &to_.bias || !x_.stores_bias();
  });
  if (x_.lists_rows()) {
    const Index count = from_.dweights.count;
    for (Index n = 0; n < count; ++n) x_.listed[n] = n;
    std::sort(x_.listed, x_.listed + count, [&](Index a, Index b) {
      const Index query_a = x_.query_of_row(a);
      const Index query_b = x_.query_of_row(b);
      return query_a != query_b ? query_a < query_b : a < b;
    });
  }
}

template <class T>
void FusedBackward<T>::run_entries(runtime::Call& call, const Entries& entries) {
  x_.go_to(entries.begin);
  prepare(entries, call);
  key_blocks(entries, call);
  sum_up(entries, call);
}

// Step 1.
template <class T>
void FusedBackward<T>::prepare(const Entries& entries, runtime::Call& call) {
  for_each_query_block(entries, call, [&](Index b, Index h, Index block, core::Arena& arena) {
    QueryPreparation<T>(x_, arena).run(b, h, block, arena);
  });
}

template <class T>
bool FusedBackward<T>::sums_rows_later(const GradientRows<T>& rows, Index width) const {
  if (!rows.given() || !rows.is_summed() || p_.q_rows == 0) return false;
  if (p_.packed()) return true;  // packed: dk or dv may be a sum over several heads of the call
  constexpr double kLittle = 1 << 24;
  const auto product = [](Index a, Index b, Index c, Index d) {
    return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c) *
           static_cast<double>(d);
  };
  return product(x_.entries, p_.G, p_.k_rows, width) <=
         std::max(kLittle, 2 * product(x_.entries, p_.H, p_.q_rows, x_.width() + p_.E));
}

template <class T>
Index FusedBackward<T>::units_of_task() const {
  Index units = 1;
  const auto together = [&](const GradientRows<T>& rows, Index width) {
    if (!rows.given() || !rows.is_summed() || sums_rows_later(rows, width)) return;
    units = std::max(units, rows.units_sharing());
  };
  together(x_.dk, x_.width());
  together(x_.dv, p_.E);
  if (x_.sums_bias_keys()) units = std::max(units, units_sharing(p_, to_.bias));
  return units;
}

template <class T>
template <class F>
void FusedBackward<T>::for_each_query_block(const Entries& entries, runtime::Call& call,
                                            const F& f) {
  const auto run = [&](const KeyUnit& unit, Index task, core::Arena& arena) {
    const Index blocks = core::divide_up(unit.s.Tq, kGradientBlock);
    f(unit.b, unit.first_head + task / blocks, task % blocks, arena);
  };
  const auto tasks_of = [](const KeyUnit& unit) {
    return unit.heads * core::divide_up(unit.s.Tq, kGradientBlock);
  };
  if (p_.packed()) {
    return for_each_unit_block(call, tasks_of,
                               [&](const KeyUnit& unit, Index, Index task, core::Arena& arena) {
                                 run(unit, task, arena);
                               });
  }
  if (p_.Tq == 0 || unit_count(p_) == 0) return;  // no tasks, and G may be 0
  const Index tasks = tasks_of(key_unit(p_, 0));
  call.for_each_task(entries.size() * p_.G * tasks, [&](Index task, core::Arena& arena) {
    run(key_unit(p_, entries.begin * p_.G + task / tasks), task % tasks, arena);
  });
}

// Calls f(unit, n, task, arena) for each of the tasks(unit) tasks of all units of packed sequences.
// There may be many sequences, of very different lengths.
template <class T>
template <class Tasks, class F>
void FusedBackward<T>::for_each_unit_block(runtime::Call& call, const Tasks& tasks, const F& f) {
  const auto nothing = [](const KeyUnit&) { return Index{0}; };
  for (Index begin = 0; units_.next(p_, begin, unit_count(p_), 0, nothing); begin = units_.end()) {
    units_.for_each_task(p_, call, tasks, f);
  }
}

template <class T>
void FusedBackward<T>::key_blocks(const Entries& entries, runtime::Call& call) {
  const auto blocks_of = [](const KeyUnit& unit) {
    return core::divide_up(unit.s.Tk, kGradientBlock);
  };
  if (p_.packed()) {
    return for_each_unit_block(call, blocks_of,
                               [&](const KeyUnit& unit, Index, Index block, core::Arena& arena) {
                                 FusedGradientBlock<T>(x_, arena).run(unit, block, captured_, 0);
                               });
  }
  const Index blocks = core::divide_up(p_.Tk, kGradientBlock);
  const auto fills = [](const GradientRows<T>& rows) { return rows.given() && !rows.is_summed(); };
  if (blocks == 0 || unit_count(p_) == 0) return;
  if (p_.q_rows == 0 && !fills(x_.dk) && !fills(x_.dv)) return;
  const Index units = entries.size() * p_.G;
  const Index together = std::min(units_of_task(), units);
  if (x_.sums_captured()) x_.captured_order.begin(0, 0);
  call.for_each_task(units / together * blocks, [&](Index task, core::Arena& arena) {
    FusedGradientBlock<T> block(x_, arena);
    const Index first = entries.begin * p_.G + task / blocks * together;
    for (Index unit = first; unit < first + together; ++unit) {
      const Index number = task * together + unit - first;
      if (!block.run(key_unit(p_, unit), task % blocks, captured_, number)) return;
    }
  });
}

// ---- after the sweep ------------------------------------------------------------------------

template <class T>
void FusedBackward<T>::sum_up(const Entries& entries, runtime::Call& call) {
  if (to_.q.given() && !x_.dq.is_in_place() && !x_.dq.is_summed()) {
    for_each_query_block(entries, call, [&](Index b, Index h, Index block, core::Arena&) {
      const Sequence s = p_.sequence(b);
      const Index i0 = block * kGradientBlock;
      for (Index i = i0; i < std::min(s.Tq, i0 + kGradientBlock); ++i) {
        x_.dot.stop();
        x_.dq.deliver(b, h, s.q0 + i);
      }
    });
  }
  const auto add_all = [&](const GradientRows<T>& rows, bool keys) {
    rows.add_all_to(x_.own, keys, entries, x_.dot.stop);
  };
  if (to_.q.given() && x_.dq.is_summed()) add_all(x_.dq, false);
  if (sums_rows_later(x_.dk, x_.width())) add_all(x_.dk, true);
  if (sums_rows_later(x_.dv, p_.E)) add_all(x_.dv, true);
  add_query_sums(entries);
}

// Adds alibi_rows, summed in blocks of queries, to dalibi, and sink_sums to dsinks. If all keys
// share the bias, adds bias_rows to dbias.
template <class T>
void FusedBackward<T>::add_query_sums(const Entries& entries) {
  if (p_.q_rows == 0) return;
  for (Index b = entries.begin; b < entries.end; ++b) {
    const Sequence s = p_.sequence(b);
    for (Index h = 0; h < p_.H; ++h) {
      x_.dot.stop();
      T alibi(0);
      T sinks(0);
      for (Index i0 = 0; i0 < s.Tq; i0 += kGradientBlock) {
        x_.dot.stop();
        if (to_.sinks.given()) sinks += x_.sink_sums[x_.block_of(b, h, s, i0 / kGradientBlock)];
        const Index place = x_.query_places.of(b, h, s.q0 + i0);
        T block(0);
        for (Index r = 0; r < std::min(kGradientBlock, s.Tq - i0); ++r) {
          if (to_.alibi.given()) block += x_.alibi_rows[place + r];
          if (x_.sums_bias_rows()) *x_.own.at(to_.bias, b, h, i0 + r, 0) += x_.bias_rows[place + r];
        }
        alibi += block;
      }
      if (to_.alibi.given()) *x_.own.at(to_.alibi, b, h, 0, 0) += alibi;
      if (to_.sinks.given()) *x_.own.at(to_.sinks, b, h, 0, 0) += sinks;
    }
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_BACKWARD_H_
