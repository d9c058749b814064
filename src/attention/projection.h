// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_PROJECTION_H_
#define QKV_ATTENTION_PROJECTION_H_

#include "attention/fused_block.h"

// Products of rows with a parameter of the score, y_u = sum_c w_uc x_c, each row by itself, with
// the tiles that scores are computed with and so in their order.
namespace qkv::door {

// Rows that go through the panels of a parameter together.
inline constexpr Index kProjectedRows = 8 * kTileRows;

// What a parameter is, of [rows, columns]: itself, or transposed.
enum class Turned { kNo, kYes };

template <class T>
class Projection {
 public:
  // w [units, width], or [width, units] turned; one for all H heads or for each.
  Projection(const Operand& w, Index H, Index units, Index width, Turned turned)
      : w_(w), units_(units), width_(width), heads_(w.head_stride == 0 ? 1 : H) {
    if (turned == Turned::kYes) std::swap(w_.row_stride, w_.col_stride);
  }

  // Values of a row of results, in whole panels.
  Index padded_units() const { return pieces(units_, kPanel) * kPanel; }

  template <class AnyArena>
  void take(AnyArena& arena) {
    panels_ = arena.template take<T>(heads_ * padded_units() * width_).data();
  }
  void pack(const FusedCall<T>& tools, runtime::Call& call) const {
    const Index panels = pieces(units_, kPanel);
    call.for_each_task(heads_ * panels, [&](Index task, core::Arena&) {
      const Index u = task % panels * kPanel;
      pack_panel(tools, w_, core::offset_of(w_, 0, task / panels, u, 0),
                 std::min(kPanel, units_ - u), width_, panels_ + task * kPanel * width_);
    });
  }
  // y_r = w x_r for rows of head h; those of y have padded_units() values.
  void apply(const FusedCall<T>& tools, Index h, const RowsOf<const T>& x, Index rows,
             const RowsOf<T>& y) const {
    const T* panel = panels_ + (heads_ == 1 ? 0 : h) * padded_units() * width_;
    for (Index u = 0; u < units_; u += kPanel, panel += kPanel * width_) {
      tools.stop();
      tools.kernels.scores(x, rows, width_, panel, T(1), {y.data + u, y.stride});
    }
  }

 private:
  Operand w_;
  Index units_;
  Index width_;
  Index heads_;
  T* panels_ = nullptr;  // [heads][panels of units][width][kPanel]
};

// What a task has for a block of rows.
template <class T>
struct ProjectedBlock {
  T* copy = nullptr;  // rows of an input as T
  T* rows = nullptr;  // projected

  template <class AnyArena>
  static ProjectedBlock take(AnyArena& arena, Index width, Index padded_units) {
    return {arena.template take<T>(kProjectedRows * width).data(),
            arena.template take<T>(kProjectedRows * padded_units).data()};
  }
};

// An operand of rows at `places` with `width` values, C-ordered.
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

// Rows of an input from (b, head, row) on, as T next to each other: in place, or copied to `copy`.
template <class T>
RowsOf<const T> plain_rows(const Problem& p, const Operand& x, Index b, Index head, Index row,
                           Index count, Index width, T* copy) {
  const Index offset = core::offset_of(x, core::batch_offset(x, p.batch, b), head, row, 0);
  if (x.dtype == dtype_of<T> && x.col_stride == 1) {
    return {static_cast<const T*>(x.data) + offset, x.row_stride};
  }
  for (Index r = 0; r < count; ++r) {
    load_values(x, offset + r * x.row_stride, x.col_stride, width, copy + r * width);
  }
  return {copy, width};
}

// f(b, head, first row, rows, arena) for blocks of all rows, each a task.
template <class F>
void for_each_row_block(runtime::Call& call, const Problem& p, const RowPlaces& places,
                        const F& f) {
  const Index blocks = pieces(places.rows, kProjectedRows);
  call.for_each_task(places.entries(p.B) * places.heads * blocks,
                     [&](Index task, core::Arena& arena) {
                       const Index head = task / blocks;
                       const Index row = task % blocks * kProjectedRows;
                       f(head / places.heads, head % places.heads, row,
                         std::min(kProjectedRows, places.rows - row), arena);
                     });
}

}  // namespace qkv::door

#endif  // QKV_ATTENTION_PROJECTION_H_
