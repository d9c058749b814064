// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_QUERY_ROWS_H_
#define QKV_ATTENTION_TILES_QUERY_ROWS_H_

#include <algorithm>

#include "attention/tiles/call.h"
#include "core/arena.h"
#include "core/integers.h"

namespace qkv::attn {

// One query row of a block.
struct QueryRow {
  QueryAt at;
  KeyRange live;  // keys that interval masks let the row attend to
  ExponentialForm form =
      ExponentialForm::kSmall;  // form of its exponentials, for the additive score
};

// The queries of a block (up to kBlockRows rows of the query heads that share a key head): the
// place of each row, the keys that interval masks allow it, and its channels, copied [rows][Dk] or
// read in place. A block's work begins with QueryRows, in the forward pass and in all passes that
// recompute scores.
template <class T>
class QueryRows {
 public:
  template <class AnyArena>
  QueryRows(const FusedCall<T>& call, AnyArena& arena) : call_(call), p_(call.p) {
    rows_ = arena.template take<QueryRow>(kBlockRows).data();
    copies_ = arena.template take<T>(kBlockRows * p_.Dk).data();
  }

  // Starts a unit; add() then appends its rows.
  void start(const KeyUnit& unit) {
    unit_ = unit;
    offset_ = p_.diagonal_offset(unit.b, unit.s);
    entry_ = core::batch_offset(p_.q, p_.batch, unit.b);
    channels_ = {copies_, p_.Dk};
    clear();
  }
  // Starts a unit with rows n0 .. n0 + count - 1 of its queries.
  void start(const KeyUnit& unit, Index n0, Index count) {
    start(unit);
    if (count == 0) return;
    Index h = unit.first_head + n0 / unit.s.Tq;
    Index i = n0 % unit.s.Tq;
    const bool in_place = i + count <= unit.s.Tq && are_close();
    if (in_place) {
      const Index offset = core::offset_of(p_.q, entry_, h, unit.s.q0 + i, 0);
      channels_ = {static_cast<const T*>(p_.q.data) + offset, p_.q.row_stride};
    }
    for (Index r = 0; r < count; ++r) {
      if (!in_place) copy(h, i);
      place(h, i);
      if (++i < unit.s.Tq) continue;
      i = 0;
      ++h;
    }
  }
  void clear() {
    count_ = 0;
    live_ = {unit_.s.Tk, 0};
  }
  // Appends query i of head h; its channels are copied.
  void add(Index h, Index i) {
    copy(h, i);
    place(h, i);
  }

  const KeyUnit& unit() const { return unit_; }
  Index count() const { return count_; }
  const QueryRow& operator[](Index r) const { return rows_[r]; }
  // The keys that interval masks allow at least one row.
  const KeyRange& live() const { return live_; }
  // The channels of the rows from r on.
  RowsOf<const T> channels(Index r) const {
    return {channels_.data + r * channels_.stride, channels_.stride};
  }

  // The number of tiles of kTileRows rows. Tile t has the rows tile_begin(t) .. tile_end(t) - 1.
  Index tiles() const { return core::divide_up(count_, kTileRows); }
  Index tile_begin(Index t) const { return t * kTileRows; }
  Index tile_end(Index t) const { return std::min(count_, (t + 1) * kTileRows); }

 private:
  // Whether the rows of one head are read in place: they lie about as close together as copies
  // would.
  bool are_close() const {
    return !call_.in_words && p_.q.dtype == dtype_of<T> && p_.q.col_stride == 1 &&
           p_.q.row_stride >= p_.Dk && p_.q.row_stride <= 2 * p_.Dk;
  }
  // Copies a query's channels to those of the next row of the block.
  void copy(Index h, Index i) {
    call_.stop();
    const Index offset = core::offset_of(p_.q, entry_, h, unit_.s.q0 + i, 0);
    T* to = copies_ + count_ * p_.Dk;
    if (call_.in_words && p_.q.col_stride != 1) {
      join_channels(p_.q, offset, p_.Dk, to);
    } else if (is_readable<T>(p_.q)) {
      call_.kernels.widen(stored_rows(p_.q, offset), 1, call_.score_width(), {to, p_.Dk});
    } else {
      load_values(p_.q, offset, p_.q.col_stride, call_.score_width(), to);
    }
  }
  void place(Index h, Index i) {
    QueryRow& row = rows_[count_++];
    row.at = {unit_.b, h, i, offset_};
    row.form = call_.additive == nullptr
                   ? ExponentialForm::kSmall
                   : call_.additive->of_queries(unit_.b, h, unit_.s.q0 + i, 1);
    if (p_.masks.empty()) {
      // Assigned one by one: gcc 12 would otherwise store two numbers and load them back as one
      // vector, which stalls.
      row.live.begin = live_.begin = 0;
      row.live.end = live_.end = unit_.s.Tk;
      return;
    }
    row.live = live_range(p_, row.at, unit_.s.Tk);
    if (row.live.empty()) return;
    live_ = {std::min(live_.begin, row.live.begin), std::max(live_.end, row.live.end)};
  }

  const FusedCall<T>& call_;
  const Problem& p_;
  KeyUnit unit_;
  Index offset_ = 0;  // of the diagonal j = i + offset
  Index entry_ = 0;   // offset of the unit's batch entry in q, in elements
  Index count_ = 0;
  KeyRange live_;
  QueryRow* rows_ = nullptr;
  T* copies_ = nullptr;       // [rows][Dk]
  RowsOf<const T> channels_;  // the copies, or the rows of q in place
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_QUERY_ROWS_H_
