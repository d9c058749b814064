// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FORWARD_BLOCK_H_
#define QKV_ATTENTION_FORWARD_BLOCK_H_

#include "attention/forward/value_sums.h"

namespace qkv::attn {

// A block of the forward pass (docs/performance.md#the-forward-pass): up to kBlockRows query rows
// of one key head against the keys, chunk by chunk and two tiles at a time: scores, softmax,
// weighted sum of values. The block's buffers hold scores, keys and values of at most one chunk;
// keys that the pass packed for all blocks (`packed`) are not in them.
template <class T>
class FusedBlock {
 public:
  template <class AnyArena>
  FusedBlock(const FusedCall<T>& call, AnyArena& arena)
      : scores(call, arena), state(call, arena), p_(call.p), values_(call, arena) {}

  // Restarts with rows n0 .. n0 + count - 1 of a unit's queries. `packed`: the unit's panels, or
  // null if they are packed when needed.
  void start(const KeyUnit& unit, const T* packed, Index n0, Index count) {
    scores.start(unit, packed, n0, count);
    values_.start(unit);
    state.clear_chunk();
  }
  const QueryRows<T>& queries() const { return scores.queries; }

  // Processes all chunks that have a live key; the merged softmax state is then in `state`. With
  // `continues`, continue_from() is called to set the state from which the first chunk continues.
  template <class Continue>
  void run(bool with_values, bool continues, const Continue& continue_from) {
    const Index step = p_.key_chunk;
    const KeyRange live = queries().live();
    const Index begin = live.begin / step * step;
    if (continues || live.empty() || live.end > begin + step) {
      state.reset(queries().count());
      if (continues) continue_from();
    } else {
      state.reset_for_one_chunk(queries().count());
    }
    for (Index j0 = begin; j0 < live.end; j0 += step) {
      chunk(j0, with_values,
            [&](Index first, Index rows) { state.absorb(first, rows, with_values); });
    }
    state.use_merged();
  }
  // Goes through the chunk at key j0, two tiles at a time: computes their softmax state over this
  // chunk in state.chunk, then calls use(first row, rows). If neither tile has a live key (a key
  // that masks allow some row), use is not called.
  template <class Use>
  void chunk(Index j0, bool with_values, const Use& use) {
    using Tiles = typename BlockScores<T>::Tiles;
    const core::HeadRows* const rows = with_values ? &values_.rows() : nullptr;
    if (!scores.begin_chunk(j0, Tiles::kLive, rows)) return;
    if (with_values) values_.begin_chunk(scores);
    for (Index t0 = 0; t0 < queries().tiles(); t0 += kTilesAtOnce) {
      const Index t1 = std::min(t0 + kTilesAtOnce, queries().tiles());
      const Index first = queries().tile_begin(t0);
      const Index count = queries().tile_end(t1 - 1) - first;
      scores.compute(t0, t1);
      state.begin_tiles(first);
      bool any_live = false;
      for (Index t = t0; t < t1; ++t) {
        state.weigh(scores, t);
        any_live = any_live || scores.tile(t).live_panels != 0;
      }
      if (!any_live) {
        state.skip_tiles(count);
        continue;
      }
      if (with_values) values_.sum(scores, state, t0, t1);
      use(first, count);
    }
  }

  BlockScores<T> scores;
  SoftmaxState<T> state;

 private:
  const Problem& p_;
  ValueSums<T> values_;
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FORWARD_BLOCK_H_
