// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FORWARD_ROW_STATES_H_
#define QKV_ATTENTION_FORWARD_ROW_STATES_H_

#include "attention/tiles/key_units.h"
#include "core/masks.h"

namespace qkv::attn {

using core::QueryAt;

// Softmax maximum and sum of every query row after the last chunk, sink included: two arrays
// [B,H,q_rows], for packed sequences [H,q_rows]. The forward pass writes them, and the passes that
// recompute scores (inspection.h, column_pass.h) read them. They are shared memory of the pass.
template <class T>
struct RowStates {
  T* max = nullptr;
  T* sum = nullptr;

  static Index count(const Problem& p) { return (p.packed() ? 1 : p.B) * p.H * p.q_rows; }
  template <class AnyArena>
  static RowStates take(AnyArena& arena, const Problem& p) {
    RowStates states;
    states.max = arena.template take<T>(count(p)).data();
    states.sum = arena.template take<T>(count(p)).data();
    return states;
  }
  static Index index(const Problem& p, const KeyUnit& unit, const QueryAt& at) {
    return ((p.packed() ? 0 : at.b) * p.H + at.h) * p.q_rows + unit.s.q0 + at.i;
  }
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FORWARD_ROW_STATES_H_
