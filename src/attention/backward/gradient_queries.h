// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_GRADIENT_QUERIES_H_
#define QKV_ATTENTION_BACKWARD_GRADIENT_QUERIES_H_

#include <algorithm>

#include "attention/backward/gradient_call.h"
#include "core/integers.h"

namespace qkv::attn {

// The block of up to 128 queries that step 2 (backward.h) combines with a block of keys: its place
// and its rows of q and dout, which lie in the inputs or in memory that all tasks share. Products
// of BF16 read words of two channels of these rows, but sums over queries read words of two rows,
// which this object holds.
template <class T>
class GradientQueries {
 public:
  template <class AnyArena>
  GradientQueries(const FusedGradientCall<T>& call, AnyArena& arena) : call_(call) {
    if (!call.dot.in_words) return;
    q_words_ = arena.template take<T>(kGradientBlock / 2 * call.p.Dk).data();
    dout_words_ = arena.template take<T>(kGradientBlock / 2 * call.p.E).data();
  }

  // Moves to the queries of a unit.
  void start(const KeyUnit& unit) {
    unit_ = unit;
    offset_ = call_.p.diagonal_offset(unit.b, unit.s);
  }
  // Moves to the block of queries that starts at query block * kGradientBlock of head h;
  // find_rows() sets its rows.
  void go_to(Index h, Index block) {
    h_ = h;
    first_ = block * kGradientBlock;
    count_ = std::min(kGradientBlock, unit_.s.Tq - first_);
    place_ = call_.block_of(unit_.b, h, unit_.s, block);
  }
  void find_rows() {
    q_ = call_.q.from(unit_.b, h_, row());
    if (call_.dout.given()) dout_ = call_.dout.from(unit_.b, h_, row());
    state_ = call_.state_of(call_.query_places.of(unit_.b, h_, row()));
    if (call_.dot.in_words) join_rows();
  }

  Index head() const { return h_; }
  // The row of q and dout that holds the block's first query.
  Index row() const { return unit_.s.q0 + first_; }
  Index count() const { return count_; }
  // Index of this block among all blocks of queries of the call.
  Index place() const { return place_; }
  QueryAt at(Index r) const { return {unit_.b, h_, first_ + r, offset_}; }
  // Whether the head has an r-th query after the block's first, in this block or a later one.
  bool reaches(Index r) const { return first_ + r < unit_.s.Tq; }

  // Rows of q for the scores and of dout for dw, from row r on; with products of BF16, words of
  // their channels.
  RowsOf<const T> q(Index r) const { return {q_.data + r * q_.stride, q_.stride}; }
  RowsOf<const T> dout(Index r) const { return {dout_.data + r * dout_.stride, dout_.stride}; }
  // All rows for sums over queries; with products of BF16, words of two rows.
  RowsOf<const T> q_for_query_sums() const {
    return call_.dot.in_words ? RowsOf<const T>{q_words_, call_.p.Dk} : q_;
  }
  RowsOf<const T> dout_for_query_sums() const {
    return call_.dot.in_words ? RowsOf<const T>{dout_words_, call_.p.E} : dout_;
  }
  // lse, factor and delta of the rows from r on.
  kernels::QueryState<T> state(Index r) const {
    return {state_.lse + r, state_.factor + r, state_.delta + r};
  }

  // The rows divided into tiles of kTileRows.
  Index tiles() const { return core::divide_up(count_, kTileRows); }
  Index tile_begin(Index t) const { return t * kTileRows; }
  Index tile_end(Index t) const { return std::min(count_, (t + 1) * kTileRows); }

 private:
  void join_rows() {
    const auto pair = [&](const RowsOf<const T>& rows, Index width, T* to) {
      call_.dot.stop();
      call_.dot.kernels.join_values({rows.data, DType::kBFloat16, 2 * rows.stride}, count_, width,
                                    {to, width});
    };
    if (call_.sums_values()) pair(dout_, call_.p.E, dout_words_);
    if (call_.multiplies_keys()) pair(q_, call_.p.Dk, q_words_);
  }

  const FusedGradientCall<T>& call_;
  KeyUnit unit_;
  Index offset_ = 0;  // of the diagonal j = i + offset
  Index h_ = 0;
  Index first_ = 0;
  Index count_ = 0;
  Index place_ = 0;
  RowsOf<const T> q_, dout_;
  kernels::QueryState<T> state_;
  T* q_words_ = nullptr;     // [pairs of queries][Dk]
  T* dout_words_ = nullptr;  // [pairs of queries][E]
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_GRADIENT_QUERIES_H_
