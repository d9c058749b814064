// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_ROWMAPS_INPUT_ROWS_H_
#define QKV_ATTENTION_ROWMAPS_INPUT_ROWS_H_

#include <cstdint>

#include "attention/rowmaps/row_angles.h"
#include "attention/rowmaps/row_product.h"
#include "core/head_rows.h"
#include "core/integers.h"
#include "reference/row_maps.h"

// The rows of q or of k, and the rows that input transforms (norm, RoPE rotation, projection)
// compute from them.
namespace qkv::attn {

// Returns an operand for the array that `places` indexes, C-ordered, with rows of `width` elements.
// `data` is the address of batch entry 0, present or not (see origin()).
template <class T, class Void = const void>
core::BasicOperand<Void> rows_operand(const Problem& p, const RowPlaces& places, Index width,
                                      T* data) {
  core::BasicOperand<Void> x;
  x.data = data;
  x.dtype = dtype_of<std::remove_const_t<T>>;
  x.col_stride = 1;
  x.row_stride = width;
  x.head_stride = places.rows * width;
  Index stride = places.heads * x.head_stride;
  for (int axis = 0; axis < p.batch.rank(); ++axis) x.batch_strides.push_back(0);
  for (int axis = p.batch.rank() - 1; axis >= 0 && !places.packed; --axis) {
    x.batch_strides[axis] = stride;
    stride *= p.batch[axis];
  }
  return x;
}

// The address that entry 0 would have in an array whose first entry is places.first. Only rows of
// the array are accessed. The address is computed as an integer, since no pointer may lie before
// its array.
template <class T>
T* origin(T* rows, const RowPlaces& places, Index width) {
  if (places.packed || places.first == 0) return rows;
  const Index before = places.first * places.heads * places.rows * width;
  const auto address = reinterpret_cast<std::uintptr_t>(rows);
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<T*>(address - static_cast<std::uintptr_t>(before) * sizeof(T));
}

// Calls f(b, head, first row, number of rows, arena) in parallel for blocks of rows that cover all
// heads of the entries. For packed sequences, which are not divided by entries, b is entries.begin
// and rows are numbered through all sequences.
template <class F>
void for_each_row_block(runtime::Call& call, const RowPlaces& places, const Entries& entries,
                        const F& f) {
  const Index blocks = core::divide_up(places.rows, kProductRows);
  call.for_each_task(places.entries(entries.size()) * places.heads * blocks,
                     [&](Index task, core::Arena& arena) {
                       const Index entry_head = task / blocks;
                       const Index row = task % blocks * kProductRows;
                       f(entries.begin + entry_head / places.heads, entry_head % places.heads, row,
                         std::min(kProductRows, places.rows - row), arena);
                     });
}

template <class T>
struct InputRows {
  const Problem& p;
  const Operand& x;
  const core::RowMaps& maps;
  RowPlaces places;  // of the transformed rows
  Index heads = 0;   // number of heads of x
  Index width = 0;
  bool are_keys = false;
  RowAngles<T> angles;

  static InputRows of_queries(const Problem& p) {
    const RowPlaces places = RowPlaces::of_queries(p);
    return {p,   p.q,  p.query_maps, places,
            p.H, p.Dq, false,        RowAngles<T>(p, p.query_maps, places, false)};
  }
  // A projection makes one row per query head.
  static InputRows of_keys(const Problem& p) {
    RowPlaces places = RowPlaces::of_keys(p);
    if (p.key_maps.product.given()) places.heads = p.H;
    return {p, p.k, p.key_maps, places, p.G, p.Dk, true, RowAngles<T>(p, p.key_maps, places, true)};
  }

  Index mapped_width() const { return maps.width(width); }
  Index count() const { return count(p.B); }
  Index count(Index entries) const { return places.count(entries); }
  RowProduct<T> product() const { return RowProduct<T>::forward(maps.product, p.H, width); }
  // The range of rows of batch entry or sequence b.
  SequenceRows of_sequence(Index b) const { return rows_of_sequence(p, are_keys, b); }
  // The head of x from which head `head` of places is computed.
  Index input_head(Index head) const { return head * heads / places.heads; }
  reference::RowAt<T> at(Index b, Index head, Index row) const {
    return {.b = b, .head = input_head(head), .row = row, .angles = angles.of(b, row)};
  }
  // `count` rows from (b, head, row) on, where `head` is one of places.heads, each a run of
  // contiguous T: in place, rows x.row_stride apart, if x is stored so; else copied to `copy`.
  RowsOf<const T> plain(Index b, Index head, Index row, Index count, T* copy) const {
    const core::HeadRows rows(p, x, b, input_head(head), 0);
    if (x.dtype == dtype_of<T> && x.col_stride == 1 && rows.run(row, count) == count) {
      return {static_cast<const T*>(x.data) + rows.offset(row), x.row_stride};
    }
    for (Index r = 0; r < count; ++r) {
      load_values(x, rows.offset(row + r), x.col_stride, width, copy + r * width);
    }
    return {copy, width};
  }
  // The rows of plain() after the transforms that preserve the width (norm, rotation).
  RowsOf<const T> changed(Index b, Index head, Index row, Index count, T* copy) const {
    const RowsOf<const T> rows = plain(b, head, row, count, copy);
    if (maps.maps().empty()) return rows;
    for (Index r = 0; r < count; ++r) {
      T* one = copy + r * width;
      if (rows.data != copy) std::copy_n(rows.data + r * rows.stride, width, one);
      reference::change_row(maps.maps(), at(b, head, row + r), width, one);
    }
    return {copy, width};
  }

  // The buffers of a task for a block of rows.
  struct Block {
    T* copy = nullptr;  // [kProductRows][width]: input rows, then changed in place
    T* made = nullptr;  // [kProductRows][padded_units]: projected rows; empty without projection
  };
  template <class AnyArena>
  Block take_block(AnyArena& arena, Index padded_units) const {
    return {arena.template take<T>(kProductRows * width).data(),
            arena.template take<T>(kProductRows * padded_units).data()};
  }
  std::size_t worker_bytes(Index padded_units) const {
    core::MeasuringArena arena;
    take_block(arena, padded_units);
    return arena.bytes();
  }
  // Calls use(b, head, first row, count, rows) for each block of rows of the entries, where `rows`
  // (RowsOf) are its `count` transformed rows. `by` is product(), on which pack() has been called.
  template <class Use>
  void make(const FusedCall<T>& tools, const RowProduct<T>& by, const Entries& entries,
            runtime::Call& call, const Use& use) const {
    const Index units = by.padded_units();
    for_each_row_block(call, places, entries,
                       [&](Index b, Index h, Index row, Index count, core::Arena& arena) {
                         // An entry with keys in pages may have fewer keys than the longest.
                         if (x.in_pages()) count = std::min(count, of_sequence(b).count - row);
                         if (count <= 0) return;
                         const Block w = take_block(arena, units);
                         RowsOf<const T> rows = changed(b, h, row, count, w.copy);
                         if (by.given()) {
                           by.apply(tools, h, rows, count, {w.made, units});
                           rows = {w.made, units};
                         }
                         use(b, h, row, count, rows);
                       });
  }
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_ROWMAPS_INPUT_ROWS_H_
