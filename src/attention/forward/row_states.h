// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FORWARD_ROW_STATES_H_
#define QKV_ATTENTION_FORWARD_ROW_STATES_H_

#include "attention/tiles/key_units.h"
#include "core/masks.h"

namespace qkv::attn {

using core::QueryAt;

// Maximum and sum of every row's softmax, sink included: [B,H,q_rows], packed [H,q_rows].
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
