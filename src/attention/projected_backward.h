// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_PROJECTED_BACKWARD_H_
#define QKV_ATTENTION_PROJECTED_BACKWARD_H_

#include "attention/dot_backward.h"
#include "attention/projected_rows.h"

// The backward pass of bilinear and additive attention: the stages of the dot path give gradients
// of projected rows, dleft and dright, and from these follow
//   bilinear  dq_i = W dleft_i        dW = sum_i q_i dleft_i^T
//   additive  dq_i = Wq^T dleft_i     dWq = sum_i dleft_i q_i^T     db = sum_i dleft_i
//             dk_j = Wk^T dright_j    dWk = sum_j dright_j k_j^T
// Rows without a live pair are left out: whatever stands there does not enter.
namespace qkv::door {

template <class T>
class ProjectedBackward {
 public:
  ProjectedBackward(const Problem& p, const GradientSources& from, const GradientResults& to,
                    kernels::Target target)
      : p_(p),
        to_(to),
        rows_(p, target),
        is_additive_(rows_.scores() != nullptr),
        stages_to_(stage_targets()),
        stages_(rows_.problem(), from, stages_to_, target, rows_.scores()),
        kernels_(kernels::gradient_kernels<T>(target)),
        query_back_(is_additive_ ? Projection<T>(rows_.tools(), p.wq, p.Dq, p.U, Turned::kYes)
                                 : Projection<T>(rows_.tools(), p.w, p.Dq, p.Dk, Turned::kNo)),
        key_back_(rows_.tools(), p.wk, p.Dk, p.U, Turned::kYes),
        dq_(p, to.q, query_places(), p.H, p.Dq),
        dk_(p, to.k, key_places(), p.G, p.Dk),
        own_(p, to) {
    stages_.ask_for_projections(to.score_v.given());
  }
  ProjectedBackward(const ProjectedBackward&) = delete;
  ProjectedBackward& operator=(const ProjectedBackward&) = delete;

  template <class AnyArena>
  void take_shared(AnyArena& arena) {
    rows_.take(arena);
    take_own(arena);
    stages_.take_shared(arena);
  }
  std::size_t worker_bytes() const {
    MeasuringArena own;
    take_worker(own);
    return std::max({own.bytes(), rows_.worker_bytes(), stages_.worker_bytes()});
  }
  void run(runtime::Call& call);

 private:
  struct Worker {
    T* copy = nullptr;  // a block of rows of an input
    T* rows = nullptr;  // projected back
  };
  template <class AnyArena>
  Worker take_worker(AnyArena& arena) const {
    const Index units = std::max(query_back_.padded_units(), key_back_.padded_units());
    return {arena.template take<T>(kGradientBlock * std::max(p_.Dq, p_.Dk)).data(),
            arena.template take<T>(kProjectedRows * units).data()};
  }
  RowPlaces query_places() const { return RowPlaces::of_queries(p_); }
  RowPlaces key_places() const { return {p_.H, p_.k_rows, p_.packed()}; }
  bool needs_left() const {
    return to_.q.given() || to_.w.given() || to_.wq.given() || to_.score_b.given();
  }
  bool needs_right() const { return is_additive_ && (to_.k.given() || to_.wk.given()); }
  Index width() const { return is_additive_ ? p_.U : p_.Dk; }

  GradientResults stage_targets() const;
  template <class AnyArena>
  void take_own(AnyArena& arena);

  // Gradients of projected rows, one for each place, and what they belong to.
  struct Side {
    const T* gradients;
    RowPlaces places;
    const std::uint8_t* live;
    const Operand& input;
    Index input_heads;
    Index input_width;
  };
  Side queries() const {
    return {left_, query_places(), stages_.call().row_live, p_.q, p_.H, p_.Dq};
  }
  Side keys() const { return {right_, key_places(), stages_.call().key_live, p_.k, p_.G, p_.Dk}; }
  void project_back(const Side& side, const Projection<T>& by, const GradientRows<T>& to,
                    runtime::Call& call);
  // Which operand of a sum over rows has the parameter's rows.
  enum class First { kGradients, kInput };
  void parameter(const Side& side, First first, const GradientTarget& to, runtime::Call& call);
  RowsOf<const T> live_rows(const Side& side, Index b, Index h, Index row, Index count,
                            T* copy) const;
  void unit_sums(runtime::Call& call);
  // f(b, h) for the heads that share head `head` of a parameter's gradient, ascending.
  template <class F>
  void for_each_head(const GradientTarget& to, Index head, Index entries, const F& f) const;
  Index parameter_heads(const GradientTarget& to) const {
    return to.own.head_stride == 0 ? 1 : p_.H;
  }

  const Problem& p_;
  const GradientResults& to_;
  ProjectedRows<T> rows_;
  const bool is_additive_;
  GradientResults stages_to_;
  DotBackward<T> stages_;
  const kernels::GradientKernels<T>& kernels_;
  Projection<T> query_back_, key_back_;
  GradientRows<T> dq_, dk_;
  core::OwnGradients<T> own_;
  T* left_ = nullptr;   // dleft, [places][width]
  T* right_ = nullptr;  // dright
};

// ---- memory ---------------------------------------------------------------------------------

template <class T>
GradientResults ProjectedBackward<T>::stage_targets() const {
  GradientResults x;
  const auto rows = [&](const RowPlaces& places) {
    GradientTarget to;
    to.buffer = View(static_cast<T*>(nullptr), {0});  // only given
    to.direct = to.own = rows_operand<T, void>(p_, places, width(), nullptr);
    return to;
  };
  if (needs_left()) x.q = rows(query_places());
  if (is_additive_) {
    if (needs_right()) x.k = rows(key_places());
  } else {
    x.k = to_.k;
  }
  x.v = to_.v;
  x.bias = to_.bias;
  x.alibi = to_.alibi;
  x.sinks = to_.sinks;
  return x;
}

template <class T>
template <class AnyArena>
void ProjectedBackward<T>::take_own(AnyArena& arena) {
  if (needs_left()) {
    left_ = arena.template take<T>(query_places().count(p_.B) * width()).data();
    stages_to_.q.direct.data = left_;
  }
  if (needs_right()) {
    right_ = arena.template take<T>(key_places().count(p_.B) * width()).data();
    stages_to_.k.direct.data = right_;
  }
  if (to_.q.given()) query_back_.take(arena);
  if (is_additive_ && to_.k.given()) key_back_.take(arena);
  own_.take(arena, [&](const GradientTarget& target) {
    if (&target == &to_.q) return dq_.is_summed();
    if (&target == &to_.k) return is_additive_ && dk_.is_summed();
    return &target == &to_.w || &target == &to_.wq || &target == &to_.wk ||
           &target == &to_.score_v || &target == &to_.score_b;
  });
}

// ---- the pass -------------------------------------------------------------------------------

template <class T>
void ProjectedBackward<T>::run(runtime::Call& call) {
  rows_.prepare(call);
  take_own(call.shared());
  const core::StopPoint& stop = rows_.tools().stop;
  own_.clear(stop, [](const GradientTarget&) { return true; });
  stages_.run(call);
  if (to_.q.given()) {
    query_back_.pack(call);
    project_back(queries(), query_back_, dq_, call);
  }
  if (to_.w.given()) parameter(queries(), First::kInput, to_.w, call);
  if (is_additive_) {
    if (to_.k.given()) {
      key_back_.pack(call);
      project_back(keys(), key_back_, dk_, call);
    }
    if (to_.wq.given()) parameter(queries(), First::kGradients, to_.wq, call);
    if (to_.wk.given()) parameter(keys(), First::kGradients, to_.wk, call);
    unit_sums(call);
  }
  own_.deliver(stop);
}

// Gradients of an input from those of its projected rows.
template <class T>
void ProjectedBackward<T>::project_back(const Side& side, const Projection<T>& by,
                                        const GradientRows<T>& to, runtime::Call& call) {
  const Index stride = by.padded_units();
  // Rows of one (b, head): use(row, values).
  const auto block = [&](Index b, Index h, Index row, Index count, core::Arena& arena,
                         const auto& use) {
    const Worker w = take_worker(arena);
    const Index place = side.places.of(b, h, row);
    by.apply(h, {side.gradients + place * width(), width()}, count, {w.rows, stride});
    for (Index r = 0; r < count; ++r) {
      T* values = w.rows + r * stride;
      if (side.live[place + r] == 0) std::fill_n(values, side.input_width, T(0));
      use(row + r, values);
    }
  };
  if (!to.is_summed()) {
    for_each_row_block(call, p_, side.places,
                       [&](Index b, Index h, Index row, Index count, core::Arena& arena) {
                         block(b, h, row, count, arena,
                               [&](Index n, const T* values) { to.put(b, h, n, values); });
                       });
    return;
  }
  // What was broadcast, over b and heads in ascending order.
  const Index blocks = pieces(side.places.rows, kProjectedRows);
  call.for_each_task(blocks, [&](Index task, core::Arena& arena) {
    const Index row = task * kProjectedRows;
    const Index count = std::min(kProjectedRows, side.places.rows - row);
    for (Index n = 0; n < side.places.entries(p_.B) * p_.H; ++n) {
      arena.reset();
      block(n / p_.H, n % p_.H, row, count, arena,
            [&](Index at, const T* values) { to.add_to(own_, n / p_.H, n % p_.H, at, values); });
    }
  });
}

template <class T>
template <class F>
void ProjectedBackward<T>::for_each_head(const GradientTarget& to, Index head, Index entries,
                                         const F& f) const {
  const bool shared = parameter_heads(to) == 1;
  for (Index b = 0; b < entries; ++b) {
    for (Index h = shared ? 0 : head; h < (shared ? p_.H : head + 1); ++h) f(b, h);
  }
}

// The rows of an input, 0 where a row is not live.
template <class T>
RowsOf<const T> ProjectedBackward<T>::live_rows(const Side& side, Index b, Index h, Index row,
                                                Index count, T* copy) const {
  const std::uint8_t* live = side.live + side.places.of(b, h, row);
  const RowsOf<const T> x = plain_rows(p_, side.input, b, h * side.input_heads / p_.H, row, count,
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

// dW_rc = sum over rows of first_r second_c: blocks of rows in ascending order, each from zero.
template <class T>
void ProjectedBackward<T>::parameter(const Side& side, First first, const GradientTarget& to,
                                     runtime::Call& call) {
  const bool gradients_first = first == First::kGradients;
  const Index rows = gradients_first ? width() : side.input_width;
  const Index columns = gradients_first ? side.input_width : width();
  const Index blocks = pieces(rows, kProjectedRows);
  call.for_each_task(parameter_heads(to) * blocks, [&](Index task, core::Arena& arena) {
    const Worker w = take_worker(arena);
    const Index begin = task % blocks * kProjectedRows;
    const Index end = std::min(rows, begin + kProjectedRows);
    for_each_head(to, task / blocks, side.places.entries(p_.B), [&](Index b, Index h) {
      for (Index n = 0; n < side.places.rows; n += kGradientBlock) {
        rows_.tools().stop();
        const Index count = std::min(kGradientBlock, side.places.rows - n);
        const RowsOf<const T> gradients{side.gradients + side.places.of(b, h, n) * width(),
                                        width()};
        const RowsOf<const T> input = live_rows(side, b, h, n, count, w.copy);
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

// db and dv.
template <class T>
void ProjectedBackward<T>::unit_sums(runtime::Call& call) {
  const Index units = p_.U;
  if (to_.score_b.given()) {
    const RowPlaces places = query_places();
    call.for_each_task(parameter_heads(to_.score_b), [&](Index head, core::Arena&) {
      for_each_head(to_.score_b, head, places.entries(p_.B), [&](Index b, Index h) {
        T* to = own_.at(to_.score_b, 0, h, 0, 0);
        for (Index n = 0; n < places.rows; ++n) {
          rows_.tools().stop();
          kernels_.add(to, left_ + (places.of(b, h, n)) * units, units);
        }
      });
    });
  }
  if (!to_.score_v.given()) return;
  const DotGradientCall<T>& stages = stages_.call();
  call.for_each_task(parameter_heads(to_.score_v), [&](Index head, core::Arena&) {
    for_each_head(to_.score_v, head, p_.B, [&](Index b, Index h) {
      const KeyUnit unit = key_unit(stages.p, b * p_.H + h);
      T* to = own_.at(to_.score_v, 0, h, 0, 0);
      for (Index n = 0; n < pieces(unit.s.Tk, kGradientBlock); ++n) {
        kernels_.add(to, stages.v_sums + stages.key_block_of(unit, n) * units, units);
      }
    });
  });
}

}  // namespace qkv::door

#endif  // QKV_ATTENTION_PROJECTED_BACKWARD_H_
