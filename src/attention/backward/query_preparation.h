// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_QUERY_PREPARATION_H_
#define QKV_ATTENTION_BACKWARD_QUERY_PREPARATION_H_

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/backward/gradient_call.h"
#include "attention/tiles/block_scores.h"
#include "core/integers.h"
#include "core/weight_factor.h"

namespace qkv::attn {

// Step 1 of the backward pass (backward.h), before the sweep over keys. It computes for each query
//   delta = dout . out + sum_j w_j dweights_j - dlse
// and the factor of its weights (core/weight_factor.h), and finds whether the query has an unmasked
// key. A task is a block of queries; results go to the shared arrays of FusedGradientCall.
template <class T>
class QueryPreparation {
 public:
  template <class AnyArena>
  QueryPreparation(const FusedGradientCall<T>& call, AnyArena& arena) : call_(call), p_(call.p) {
    const auto take = [&](Index n) { return arena.template take<T>(n).data(); };
    out_ = take(kGradientBlock * p_.E);
    weights_ = take(kKeyChunk);
    dweights_ = take(kKeyChunk);
    spare_ = take(2 * kKeyChunk);
  }

  // Prepares the block of queries that starts at query block * kGradientBlock of head h. `arena` is
  // for BlockScores, if scores are needed.
  void run(Index b, Index h, Index block, core::Arena& arena);

 private:
  struct RowFacts {
    bool needed;    // whether look_at_keys() reads the row's keys
    bool any_live;  // whether the row has an unmasked key
    double sum;     // sum_j exp(s_j - lse)
    T weighted;     // sum_j exp(s_j - lse) dweights_j
    T sink;         // exp(sink - lse)
  };
  void look_at_keys(Index b, Index h, Index i0, Index rows, BlockScores<T>& scores,
                    RowFacts* facts) const;
  KeyRange live_blocks(QueryAt at, Index rows, Index Tk) const;
  bool needs_keys(Index h, Index i, T lse) const;
  void output_deltas(Index b, Index h, Index row, Index rows, T* delta) const;
  T sink_gradient(Index h, const RowFacts& facts, T factor, T delta) const;

  // The elements of an operand that has one per query row: those of (b, h) from row `row` on.
  struct RowValues {
    const Operand& x;
    Index first = 0;
    T operator[](Index r) const { return core::load<T>(x.dtype, x.data, first + r * x.row_stride); }
  };
  RowValues values_of(const Operand& x, Index b, Index h, Index row) const {
    return {x, core::offset_of(x, core::batch_offset(x, p_.batch, b), h, row, 0)};
  }
  T value_of(const Operand& x, Index b, Index h, Index row) const {
    return values_of(x, b, h, row)[0];
  }
  double weight_sum(const Operand& x, Index b, Index h, Index row) const {
    const Index entry = core::batch_offset(x, p_.batch, b);
    return core::load<double>(x.dtype, x.data, core::offset_of(x, entry, h, row, 0));
  }

  const FusedGradientCall<T>& call_;
  const Problem& p_;
  T* out_ = nullptr;      // [kGradientBlock][E]: rows of out
  T* weights_ = nullptr;  // [kKeyChunk]: of one row in one chunk
  T* dweights_ = nullptr;
  T* spare_ = nullptr;
};

template <class T>
void QueryPreparation<T>::run(Index b, Index h, Index block, core::Arena& arena) {
  const Sequence s = p_.sequence(b);
  const Index i0 = block * kGradientBlock;
  const Index rows = std::min(kGradientBlock, s.Tq - i0);
  if (rows <= 0) return;
  RowFacts facts[kGradientBlock];
  const Index first = s.q0 + i0;
  const Index place = call_.query_places.of(b, h, first);
  T* lse = call_.lse + place;
  T* factor = call_.factor + place;
  T* delta = call_.delta + place;
  const RowValues given_lse = values_of(call_.from.lse, b, h, first);
  const RowsOf<const T> q = call_.q.from(b, h, first);
  const RowsOf<const T> dout =
      call_.from.dout.given() ? call_.dout.from(b, h, first) : RowsOf<const T>{};
  const auto is_finite = [&](const RowsOf<const T>& x, Index r, Index width) {
    return call_.kernels.all_finite(x.data + r * x.stride, call_.terms(width));
  };
  bool any_needed = false;
  const core::ResultOperand& to_sums = call_.to.weight_sums;
  const Operand before{to_sums.data,        to_sums.dtype,      to_sums.batch_strides,
                       to_sums.head_stride, to_sums.row_stride, to_sums.col_stride};
  std::uint8_t finite = 1;
  for (Index r = 0; r < rows; ++r) {
    call_.dot.stop();
    lse[r] = given_lse[r];
    const bool any_live = lse[r] != -std::numeric_limits<T>::infinity();
    facts[r] = {any_live && needs_keys(h, i0 + r, lse[r]), any_live, 0, T(0), T(0)};
    const Operand& sums = call_.to.weight_sums.given() ? before : call_.from.weight_sums;
    if (sums.given()) facts[r].sum = weight_sum(sums, b, h, first + r);
    any_needed = any_needed || facts[r].needed;
    call_.q.copy(b, h, first + r);
    if (!is_finite(q, r, call_.dot.score_width())) finite = 0;
    delta[r] = T(0);
    if (!call_.from.dout.given()) continue;
    call_.dout.copy(b, h, first + r);
    if (!is_finite(dout, r, p_.E)) finite = 0;
  }
  if (any_needed) {
    BlockScores<T> scores(call_.dot, arena);
    look_at_keys(b, h, i0, rows, scores, facts);
  }
  if (to_sums.given()) {
    for (Index r = 0; r < rows; ++r) {
      const Index entry = core::batch_offset(to_sums, p_.batch, b);
      core::store(to_sums.dtype, to_sums.data, core::offset_of(to_sums, entry, h, first + r, 0),
                  facts[r].sum);
    }
    return;
  }
  if (call_.from.dout.given()) output_deltas(b, h, first, rows, delta);
  const RowsOf<T> dq = call_.to.q.given() ? call_.dq.from(b, h, first) : RowsOf<T>{};
  T sink_sum(0);
  for (Index r = 0; r < rows; ++r) {
    if (p_.sinks.given()) facts[r].sink = core::weight_exp(value_of(p_.sinks, 0, h, 0) - lse[r]);
    const bool knows_sum = facts[r].needed || call_.from.weight_sums.given();
    factor[r] =
        knows_sum ? core::weight_factor(lse[r], facts[r].sum + double{facts[r].sink}) : T(1);
    if (!facts[r].any_live) delta[r] = T(0);  // even if dout is non-finite there
    if (call_.tells_live) call_.row_live[place + r] = static_cast<std::uint8_t>(facts[r].any_live);
    delta[r] += facts[r].weighted * factor[r];
    if (call_.from.dlse.given()) delta[r] -= value_of(call_.from.dlse, b, h, first + r);
    if (call_.to.sinks.given()) sink_sum += sink_gradient(h, facts[r], factor[r], delta[r]);
    if (call_.to.alibi.given()) call_.alibi_rows[place + r] = T(0);
    if (call_.sums_bias_rows()) call_.bias_rows[place + r] = T(0);
    if (call_.to.q.given() && !call_.dq.continues()) {
      std::fill_n(dq.data + r * dq.stride, call_.width(), T(0));
    }
  }
  const Index of_block = call_.block_of(b, h, s, block);
  call_.finite[of_block] = finite;
  if (call_.to.sinks.given()) call_.sink_sums[of_block] = sink_sum;
  call_.key_blocks[of_block] = live_blocks({b, h, i0, p_.diagonal_offset(b, s)}, rows, s.Tk);
  call_.order.begin(of_block, call_.key_blocks[of_block].begin);
}

// The range of key blocks that contains all keys which interval masks allow the `rows` queries from
// `at` on.
template <class T>
KeyRange QueryPreparation<T>::live_blocks(QueryAt at, Index rows, Index Tk) const {
  KeyRange keys{Tk, 0};
  if (p_.masks.empty()) keys = {0, Tk};
  for (const Index end = at.i + rows; !p_.masks.empty() && at.i < end; ++at.i) {
    const KeyRange live = live_range(p_, at, Tk);
    if (!live.empty()) keys = {std::min(keys.begin, live.begin), std::max(keys.end, live.end)};
  }
  if (keys.empty()) return {};
  return {std::max(keys.begin, Index{0}) / kGradientBlock,
          core::divide_up(std::min(keys.end, Tk), kGradientBlock)};
}

// Whether the keys of a query have to be read because lse alone is not enough. A call with only a
// part of the row's keys cannot sum all weights of the row.
template <class T>
bool QueryPreparation<T>::needs_keys(Index h, Index i, T lse) const {
  if (call_.to.weight_sums.given()) return core::has_large_lse(lse);
  if (p_.has_part_of_keys() || call_.from.weight_sums.given()) return false;
  if (core::has_large_lse(lse) || call_.has_dweights(i)) return true;
  // lse may come from the sink alone.
  return p_.sinks.given() && (lse == value_of(p_.sinks, 0, h, 0) || !std::isfinite(lse));
}

// Computes dout . out of some rows, summing channels in the order of the scores: if one weight is 1
// and all others are 0, delta is bit-identical to dout . v, and the gradients of queries and keys
// are 0.
template <class T>
void QueryPreparation<T>::output_deltas(Index b, Index h, Index row, Index rows, T* delta) const {
  const Operand& x = call_.from.out;
  const Index offset = core::offset_of(x, core::batch_offset(x, p_.batch, b), h, row, 0);
  RowsOf<const T> out{static_cast<const T*>(x.data) + offset, x.row_stride};
  if (x.dtype != dtype_of<T> || x.col_stride != 1) {
    for (Index r = 0; r < rows; ++r) {
      const Index at = offset + r * x.row_stride;
      if (call_.dot.in_words) {
        join_channels(x, at, p_.E, out_ + r * call_.terms(p_.E));
      } else {
        load_values(x, at, x.col_stride, p_.E, out_ + r * p_.E);
      }
    }
    out = {out_, call_.terms(p_.E)};
  }
  call_.kernels.row_dots(call_.dout.from(b, h, row), out, rows, p_.E, delta);
}

// Gradient of the sink, a score whose value is 0: dsink = w_sink (0 - delta).
template <class T>
T QueryPreparation<T>::sink_gradient(Index h, const RowFacts& facts, T factor, T delta) const {
  const T sink = value_of(p_.sinks, 0, h, 0);
  if (sink == -std::numeric_limits<T>::infinity()) return T(0);
  if (!facts.any_live) return -delta;  // lse = sink: w_sink = 1
  return -(facts.sink * factor) * delta;
}

// For rows that are `needed`: finds whether they have unmasked keys, and sums exp(s_j - lse) and
// exp(s_j - lse) dweights_j over the keys, chunk by chunk.
template <class T>
void QueryPreparation<T>::look_at_keys(Index b, Index h, Index i0, Index rows,
                                       BlockScores<T>& scores, RowFacts* facts) const {
  static_assert(kGradientBlock <= kBlockRows);
  const KeyUnit unit = key_unit(p_, b * p_.G + p_.key_head(h));
  const T* lse = call_.lse + call_.query_places.of(b, h, unit.s.q0 + i0);
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
      std::copy_n(s, n, weights_);
      std::fill_n(dweights_, n, T(0));
      call_.add_dweights(scores.queries[r].at, j0 + keys.begin,
                         std::min(n, unit.s.Tk - j0 - keys.begin), dweights_, spare_);
      const T zero(0);
      const T one(1);
      call_.kernels.score_gradients({weights_, n}, {dweights_, n}, 1, n, {lse + r, &one, &zero},
                                    one);
      facts[r].sum += call_.kernels.sum(weights_, n);
      facts[r].weighted += call_.kernels.sum(dweights_, n);
    };
    scores.go_through(j0, BlockScores<T>::Tiles::kLive, [&](Index first, Index count) {
      for (Index r = first; r < first + count; ++r) look(r);
    });
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_QUERY_PREPARATION_H_
