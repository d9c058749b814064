// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_ADDITIVE_PRODUCTS_H_
#define QKV_ATTENTION_BACKWARD_ADDITIVE_PRODUCTS_H_

#include <algorithm>

#include "attention/backward/additive_pairs.h"
#include "attention/backward/key_gradients.h"
#include "attention/backward/query_gradients.h"

namespace qkv::attn {

// Takes the place of the products ds k and ds^T q of step 2 (backward.h) if the score is additive:
// sums ds times the score's derivative over pairs, for dq, dk and the gradient of v.
template <class T>
class AdditiveProducts {
 public:
  template <class AnyArena>
  AdditiveProducts(const FusedGradientCall<T>& call, AnyArena& arena)
      : call_(call), g_(call.kernels) {
    if (call.dot.additive == nullptr) return;
    sums_ = AdditivePairs<T>(*call.dot.additive, arena);
    row_ = arena.template take<T>(call.width()).data();
  }

  // Whether the score is additive and some requested gradient needs ds.
  bool are_needed() const { return call_.dot.additive != nullptr && call_.needs_score_gradients(); }
  // Starts a block of keys, if the score is additive.
  void start(const GradientKeys<T>& keys);
  // Sets dq of a block of queries in query_gradients; adds its sums to dk in key_gradients and to
  // v_sums.
  void add(const GradientPairs<T>& pairs, const GradientScores<T>& scores,
           QueryGradients<T>& query_gradients, KeyGradients<T>& key_gradients);

 private:
  void sum_tile(const GradientPairs<T>& pairs, const GradientScores<T>& scores, Index column,
                Index t) const;
  void store_queries(const GradientPairs<T>& pairs, QueryGradients<T>& to) const;

  const FusedGradientCall<T>& call_;
  const kernels::GradientKernels<T>& g_;
  AdditivePairs<T> sums_;
  T* v_sums_ = nullptr;  // [units]: v_sums of the block of keys, in the call's memory
  T* row_ = nullptr;     // [units]
};

template <class T>
void AdditiveProducts<T>::start(const GradientKeys<T>& keys) {
  if (call_.dot.additive == nullptr) return;
  const KeyUnit& unit = keys.unit();
  sums_.load_keys(keys.rows(), keys.count(),
                  call_.dot.additive->of_keys(unit.b, unit.g, keys.row(), keys.count()));
  if (!call_.sums_v) return;
  v_sums_ = call_.v_sums + call_.key_block_of(unit, keys.block()) * call_.width();
  std::fill_n(v_sums_, call_.width(), T(0));
}

template <class T>
void AdditiveProducts<T>::add(const GradientPairs<T>& pairs, const GradientScores<T>& scores,
                              QueryGradients<T>& query_gradients, KeyGradients<T>& key_gradients) {
  const GradientQueries<T>& queries = pairs.queries;
  const Index units = call_.width();
  sums_.load_queries(queries.q(0), queries.count(),
                     call_.dot.additive->of_queries(pairs.keys.unit().b, queries.head(),
                                                    queries.row(), queries.count()));
  for (Index column = 0; column < sums_.columns(); ++column) {
    call_.dot.stop();
    for (Index t = 0; t < queries.tiles(); ++t) {
      if (pairs.is_live(t)) sum_tile(pairs, scores, column, t);
    }
  }
  if (call_.to.q.given()) store_queries(pairs, query_gradients);
  if (call_.sums_v) {
    sums_.v_sums(queries.count(), row_);
    g_.add(v_sums_, row_, units);
  }
  if (!call_.to.k.given()) return;
  for (Index n = 0; n < pairs.keys.count(); ++n) {
    sums_.right_sums(n, row_);
    g_.add(key_gradients.dk(n), row_, units);
  }
}

template <class T>
void AdditiveProducts<T>::sum_tile(const GradientPairs<T>& pairs, const GradientScores<T>& scores,
                                   Index column, Index t) const {
  const KeyRange keys = pairs.keys_of(t);
  const Index first = pairs.queries.tile_begin(t);
  const Index rows = pairs.queries.tile_end(t) - first;
  const Index end = std::min(keys.end, pairs.keys.count());
  if (!pairs.need_elementwise()) {
    sums_.add(column, first, rows, keys.begin, end - keys.begin,
              {scores.gradients(first) + keys.begin, kGradientStride});
    return;
  }
  // Sums unmasked pairs only, since 0 times NaN is NaN.
  for (Index r = first; r < first + rows; ++r) {
    const std::uint8_t* const live = pairs.live_pairs(r);
    for (Index n = keys.begin; n < end;) {
      const Index stop = std::find(live + n, live + end, std::uint8_t{0}) - live;
      if (n < stop) {
        sums_.add(column, r, 1, n, stop - n, {scores.gradients(r) + n, kGradientStride});
      }
      n = stop + 1;
    }
  }
}

template <class T>
void AdditiveProducts<T>::store_queries(const GradientPairs<T>& pairs,
                                        QueryGradients<T>& to) const {
  const AdditiveScores<T>& scores = *call_.dot.additive;
  const GradientQueries<T>& queries = pairs.queries;
  for (Index r = 0; r < queries.count(); ++r) {
    if (!pairs.is_live(r / kTileRows)) continue;
    sums_.left_sums(r, to.dq(r));
    // If the head's v is non-finite, need_elementwise() is true, so live_pairs(r) has been set.
    const KeyRange keys = pairs.keys_of(r / kTileRows);
    const std::uint8_t* const live = pairs.live_pairs(r);
    const bool any_live =
        !scores.is_non_finite(queries.head()) ||
        std::find(live + keys.begin, live + keys.end, std::uint8_t{1}) != live + keys.end;
    scores.multiply_by_v(queries.head(), any_live, g_, to.dq(r));
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_ADDITIVE_PRODUCTS_H_
