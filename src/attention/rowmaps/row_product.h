// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_ROWMAPS_ROW_PRODUCT_H_
#define QKV_ATTENTION_ROWMAPS_ROW_PRODUCT_H_

#include <algorithm>

#include "attention/tiles/call.h"
#include "core/integers.h"

// Projections of rows by a parameter of the score, y_u = sum_c w_uc x_c + b_u. Each row is computed
// independently, with the kernels of scores and thus in the order of summation of scores.
namespace qkv::attn {

// Number of rows that are multiplied by the panels of a parameter at a time.
inline constexpr Index kProductRows = 8 * kTileRows;

template <class T>
class RowProduct {
 public:
  // y = W x + b for rows of `width` elements and H query heads.
  static RowProduct forward(const core::RowProduct& by, Index H, Index width) {
    return {by.w, by.b, by.transposed, H, by.units, width};
  }
  // dx = W^T dy, where rows of dx have `width` elements.
  static RowProduct back(const core::RowProduct& by, Index H, Index width) {
    return {by.w, {}, !by.transposed, H, width, by.units};
  }

  bool given() const { return w_.given(); }
  // Elements of a row of results, rounded up to whole panels; 0 without a projection.
  Index padded_units() const { return given() ? core::divide_up(units_, kPanel) * kPanel : 0; }

  template <class AnyArena>
  void take(AnyArena& arena) {
    if (!given()) return;
    panels_ = arena.template take<T>(heads_ * padded_units() * width_).data();
    if (b_.given()) own_b_ = arena.template take<T>(all_heads_ * units_).data();
  }
  void pack(const FusedCall<T>& tools, runtime::Call& call) const {
    if (!given()) return;
    for (Index h = 0; b_.given() && h < all_heads_; ++h) {
      load_values(b_, core::offset_of(b_, 0, h, 0, 0), b_.col_stride, units_, own_b_ + h * units_);
    }
    const Index panels = core::divide_up(units_, kPanel);
    call.for_each_task(heads_ * panels, [&](Index task, core::Arena&) {
      const Index u = task % panels * kPanel;
      pack_panel(tools, w_, core::offset_of(w_, 0, task / panels, u, 0),
                 std::min(kPanel, units_ - u), width_, panels_ + task * kPanel * width_);
    });
  }
  // Computes y_r = w x_r + b for rows of query head h; rows of y hold padded_units() elements.
  void apply(const FusedCall<T>& tools, Index h, const RowsOf<const T>& x, Index rows,
             const RowsOf<T>& y) const {
    const T* panel = panels_ + (heads_ == 1 ? 0 : h) * padded_units() * width_;
    for (Index u = 0; u < units_; u += kPanel, panel += kPanel * width_) {
      tools.stop();
      tools.kernels.scores_of_keys(x, rows, width_, panel, std::min(kPanel, units_ - u), T(1),
                                   {y.data + u, y.stride});
    }
    if (own_b_ == nullptr) return;
    const T* b = own_b_ + h * units_;
    for (Index r = 0; r < rows; ++r) {
      T* values = y.data + r * y.stride;
      for (Index u = 0; u < units_; ++u) values[u] += b[u];
    }
  }

 private:
  RowProduct(const Operand& w, const Operand& b, bool transposed, Index H, Index units, Index width)
      : w_(w),
        b_(b),
        units_(units),
        width_(width),
        heads_(w.head_stride == 0 ? 1 : H),
        all_heads_(H) {
    if (transposed) std::swap(w_.row_stride, w_.col_stride);
  }

  Operand w_, b_;
  Index units_;
  Index width_;
  Index heads_;  // number of heads of w: 1 or all
  Index all_heads_;
  T* panels_ = nullptr;  // [heads][panels of units][width][kPanel]
  T* own_b_ = nullptr;   // [all heads][units]: b, converted to T
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_ROWMAPS_ROW_PRODUCT_H_
