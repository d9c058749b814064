// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_QUERY_ROWS_H_
#define QKV_ATTENTION_TILES_QUERY_ROWS_H_

#include <algorithm>

#include "attention/tiles/call.h"
#include "core/arena.h"

namespace qkv::attn {

// One query of a block.
struct QueryRow {
  QueryAt at;
  KeyRange live;                // keys that interval masks let it see
  Range range = Range::kSmall;  // of the additive score
};

// The queries of a block, rows of one key head's heads: where they are, what they may see, and
// their channels, copied or read in place.
template <class T>
class QueryRows {
 public:
  template <class AnyArena>
  QueryRows(const FusedCall<T>& call, AnyArena& arena) : call_(call), p_(call.p) {
    rows_ = arena.template take<QueryRow>(kBlockRows).data();
    copies_ = arena.template take<T>(kBlockRows * p_.Dk).data();
  }

  // Starts without rows.
  void start(const KeyUnit& unit) {
    unit_ = unit;
    offset_ = p_.diagonal_offset(unit.b, unit.s);
    entry_ = core::batch_offset(p_.q, p_.batch, unit.b);
    channels_ = {copies_, p_.Dk};
    clear();
  }
  // Rows n0 .. n0 + count - 1 of a unit's queries.
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
  // One more, copied.
  void add(Index h, Index i) {
    copy(h, i);
    place(h, i);
  }

  const KeyUnit& unit() const { return unit_; }
  Index count() const { return count_; }
  const QueryRow& operator[](Index r) const { return rows_[r]; }
  // Keys that some row may see.
  const KeyRange& live() const { return live_; }
  // Channels of the rows from r on.
  RowsOf<const T> channels(Index r) const {
    return {channels_.data + r * channels_.stride, channels_.stride};
  }

  // kTileRows at a time.
  Index tiles() const { return pieces(count_, kTileRows); }
  Index tile_begin(Index t) const { return t * kTileRows; }
  Index tile_end(Index t) const { return std::min(count_, (t + 1) * kTileRows); }

 private:
  // Whether a block's rows of one head are read where they are: close together, as copied ones are.
  bool are_close() const {
    return !call_.pairs && p_.q.dtype == dtype_of<T> && p_.q.col_stride == 1 &&
           p_.q.row_stride >= p_.Dk && p_.q.row_stride <= 2 * p_.Dk;
  }
  // To the place of the next row.
  void copy(Index h, Index i) {
    call_.stop();
    const Index offset = core::offset_of(p_.q, entry_, h, unit_.s.q0 + i, 0);
    T* to = copies_ + count_ * p_.Dk;
    if (call_.pairs && p_.q.col_stride != 1) {
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
    row.range = call_.additive == nullptr
                    ? Range::kSmall
                    : call_.additive->of_queries(unit_.b, h, unit_.s.q0 + i, 1);
    if (p_.masks.empty()) {
      // Number by number: gcc 12 would write two and read them back as one, and wait for it.
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
  Index offset_ = 0;  // of the diagonal
  Index entry_ = 0;   // of the unit's batch entry in q
  Index count_ = 0;
  KeyRange live_;
  QueryRow* rows_ = nullptr;
  T* copies_ = nullptr;       // [rows][Dk]
  RowsOf<const T> channels_;  // these, or the rows of q where they are
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_QUERY_ROWS_H_
