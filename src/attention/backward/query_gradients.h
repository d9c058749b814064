// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_QUERY_GRADIENTS_H_
#define QKV_ATTENTION_BACKWARD_QUERY_GRADIENTS_H_

#include <algorithm>

#include "attention/backward/gradient_scores.h"

namespace qkv::attn {

// The part of dq [queries][width] that one block of keys adds to a block of queries in step 2
// (backward.h): for dot products ds k, summed from zero over these keys. deliver() adds the part to
// the shared rows of dq. A live key, panel or tile has an unmasked query-key pair.
template <class T>
class QueryGradients {
 public:
  template <class AnyArena>
  QueryGradients(const FusedGradientCall<T>& call, AnyArena& arena)
      : call_(call), k_(call.dot.kernels), g_(call.kernels) {
    dq_ = arena.template take<T>(kGradientBlock * call.p.Dk).data();
  }

  // Sets the part of dq of a block of `rows` queries to zero.
  void start(Index rows) { std::fill_n(dq_, rows * call_.width(), T(0)); }
  // Adds the products with the keys, unless pairs.need_elementwise().
  void add(const GradientPairs<T>& pairs, const GradientScores<T>& scores);
  // The part of dq for query r of the block.
  T* dq(Index r) { return dq_ + r * call_.width(); }

  // Adds the part of dq and the sums of `options` to the shared rows of queries in task order: a
  // block of queries receives the blocks of keys in its range of FusedGradientCall::key_blocks in
  // ascending order, even blocks without unmasked pairs. Returns false if another task has failed.
  bool deliver(const GradientPairs<T>& pairs, const GradientOptions<T>& options) const;

 private:
  const FusedGradientCall<T>& call_;
  const kernels::DotKernels<T>& k_;
  const kernels::GradientKernels<T>& g_;
  T* dq_ = nullptr;  // [queries][width]
};

template <class T>
void QueryGradients<T>::add(const GradientPairs<T>& pairs, const GradientScores<T>& scores) {
  const GradientQueries<T>& queries = pairs.queries;
  const RowsOf<const T>& rows = pairs.keys.rows();
  const Index each = call_.dot.in_words ? 2 : 1;  // keys per row of pairs.keys.rows()
  const Index width = call_.p.Dk;
  for (Index t = 0; t < queries.tiles(); ++t) {
    if (!pairs.is_live(t)) continue;
    call_.dot.stop();
    const Index r = queries.tile_begin(t);
    const Index begin = pairs.keys_of(t).begin;
    const Index end = pairs.end_of(t);
    // Tiles with the same keys are summed in one call.
    while (call_.dot.products != Products::kDot2 && t + 1 < queries.tiles() &&
           pairs.has_same_panels(t, t + 1) && pairs.end_of(t + 1) == end) {
      ++t;
    }
    // With products of BF16 the words of non-finite keys are zeros; else the sum skips these
    // keys.
    const bool goes_around = pairs.keys.have_non_finite() && !call_.dot.in_words;
    for (Index n = begin; n < end; ++n) {
      const Index non_finite = goes_around ? pairs.keys.next_non_finite(n, end) : end;
      if (n < non_finite) {
        k_.weighted_sum(scores.gradients_for_key_sums(r, n), queries.tile_end(t) - r,
                        {rows.data + n / each * rows.stride, rows.stride}, non_finite - n, width,
                        {dq_ + r * width, width});
      }
      n = non_finite;
    }
  }
}

template <class T>
bool QueryGradients<T>::deliver(const GradientPairs<T>& pairs,
                                const GradientOptions<T>& options) const {
  if (!call_.adds_to_queries()) return true;
  const GradientQueries<T>& queries = pairs.queries;
  const KeyUnit& unit = pairs.keys.unit();
  if (!call_.order.wait(*call_.call, queries.place(), pairs.keys.block())) return false;
  for (Index t = 0; t < queries.tiles(); ++t) {
    if (!pairs.is_live(t)) continue;
    const Index first = call_.query_places.of(unit.b, queries.head(), queries.row());
    for (Index r = queries.tile_begin(t); r < queries.tile_end(t); ++r) {
      if (call_.to.alibi.given()) call_.alibi_rows[first + r] += options.alibi_sum(r);
      if (call_.sums_bias_rows()) call_.bias_rows[first + r] += options.bias_sum(r);
    }
    if (!call_.to.q.given()) continue;
    call_.dot.stop();
    const RowsOf<T> to = call_.dq.from(unit.b, queries.head(), queries.row());
    for (Index r = queries.tile_begin(t); r < queries.tile_end(t); ++r) {
      g_.add(to.data + r * to.stride, dq_ + r * call_.width(), call_.width());
    }
  }
  call_.order.pass_on(queries.place(), pairs.keys.block());
  return true;
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_QUERY_GRADIENTS_H_
