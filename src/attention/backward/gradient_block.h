// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_GRADIENT_BLOCK_H_
#define QKV_ATTENTION_BACKWARD_GRADIENT_BLOCK_H_

#include "attention/backward/additive_products.h"
#include "attention/backward/elementwise_products.h"
#include "core/integers.h"

namespace qkv::attn {

// Step 2 of the backward pass (backward.h) for one block of 128 keys, which is combined with one
// block of queries of its unit after another. Scores and weights are recomputed. dk and dv of the
// keys are summed here; the keys' parts of dq are added to the shared rows of dq in task order.
//   s = q k^T, dw = dout v^T, w = exp(s - lse), ds = w (dw - delta)
//   dv += w^T dout, dk += ds^T q, dq += ds k (dot products; for the additive score see
//   attention/backward/additive_products.h)
// Each task has an object of its own.
template <class T>
class FusedGradientBlock {
 public:
  template <class AnyArena>
  FusedGradientBlock(const FusedGradientCall<T>& call, AnyArena& arena)
      : call_(call),
        pairs_(call, arena),
        keys_(call, arena),
        queries_(call, arena),
        scores_(call, arena),
        elementwise_(call, arena),
        additive_(call, arena) {}

  // Processes the block of keys that starts at key block * kGradientBlock of a unit. `number` is
  // the index of this run in the order in which runs add gradients of captured arrays to
  // `captured`. Returns false if another task has failed.
  bool run(const KeyUnit& unit, Index block, expressions::CapturedGradients& captured,
           Index number) {
    pairs_.start(unit, block);
    keys_.start(pairs_.keys);
    scores_.options().start(unit, pairs_.keys.first(), pairs_.keys.count());
    additive_.start(pairs_.keys);
    for (Index h = unit.first_head; h < unit.first_head + unit.heads; ++h) {
      const KeyRange* const live_blocks = call_.key_blocks + call_.block_of(unit.b, h, unit.s, 0);
      for (Index n = 0; n < core::divide_up(unit.s.Tq, kGradientBlock); ++n) {
        if (block < live_blocks[n].begin || block >= live_blocks[n].end) continue;
        if (pairs_.go_to(h, n)) add_products();
        if (!queries_.deliver(pairs_, scores_.options())) return false;
      }
    }
    keys_.finish(pairs_.keys);
    return scores_.options().deliver(captured, number);
  }

 private:
  // Adds the products of one block of queries with the keys.
  void add_products() {
    scores_.compute(pairs_);
    if (call_.to.q.given()) queries_.start(pairs_.queries.count());
    if (additive_.are_needed()) additive_.add(pairs_, scores_, queries_, keys_);
    if (pairs_.need_elementwise()) {
      if (call_.multiplies_queries()) elementwise_.add(pairs_, scores_, queries_);
      elementwise_.add(pairs_, scores_, keys_);
    } else {
      if (call_.multiplies_queries()) queries_.add(pairs_, scores_);
      keys_.add(pairs_, scores_);
    }
  }

  const FusedGradientCall<T>& call_;
  GradientPairs<T> pairs_;
  KeyGradients<T> keys_;
  QueryGradients<T> queries_;
  GradientScores<T> scores_;
  ElementwiseProducts<T> elementwise_;
  AdditiveProducts<T> additive_;
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_GRADIENT_BLOCK_H_
