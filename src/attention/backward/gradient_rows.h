// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_GRADIENT_ROWS_H_
#define QKV_ATTENTION_BACKWARD_GRADIENT_ROWS_H_

#include <algorithm>
#include <type_traits>

#include "attention/tiles/bfloat16_words.h"
#include "attention/tiles/key_units.h"
#include "attention/tiles/row_options.h"
#include "attention/tiles/row_places.h"
#include "core/own_gradients.h"
#include "core/results.h"
#include "core/stop.h"
#include "kernels/dot_kernels.h"

// Rows of inputs and of gradients as the backward pass traverses them: contiguous elements of T.
namespace qkv::attn {

using core::GradientTarget;
using kernels::RowsOf;

// Number of adjacent key heads of the call, [B,G] in row-major order, that share elements of a
// gradient.
inline Index units_sharing(const Problem& p, const GradientTarget& target) {
  if (p.packed()) return 1;
  for (int axis = 0; axis < p.batch.rank(); ++axis) {
    if (p.batch[axis] != 1 && target.own.batch_strides[axis] == 0) return p.B * p.G;
  }
  return p.G != 1 && target.own.head_stride == 0 ? p.G : 1;
}

// The rows of an input (q or dout) [B,heads,rows][width]: in place if they are contiguous elements
// of T, else copied to shared memory; with products of BF16, copied as words of two channels
// (kernels/dot2_kernels.h).
template <class T>
class PlainRows {
 public:
  PlainRows() = default;
  PlainRows(const Problem& p, const Operand& x, const RowPlaces& places, Index width,
            Products products)
      : p_(&p),
        x_(&x),
        places_(places),
        width_(width),
        values_(are_in_words(products) ? kernels::words_of(width) : width),
        in_words_(are_in_words(products)) {}

  bool given() const { return x_->given(); }
  bool copied() const { return given() && (x_->dtype != dtype_of<T> || x_->col_stride != 1); }
  template <class AnyArena>
  void take(AnyArena& arena, Index entries) {
    if (copied()) copy_ = arena.template take<T>(places_.count(entries) * values_).data();
  }
  // Reuses the memory of the copies for the batch entries from b on.
  void go_to(Index b) { places_ = places_.from(b); }
  // The rows from row `row` of (b, head) on.
  RowsOf<const T> from(Index b, Index head, Index row) const {
    if (copied()) return {copy_ + places_.of(b, head, row) * values_, values_};
    return {static_cast<const T*>(x_->data) + offset(b, head, row), x_->row_stride};
  }
  void copy(Index b, Index head, Index row) const {
    if (!copied()) return;
    T* to = copy_ + places_.of(b, head, row) * values_;
    if (in_words_) return join_channels(*x_, offset(b, head, row), width_, to);
    load_values(*x_, offset(b, head, row), x_->col_stride, width_, to);
  }

 private:
  Index offset(Index b, Index head, Index row) const {
    return core::offset_of(*x_, core::batch_offset(*x_, p_->batch, b), head, row, 0);
  }
  const Problem* p_ = nullptr;
  const Operand* x_ = nullptr;
  RowPlaces places_;
  Index width_ = 0;
  Index values_ = 0;  // elements, or words, of a row
  bool in_words_ = false;
  T* copy_ = nullptr;
};

// The rows of dq, dk or dv [B,heads,rows][width] while they are computed: in the user's buffer, or
// in shared memory and later written to the buffer. If the buffer has fewer heads, adjacent heads
// are summed.
template <class T>
class GradientRows {
 public:
  GradientRows() = default;
  GradientRows(const Problem& p, const GradientTarget& target, const RowPlaces& places,
               Index target_heads, Index width)
      : p_(&p), target_(&target), places_(places), target_heads_(target_heads), width_(width) {}

  bool given() const { return target_->given(); }
  // Whether rows of the buffer are sums, because batch entries or heads of the call share a row of
  // the input. An empty axis counts, too: its sum has no terms.
  bool is_summed() const {
    const core::ResultOperand& own = target_->own;
    for (int axis = 0; axis < p_->batch.rank(); ++axis) {
      if (p_->batch[axis] != 1 && !p_->packed() && own.batch_strides[axis] == 0) return true;
    }
    if (places_.heads != target_heads_) return true;
    return places_.heads != 1 && own.head_stride == 0;
  }
  // Number of adjacent key heads that share elements of the gradient.
  Index units_sharing() const {
    const Index units = attn::units_sharing(*p_, *target_);
    return units > 1 ? units : places_.heads / target_heads_;
  }
  // Whether rows can be summed up in the buffer itself.
  bool is_in_place() const {
    const core::ResultOperand& to = target_->direct;
    return to.dtype == dtype_of<T> && (to.col_stride == 1 || width_ == 1) && !target_->accumulate &&
           !is_summed();
  }

  // Whether the sums start from the contents of the buffer.
  bool continues() const { return given() && target_->continues; }
  // Copies `count` rows from row `row` on to `to` [count][width].
  void load(Index b, Index head, Index row, Index count, T* to) const {
    const RowsOf<T> rows = from(b, head, row);
    for (Index n = 0; n < count; ++n) {
      std::copy_n(rows.data + n * rows.stride, width_, to + n * width_);
    }
  }

  // Takes memory for all rows of `entries` batch entries.
  template <class AnyArena>
  void take(AnyArena& arena, Index entries) {
    rows_ = arena.template take<T>(places_.count(entries) * width_).data();
  }
  // Reuses the memory of take() for the batch entries from b on.
  void go_to(Index b) { places_ = places_.from(b); }
  // The rows from row `row` of (b, head) on: in the memory of take() if it was called, else in the
  // buffer.
  RowsOf<T> from(Index b, Index head, Index row) const {
    if (rows_ != nullptr) return {rows_ + places_.of(b, head, row) * width_, width_};
    const core::ResultOperand& to = target_->direct;
    return {static_cast<T*>(to.data) + offset(b, head, row), to.row_stride};
  }
  // Stores `count` finished rows from row `row` on: in the memory of take() if it was called, else
  // in the buffer.
  void put(Index b, Index head, Index row, Index count, const RowsOf<const T>& x,
           core::StopPoint stop) const {
    const Index first = rows_ != nullptr ? 0 : offset(b, head, row);
    T* const taken = rows_ != nullptr ? rows_ + places_.of(b, head, row) * width_ : nullptr;
    for (Index n = 0; n < count; ++n) {
      stop();
      if (taken != nullptr) {
        std::copy_n(x.data + n * x.stride, width_, taken + n * width_);
      } else {
        store(first + n * target_->direct.row_stride, x.data + n * x.stride);
      }
    }
  }
  // Writes one row from the memory of take() to the buffer.
  void deliver(Index b, Index head, Index row) const {
    store(offset(b, head, row), rows_ + places_.of(b, head, row) * width_);
  }
  // Adds one row, which is x or in the memory of take(), to the accumulators `own`. Callers go over
  // (b, head, row) in ascending order.
  void add_to(const core::OwnGradients<T>& own, Index b, Index head, Index row) const {
    add_to(own, b, head, row, rows_ + places_.of(b, head, row) * width_);
  }
  void add_to(const core::OwnGradients<T>& own, Index b, Index head, Index row, const T* x) const {
    T* to = own.at(*target_, b, head_of(head), row, 0);
    for (Index c = 0; c < width_; ++c) to[c * target_->own.col_stride] += x[c];
  }
  // Adds all rows of `entries` from the memory of take() to the accumulators `own`. `keys`: whether
  // they are rows of keys, not of queries.
  void add_all_to(const core::OwnGradients<T>& own, bool keys, const Entries& entries,
                  core::StopPoint stop) const {
    if (p_->q_rows == 0 || p_->k_rows == 0) return;  // nothing to add, but B may be huge
    for (Index b = entries.begin; b < entries.end; ++b) {
      const Sequence s = p_->sequence(b);
      const Index first = keys ? s.k0 : s.q0;
      const Index count = keys ? s.Tk : s.Tq;
      for (Index head = 0; head < (keys ? p_->G : p_->H); ++head) {
        stop();
        for (Index n = 0; n < count; ++n) {
          stop();
          add_to(own, b, head, first + n);
        }
      }
    }
  }
  // Whether take() has been called.
  bool has_memory() const { return rows_ != nullptr; }

 private:
  Index head_of(Index head) const { return head * target_heads_ / places_.heads; }
  Index offset(Index b, Index head, Index row) const {
    const core::ResultOperand& to = target_->direct;
    return core::offset_of(to, core::batch_offset(to, p_->batch, b), head_of(head), row, 0);
  }
  // Stores a row in the buffer from element `first` on, or adds it if the target accumulates.
  void store(Index first, const T* x) const {
    const core::ResultOperand& to = target_->direct;
    if (!target_->accumulate) {
      if (to.dtype != dtype_of<T> || to.col_stride != 1) return store_values(to, first, x, width_);
      std::copy_n(x, width_, static_cast<T*>(to.data) + first);
      return;
    }
    core::visit_dtype(to.dtype, [&]<class Stored>(Stored*) {
      Stored* values = static_cast<Stored*>(to.data) + first;
      if constexpr (std::is_same_v<Stored, T>) {
        if (to.col_stride == 1) {  // the usual case, which compilers vectorise
          for (Index c = 0; c < width_; ++c) values[c] = x[c] + values[c];
          return;
        }
      }
      for (Index c = 0; c < width_; ++c) {
        Stored& value = values[c * to.col_stride];
        value = core::from_accumulator<Stored>(x[c] + core::to_accumulator<T>(value));
      }
    });
  }

  const Problem* p_ = nullptr;
  const GradientTarget* target_ = nullptr;
  RowPlaces places_;
  Index target_heads_ = 0;
  Index width_ = 0;
  T* rows_ = nullptr;
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_GRADIENT_ROWS_H_
