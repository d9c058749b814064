// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_BACKWARD_H_
#define QKV_ATTENTION_FUSED_BACKWARD_H_

#include <cmath>

#include "attention/fused/block_scores.h"
#include "attention/fused/gradient_block.h"
#include "core/weight_factor.h"

// The fused backward pass of attention, from out and lse alone (Dao et al. 2022, appendix B.2).
// First what each query needs besides them:
//   delta = dout . out + sum_j w_j dweights_j - dlse
// then one sweep: a task is a block of keys (attention/fused/gradient_block.h). Memory besides the
// results is a few numbers per query, copies of inputs not stored as T, and sums that cannot be
// accumulated in the result itself.
namespace qkv::attn {

using core::MeasuringArena;

template <class T>
class FusedBackward {
 public:
  FusedBackward(const Problem& p, const GradientSources& from, const GradientResults& to,
                kernels::Target target, const AdditiveScores<T>* additive = nullptr)
      : p_(p), from_(from), to_(to), x_(p, from, to, target, additive) {}

  template <class AnyArena>
  void take_shared(AnyArena& arena);
  std::size_t worker_bytes() const;
  void run(runtime::Call& call);
  // For scores with row maps; called before memory is taken. `sums_v`: requests v_sums.
  void ask_for_maps(bool sums_v) {
    x_.tells_live = true;
    x_.sums_v = sums_v;
  }
  // Afterwards: the results requested above.
  const FusedGradientCall<T>& call() const { return x_; }

 private:
  struct Worker {
    T* out = nullptr;      // a block of rows of out
    T* weights = nullptr;  // of a chunk of keys
    T* dweights = nullptr;
    T* spare = nullptr;
  };
  template <class AnyArena>
  Worker take_worker(AnyArena& arena) const {
    Worker w;
    w.out = arena.template take<T>(kGradientBlock * p_.E).data();
    w.weights = arena.template take<T>(kKeyChunk).data();
    w.dweights = arena.template take<T>(kKeyChunk).data();
    w.spare = arena.template take<T>(2 * kKeyChunk).data();
    return w;
  }
  // What a query needs to know of its keys.
  struct RowFacts {
    bool needed;
    bool any_live;
    double sum;  // sum_j exp(s_j - lse)
    T weighted;  // sum_j exp(s_j - lse) dweights_j
    T sink;      // exp(sink - lse)
  };
  // Whether storing the rows of dk or dv per key head, to be summed afterwards, is worth the
  // memory: no more than the queries take, or little.
  bool keeps_rows(const GradientRows<T>& rows, Index width) const;
  // Key heads that one task processes one after another, because they add to the same elements.
  Index units_of_task() const;
  // Calls f(b, h, block of queries, arena), one task each.
  template <class F>
  void for_each_query_block(runtime::Call& call, const F& f);

  void prepare_queries(Index b, Index h, Index block, core::Arena& arena);
  void look_at_keys(Index b, Index h, Index i0, Index rows, Worker& w, BlockScores<T>& scores,
                    RowFacts* facts) const;
  KeyRange live_blocks(QueryAt at, Index rows, Index Tk) const;
  bool needs_keys(Index h, Index i, T lse) const;
  void output_deltas(Index b, Index h, Index row, Index rows, Worker& w, T* delta) const;
  T sink_gradient(Index h, const RowFacts& facts, T factor, T delta) const;
  // Values [.., row] of (b, h) from row `row` on.
  struct RowValues {
    const Operand& x;
    Index first = 0;
    T operator[](Index r) const { return core::load<T>(x.dtype, x.data, first + r * x.row_stride); }
  };
  RowValues values_of(const Operand& x, Index b, Index h, Index row) const {
    return {x, core::offset_of(x, core::batch_offset(x, p_.batch, b), h, row, 0)};
  }
  T own_value(const Operand& x, Index b, Index h, Index row) const {
    return values_of(x, b, h, row)[0];
  }
  template <class Tasks, class F>
  void for_each_wave(runtime::Call& call, const Tasks& tasks, const F& f);
  void key_blocks(runtime::Call& call);
  void sum_up(runtime::Call& call);
  void add_rows(const GradientRows<T>& rows, bool keys);
  void add_query_sums();

  const Problem& p_;
  const GradientSources& from_;
  const GradientResults& to_;
  FusedGradientCall<T> x_;
  Wave wave_;
};

// ---- memory ---------------------------------------------------------------------------------

template <class T>
template <class AnyArena>
void FusedBackward<T>::take_shared(AnyArena& arena) {
  const auto take = [&]<class V>(V*& to, Index n) { to = arena.template take<V>(n).data(); };
  const Index queries = x_.query_places.count(p_.B);
  x_.q.take(arena);
  x_.dout.take(arena);
  take(x_.lse, queries);
  take(x_.factor, queries);
  take(x_.delta, queries);
  if (to_.alibi.given()) take(x_.alibi_rows, queries);
  if (x_.sums_bias_rows()) take(x_.bias_rows, queries);
  if (to_.sinks.given()) take(x_.sink_sums, x_.blocks());
  take(x_.finite, x_.blocks());
  if (x_.names_rows()) take(x_.named, from_.dweights.count);
  take(x_.key_blocks, x_.blocks());
  if (x_.tells_live) {
    take(x_.row_live, queries);
    take(x_.key_live, RowPlaces::of_keys(p_).count(p_.B));
  }
  if (x_.sums_v) take(x_.v_sums, x_.key_block_count() * x_.width());
  x_.turns = runtime::Turns::take(arena, x_.blocks());
  if (to_.q.given() && !x_.dq.is_in_place()) x_.dq.take(arena);
  if (keeps_rows(x_.dk, x_.width())) x_.dk.take(arena);
  if (keeps_rows(x_.dv, p_.E)) x_.dv.take(arena);
  x_.own.take(arena, [&](const GradientTarget& target) {
    if (&target == &to_.q) return x_.dq.is_summed();
    if (&target == &to_.k) return x_.dk.is_summed();
    if (&target == &to_.v) return x_.dv.is_summed();
    return true;
  });
  if (p_.packed()) wave_ = Wave::take(arena);
}

template <class T>
std::size_t FusedBackward<T>::worker_bytes() const {
  MeasuringArena queries;
  take_worker(queries);
  BlockScores<T>(x_.dot, queries);
  MeasuringArena keys;
  FusedGradientBlock<T>(x_, keys);
  return std::max(queries.bytes(), keys.bytes());
}

// ---- the pass -------------------------------------------------------------------------------

template <class T>
void FusedBackward<T>::run(runtime::Call& call) {
  take_shared(call.shared());
  x_.call = &call;
  x_.dot.stop = call.stop_point();
  x_.own.clear(x_.dot.stop, [&](const GradientTarget& target) {
    return &target != &to_.bias || !x_.stores_bias();
  });
  if (x_.names_rows()) {
    const Index count = from_.dweights.count;
    for (Index n = 0; n < count; ++n) x_.named[n] = n;
    std::sort(x_.named, x_.named + count, [&](Index a, Index b) {
      const Index query_a = x_.name_of_row(a);
      const Index query_b = x_.name_of_row(b);
      return query_a != query_b ? query_a < query_b : a < b;
    });
  }
  for_each_query_block(call, [&](Index b, Index h, Index block, core::Arena& arena) {
    prepare_queries(b, h, block, arena);
  });
  key_blocks(call);
  sum_up(call);
}

template <class T>
bool FusedBackward<T>::keeps_rows(const GradientRows<T>& rows, Index width) const {
  if (!rows.given() || !rows.is_summed() || p_.q_rows == 0) return false;
  if (p_.packed()) return true;  // one key head may be several's
  constexpr double kLittle = 1 << 24;
  const auto product = [](Index a, Index b, Index c, Index d) {
    return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c) *
           static_cast<double>(d);
  };
  return product(p_.B, p_.G, p_.k_rows, width) <=
         std::max(kLittle, 2 * product(p_.B, p_.H, p_.q_rows, x_.width() + p_.E));
}

template <class T>
Index FusedBackward<T>::units_of_task() const {
  Index units = 1;
  const auto together = [&](const GradientRows<T>& rows, Index width) {
    if (!rows.given() || !rows.is_summed() || keeps_rows(rows, width)) return;
    units = std::max(units, rows.units_sharing());
  };
  together(x_.dk, x_.width());
  together(x_.dv, p_.E);
  if (x_.sums_bias_keys()) units = std::max(units, units_sharing(p_, to_.bias));
  return units;
}

template <class T>
template <class F>
void FusedBackward<T>::for_each_query_block(runtime::Call& call, const F& f) {
  const auto run = [&](const KeyUnit& unit, Index task, core::Arena& arena) {
    const Index blocks = pieces(unit.s.Tq, kGradientBlock);
    f(unit.b, unit.first_head + task / blocks, task % blocks, arena);
  };
  const auto tasks_of = [](const KeyUnit& unit) {
    return unit.heads * pieces(unit.s.Tq, kGradientBlock);
  };
  if (p_.packed()) {
    return for_each_wave(call, tasks_of,
                         [&](const KeyUnit& unit, Index, Index task, core::Arena& arena) {
                           run(unit, task, arena);
                         });
  }
  if (p_.Tq == 0 || unit_count(p_) == 0) return;  // the other may be any number
  const Index tasks = tasks_of(key_unit(p_, 0));
  call.for_each_task(unit_count(p_) * tasks, [&](Index task, core::Arena& arena) {
    run(key_unit(p_, task / tasks), task % tasks, arena);
  });
}

// For packed sequences, which may be many and of very different lengths.
template <class T>
template <class Tasks, class F>
void FusedBackward<T>::for_each_wave(runtime::Call& call, const Tasks& tasks, const F& f) {
  const auto nothing = [](const KeyUnit&) { return Index{0}; };
  for (Index begin = 0; wave_.next(p_, begin, unit_count(p_), 0, nothing); begin = wave_.end()) {
    wave_.for_each_task(p_, call, tasks, f);
  }
}

template <class T>
void FusedBackward<T>::key_blocks(runtime::Call& call) {
  const auto blocks_of = [](const KeyUnit& unit) { return pieces(unit.s.Tk, kGradientBlock); };
  if (p_.packed()) {
    return for_each_wave(call, blocks_of,
                         [&](const KeyUnit& unit, Index, Index block, core::Arena& arena) {
                           FusedGradientBlock<T>(x_, arena).run(unit, block);
                         });
  }
  const Index blocks = pieces(p_.Tk, kGradientBlock);
  const auto fills = [](const GradientRows<T>& rows) { return rows.given() && !rows.is_summed(); };
  if (blocks == 0 || unit_count(p_) == 0) return;
  if (p_.q_rows == 0 && !fills(x_.dk) && !fills(x_.dv)) return;
  const Index together = units_of_task();
  call.for_each_task(unit_count(p_) / together * blocks, [&](Index task, core::Arena& arena) {
    FusedGradientBlock<T> block(x_, arena);
    const Index first = task / blocks * together;
    for (Index unit = first; unit < first + together; ++unit) {
      if (!block.run(key_unit(p_, unit), task % blocks)) return;
    }
  });
}

// ---- before the sweep -----------------------------------------------------------------------

template <class T>
void FusedBackward<T>::prepare_queries(Index b, Index h, Index block, core::Arena& arena) {
  const Sequence s = p_.sequence(b);
  const Index i0 = block * kGradientBlock;
  const Index rows = std::min(kGradientBlock, s.Tq - i0);
  if (rows <= 0) return;
  Worker w = take_worker(arena);
  RowFacts facts[kGradientBlock];
  const Index first = s.q0 + i0;
  const Index place = x_.query_places.of(b, h, first);
  T* lse = x_.lse + place;
  T* factor = x_.factor + place;
  T* delta = x_.delta + place;
  const RowValues own_lse = values_of(from_.lse, b, h, first);
  const RowsOf<const T> q = x_.q.from(b, h, first);
  const RowsOf<const T> dout = from_.dout.given() ? x_.dout.from(b, h, first) : RowsOf<const T>{};
  const auto is_finite = [&](const RowsOf<const T>& x, Index r, Index width) {
    return x_.kernels.all_finite(x.data + r * x.stride, x_.terms(width));
  };
  bool any_needed = false;
  std::uint8_t finite = 1;
  for (Index r = 0; r < rows; ++r) {
    x_.dot.stop();
    lse[r] = own_lse[r];
    const bool any_live = lse[r] != -std::numeric_limits<T>::infinity();
    facts[r] = {any_live && needs_keys(h, i0 + r, lse[r]), any_live, 0, T(0), T(0)};
    any_needed = any_needed || facts[r].needed;
    x_.q.copy(b, h, first + r);
    if (!is_finite(q, r, x_.dot.score_width())) finite = 0;
    delta[r] = T(0);
    if (!from_.dout.given()) continue;
    x_.dout.copy(b, h, first + r);
    if (!is_finite(dout, r, p_.E)) finite = 0;
  }
  if (any_needed) {
    BlockScores<T> scores(x_.dot, arena);
    look_at_keys(b, h, i0, rows, w, scores, facts);
  }
  if (from_.dout.given()) output_deltas(b, h, first, rows, w, delta);
  const RowsOf<T> dq = to_.q.given() ? x_.dq.from(b, h, first) : RowsOf<T>{};
  T sink_sum(0);
  for (Index r = 0; r < rows; ++r) {
    if (p_.sinks.given()) facts[r].sink = std::exp(own_value(p_.sinks, 0, h, 0) - lse[r]);
    factor[r] =
        facts[r].needed ? core::weight_factor(lse[r], facts[r].sum + double{facts[r].sink}) : T(1);
    if (!facts[r].any_live) delta[r] = T(0);  // whatever dout holds there
    if (x_.tells_live) x_.row_live[place + r] = static_cast<std::uint8_t>(facts[r].any_live);
    delta[r] += facts[r].weighted * factor[r];
    if (from_.dlse.given()) delta[r] -= own_value(from_.dlse, b, h, first + r);
    if (to_.sinks.given()) sink_sum += sink_gradient(h, facts[r], factor[r], delta[r]);
    if (to_.alibi.given()) x_.alibi_rows[place + r] = T(0);
    if (x_.sums_bias_rows()) x_.bias_rows[place + r] = T(0);
    if (to_.q.given()) std::fill_n(dq.data + r * dq.stride, x_.width(), T(0));
  }
  const Index of_block = x_.block_of(b, h, s, block);
  x_.finite[of_block] = finite;
  if (to_.sinks.given()) x_.sink_sums[of_block] = sink_sum;
  x_.key_blocks[of_block] = live_blocks({b, h, i0, p_.diagonal_offset(b, s)}, rows, s.Tk);
  x_.turns.begin(of_block, x_.key_blocks[of_block].begin);
}

// The range of key blocks that contains all live keys of the queries from `at` on, as far as
// interval masks tell.
template <class T>
KeyRange FusedBackward<T>::live_blocks(QueryAt at, Index rows, Index Tk) const {
  KeyRange keys{Tk, 0};
  if (p_.masks.empty()) keys = {0, Tk};
  for (const Index end = at.i + rows; !p_.masks.empty() && at.i < end; ++at.i) {
    const KeyRange live = live_range(p_, at, Tk);
    if (!live.empty()) keys = {std::min(keys.begin, live.begin), std::max(keys.end, live.end)};
  }
  if (keys.empty()) return {};
  return {std::max(keys.begin, Index{0}) / kGradientBlock,
          pieces(std::min(keys.end, Tk), kGradientBlock)};
}

// Whether lse alone is not enough for a query.
template <class T>
bool FusedBackward<T>::needs_keys(Index h, Index i, T lse) const {
  if (core::has_large_lse(lse) || x_.has_dweights(i)) return true;
  // Whether there are keys besides the sink.
  return p_.sinks.given() && (lse == own_value(p_.sinks, 0, h, 0) || !std::isfinite(lse));
}

// dout . out of some rows, summed in the order of the scores: if one weight is 1 and all others are
// 0, delta has the bits of dout . v, and the gradients of queries and keys are 0.
template <class T>
void FusedBackward<T>::output_deltas(Index b, Index h, Index row, Index rows, Worker& w,
                                     T* delta) const {
  const Operand& x = from_.out;
  const Index offset = core::offset_of(x, core::batch_offset(x, p_.batch, b), h, row, 0);
  RowsOf<const T> out{static_cast<const T*>(x.data) + offset, x.row_stride};
  if (x.dtype != dtype_of<T> || x.col_stride != 1) {
    for (Index r = 0; r < rows; ++r) {
      const Index at = offset + r * x.row_stride;
      if (x_.dot.pairs) {
        join_channels(x, at, p_.E, w.out + r * x_.terms(p_.E));
      } else {
        load_values(x, at, x.col_stride, p_.E, w.out + r * p_.E);
      }
    }
    out = {w.out, x_.terms(p_.E)};
  }
  x_.kernels.row_dots(x_.dout.from(b, h, row), out, rows, p_.E, delta);
}

// The sink is a score whose value is 0: dsink = w_sink (0 - delta).
template <class T>
T FusedBackward<T>::sink_gradient(Index h, const RowFacts& facts, T factor, T delta) const {
  const T sink = own_value(p_.sinks, 0, h, 0);
  if (sink == -std::numeric_limits<T>::infinity()) return T(0);
  if (!facts.any_live) return -delta;  // lse = sink: w_sink = 1
  return -(facts.sink * factor) * delta;
}

// Whether rows have live keys, and the sums of their weights and of weighted dweights, chunk by
// chunk.
template <class T>
void FusedBackward<T>::look_at_keys(Index b, Index h, Index i0, Index rows, Worker& w,
                                    BlockScores<T>& scores, RowFacts* facts) const {
  static_assert(kGradientBlock <= kBlockRows);
  const KeyUnit unit = key_unit(p_, b * p_.G + p_.key_head(h));
  const T* lse = x_.lse + x_.query_places.of(b, h, unit.s.q0 + i0);
  constexpr T kMasked = -std::numeric_limits<T>::infinity();
  scores.start(unit, nullptr);
  for (Index r = 0; r < rows; ++r) {
    scores.queries.add(h, i0 + r);
    if (facts[r].needed) facts[r].any_live = false;
  }
  for (Index j0 = 0; j0 < unit.s.Tk; j0 += p_.key_chunk) {
    const auto look = [&](Index r) {
      const KeyRange keys = scores.piece(r);
      if (keys.empty() || !facts[r].needed) return;
      scores.soft_cap(r);
      scores.change(r);
      const Index n = keys.end - keys.begin;
      T* s = scores.row(r) + keys.begin;
      facts[r].any_live =
          facts[r].any_live || std::any_of(s, s + n, [](T x) { return x != kMasked; });
      std::copy_n(s, n, w.weights);
      std::fill_n(w.dweights, n, T(0));
      x_.add_dweights(scores.queries[r].at, j0 + keys.begin,
                      std::min(n, unit.s.Tk - j0 - keys.begin), w.dweights, w.spare);
      const T zero(0);
      const T one(1);
      x_.kernels.score_gradients({w.weights, n}, {w.dweights, n}, 1, n, {lse + r, &one, &zero},
                                 one);
      facts[r].sum += x_.kernels.sum(w.weights, n);
      facts[r].weighted += x_.kernels.sum(w.dweights, n);
    };
    scores.for_each_group(j0, BlockScores<T>::Tiles::kLive, [&](Index first, Index count) {
      for (Index r = first; r < first + count; ++r) look(r);
    });
  }
}

// ---- after the sweep ------------------------------------------------------------------------

template <class T>
void FusedBackward<T>::sum_up(runtime::Call& call) {
  if (to_.q.given() && !x_.dq.is_in_place() && !x_.dq.is_summed()) {
    for_each_query_block(call, [&](Index b, Index h, Index block, core::Arena&) {
      const Sequence s = p_.sequence(b);
      const Index i0 = block * kGradientBlock;
      for (Index i = i0; i < std::min(s.Tq, i0 + kGradientBlock); ++i) {
        x_.dot.stop();
        x_.dq.deliver(b, h, s.q0 + i);
      }
    });
  }
  if (to_.q.given() && x_.dq.is_summed()) add_rows(x_.dq, false);
  if (keeps_rows(x_.dk, x_.width())) add_rows(x_.dk, true);
  if (keeps_rows(x_.dv, p_.E)) add_rows(x_.dv, true);
  add_query_sums();
  x_.own.deliver(x_.dot.stop);
}

// Sums over broadcast axes, over (b, head, row) in ascending order.
template <class T>
void FusedBackward<T>::add_rows(const GradientRows<T>& rows, bool keys) {
  if (p_.q_rows == 0 || p_.k_rows == 0) return;  // but B may be huge
  for (Index b = 0; b < p_.B; ++b) {
    const Sequence s = p_.sequence(b);
    const Index first = keys ? s.k0 : s.q0;
    const Index count = keys ? s.Tk : s.Tq;
    for (Index head = 0; head < (keys ? p_.G : p_.H); ++head) {
      x_.dot.stop();
      for (Index n = 0; n < count; ++n) {
        x_.dot.stop();
        rows.add_to(x_.own, b, head, first + n);
      }
    }
  }
}

// dalibi, dsinks, and a bias shared by all keys: over queries, blocks each from zero.
template <class T>
void FusedBackward<T>::add_query_sums() {
  if (p_.q_rows == 0) return;
  for (Index b = 0; b < p_.B; ++b) {
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

#endif  // QKV_ATTENTION_FUSED_BACKWARD_H_
