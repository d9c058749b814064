// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_PROJECTION_GRADIENTS_H_
#define QKV_ATTENTION_PROJECTION_GRADIENTS_H_

#include "attention/gradient_rows.h"
#include "attention/projection.h"
#include "kernels/gradient_kernels.h"

// From gradients of projected rows, y = W x, those of the rows and of W. Rows without a live pair
// are left out: whatever stands there does not enter.
namespace qkv::door {

using core::GradientResults;
using core::kGradientBlock;

// Gradients of projected rows, one for each place, and what they belong to.
template <class T>
struct ProjectedSide {
  const T* gradients = nullptr;  // [places][width]
  Index width = 0;
  RowPlaces places;
  const std::uint8_t* live = nullptr;  // of each place
  const Operand* input = nullptr;
  Index input_heads = 0;
  Index input_width = 0;
  bool of_keys = false;
};

// Rows first .. first + count - 1.
struct SequenceRows {
  Index first = 0;
  Index count = 0;
};
// Those of batch entry or sequence b.
inline SequenceRows sequence_rows(const Problem& p, bool of_keys, Index b) {
  const Sequence s = p.sequence(b);
  return of_keys ? SequenceRows{s.k0, s.Tk} : SequenceRows{s.q0, s.Tq};
}

template <class T>
class ProjectionGradients {
 public:
  ProjectionGradients(const FusedCall<T>& tools, const kernels::GradientKernels<T>& kernels,
                      const GradientResults& to)
      : tools_(tools), p_(tools.p), kernels_(kernels), own_(tools.p, to) {}

  // Sums that are made in their own shape: clear() before, deliver() after.
  core::OwnGradients<T>& own() { return own_; }
  std::size_t worker_bytes(Index padded_units) const {
    core::MeasuringArena arena;
    take_worker(arena, padded_units);
    return arena.bytes();
  }

  // dx_n = W^T dy_n, with `by` the product with W^T.
  void project_back(const ProjectedSide<T>& side, const Projection<T>& by,
                    const GradientRows<T>& to, runtime::Call& call);
  // dW_rc = sum over rows of first_r second_c: blocks of rows in ascending order, each from zero.
  // Which of them has the rows of W.
  enum class First { kGradients, kInput };
  void parameter(const ProjectedSide<T>& side, First first, const GradientTarget& to,
                 runtime::Call& call);
  // Sums of rows as wide as dy: f(b, h, spare, to) adds those of one head; `spare` holds a row.
  template <class F>
  void head_sums(const GradientTarget& to, runtime::Call& call, const F& f);

 private:
  template <class AnyArena>
  ProjectedBlock<T> take_worker(AnyArena& arena, Index padded_units) const {
    ProjectedBlock<T> block;
    block.copy = arena.template take<T>(kGradientBlock * std::max(p_.Dq, p_.Dk)).data();
    block.rows = arena.template take<T>(kProjectedRows * padded_units).data();
    return block;
  }
  Index parameter_heads(const GradientTarget& to) const {
    return to.own.head_stride == 0 ? 1 : p_.H;
  }
  template <class F>
  void for_each_head(const GradientTarget& to, Index head, const F& f) const;
  RowsOf<const T> live_rows(const ProjectedSide<T>& side, Index b, Index h, Index row, Index count,
                            T* copy) const;

  const FusedCall<T>& tools_;
  const Problem& p_;
  const kernels::GradientKernels<T>& kernels_;
  core::OwnGradients<T> own_;
};

template <class T>
void ProjectionGradients<T>::project_back(const ProjectedSide<T>& side, const Projection<T>& by,
                                          const GradientRows<T>& to, runtime::Call& call) {
  const Index stride = by.padded_units();
  // Rows of one (b, head): use(row, values).
  const auto block = [&](Index b, Index h, Index row, Index count, T* projected, const auto& use) {
    const Index place = side.places.of(b, h, row);
    by.apply(tools_, h, {side.gradients + place * side.width, side.width}, count,
             {projected, stride});
    for (Index r = 0; r < count; ++r) {
      T* values = projected + r * stride;
      if (side.live[place + r] == 0) std::fill_n(values, side.input_width, T(0));
      use(row + r, values);
    }
  };
  if (!to.is_summed()) {
    for_each_row_block(call, p_, side.places,
                       [&](Index b, Index h, Index row, Index count, core::Arena& arena) {
                         block(b, h, row, count, take_worker(arena, stride).rows,
                               [&](Index n, const T* values) { to.put(b, h, n, values); });
                       });
    return;
  }
  // What was broadcast, over b and heads in ascending order.
  call.for_each_task(pieces(side.places.rows, kProjectedRows), [&](Index task, core::Arena& arena) {
    T* projected = take_worker(arena, stride).rows;
    const Index row = task * kProjectedRows;
    const Index count = std::min(kProjectedRows, side.places.rows - row);
    for (Index n = 0; n < side.places.entries(p_.B) * p_.H; ++n) {
      block(n / p_.H, n % p_.H, row, count, projected,
            [&](Index at, const T* values) { to.add_to(own_, n / p_.H, n % p_.H, at, values); });
    }
  });
}

// f(b, h) for the heads that share head `head` of a parameter's gradient, ascending.
template <class T>
template <class F>
void ProjectionGradients<T>::for_each_head(const GradientTarget& to, Index head, const F& f) const {
  const bool shared = parameter_heads(to) == 1;
  for (Index b = 0; b < p_.B; ++b) {
    for (Index h = shared ? 0 : head; h < (shared ? p_.H : head + 1); ++h) {
      tools_.stop();
      f(b, h);
    }
  }
}

// The rows of an input, 0 where a row is not live.
template <class T>
RowsOf<const T> ProjectionGradients<T>::live_rows(const ProjectedSide<T>& side, Index b, Index h,
                                                  Index row, Index count, T* copy) const {
  const std::uint8_t* live = side.live + side.places.of(b, h, row);
  const RowsOf<const T> x = plain_rows(p_, *side.input, b, h * side.input_heads / p_.H, row, count,
                                       side.input_width, copy);
  if (std::find(live, live + count, std::uint8_t{0}) == live + count) return x;
  for (Index r = 0; r < count; ++r) {
    T* to = copy + r * side.input_width;
    if (live[r] == 0) {
      std::fill_n(to, side.input_width, T(0));
    } else if (x.data != copy) {
      std::copy_n(x.data + r * x.stride, side.input_width, to);
    }
  }
  return {copy, side.input_width};
}

template <class T>
void ProjectionGradients<T>::parameter(const ProjectedSide<T>& side, First first,
                                       const GradientTarget& to, runtime::Call& call) {
  const bool gradients_first = first == First::kGradients;
  const Index rows = gradients_first ? side.width : side.input_width;
  const Index columns = gradients_first ? side.input_width : side.width;
  const Index blocks = pieces(rows, kProjectedRows);
  call.for_each_task(parameter_heads(to) * blocks, [&](Index task, core::Arena& arena) {
    T* copy = take_worker(arena, 0).copy;
    const Index begin = task % blocks * kProjectedRows;
    const Index end = std::min(rows, begin + kProjectedRows);
    for_each_head(to, task / blocks, [&](Index b, Index h) {
      const auto [first_row, all] = sequence_rows(p_, side.of_keys, b);
      for (Index n = first_row; n < first_row + all; n += kGradientBlock) {
        tools_.stop();
        const Index count = std::min(kGradientBlock, first_row + all - n);
        const RowsOf<const T> gradients{side.gradients + side.places.of(b, h, n) * side.width,
                                        side.width};
        const RowsOf<const T> input = live_rows(side, b, h, n, count, copy);
        const RowsOf<const T>& left = gradients_first ? gradients : input;
        const RowsOf<const T>& right = gradients_first ? input : gradients;
        for (Index r = begin; r < end; r += kTileRows) {
          kernels_.transposed_sum({left.data + r, left.stride}, std::min(kTileRows, end - r), right,
                                  count, columns, {own_.at(to, 0, h, r, 0), to.own.row_stride});
        }
      }
    });
  });
}

template <class T>
template <class F>
void ProjectionGradients<T>::head_sums(const GradientTarget& to, runtime::Call& call, const F& f) {
  call.for_each_task(parameter_heads(to), [&](Index head, core::Arena& arena) {
    T* spare = arena.template take<T>(p_.U).data();
    for_each_head(to, head, [&](Index b, Index h) { f(b, h, spare, own_.at(to, 0, h, 0, 0)); });
  });
}

}  // namespace qkv::door

#endif  // QKV_ATTENTION_PROJECTION_GRADIENTS_H_
