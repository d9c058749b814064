// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_PROJECTED_BACKWARD_H_
#define QKV_ATTENTION_PROJECTED_BACKWARD_H_

#include "attention/fused_backward.h"
#include "attention/projected_rows.h"
#include "attention/projection_gradients.h"

// The backward pass of bilinear and additive attention: the stages of fused passes give gradients
// of projected rows, dleft and dright, and from these follow
//   bilinear  dq_i = W dleft_i        dW = sum_i q_i dleft_i^T
//   additive  dq_i = Wq^T dleft_i     dWq = sum_i dleft_i q_i^T     db = sum_i dleft_i
//             dk_j = Wk^T dright_j    dWk = sum_j dright_j k_j^T
namespace qkv::door {

// dright of keys that were made before, summed over calls.
template <class T>
struct KeySums {
  T* gradients = nullptr;        // [B,H,Tk][units]
  std::uint8_t* live = nullptr;  // of each row
};

template <class T>
class ProjectedBackward {
 public:
  // With `made` keys (attention/projected_rows.h) what belongs to keys is added to `sums`, and no
  // gradient of k or Wk is asked for.
  ProjectedBackward(const Problem& p, const GradientSources& from, const GradientResults& to,
                    kernels::Target target, const AdditiveKeys<T>* made = nullptr,
                    const KeySums<T>* sums = nullptr)
      : p_(p),
        to_(to),
        sums_(sums),
        rows_(p, target, made),
        is_additive_(rows_.scores() != nullptr),
        stages_to_(stage_targets()),
        stages_(rows_.problem(), from, stages_to_, target, rows_.scores()),
        kernels_(kernels::gradient_kernels<T>(target)),
        gradients_(rows_.tools(), kernels_, to),
        query_back_(is_additive_ ? Projection<T>(p.wq, p.H, p.Dq, p.U, Turned::kYes)
                                 : Projection<T>(p.w, p.H, p.Dq, p.Dk, Turned::kNo)),
        key_back_(p.wk, p.H, p.Dk, p.U, Turned::kYes),
        dq_(p, to.q, query_places(), p.H, p.Dq),
        dk_(p, to.k, key_places(), p.G, p.Dk) {
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
    const Index units = std::max(query_back_.padded_units(), key_back_.padded_units());
    return std::max({gradients_.worker_bytes(units), rows_.worker_bytes(), stages_.worker_bytes()});
  }
  void run(runtime::Call& call);

 private:
  RowPlaces query_places() const { return RowPlaces::of_queries(p_); }
  RowPlaces key_places() const { return {p_.H, p_.k_rows, p_.packed()}; }
  bool needs_left() const {
    return to_.q.given() || to_.w.given() || to_.wq.given() || to_.score_b.given();
  }
  bool needs_right() const {
    return is_additive_ && (to_.k.given() || to_.wk.given() || sums_ != nullptr);
  }
  Index width() const { return is_additive_ ? p_.U : p_.Dk; }
  ProjectedSide<T> queries() const {
    return {left_, width(), query_places(), stages_.call().row_live, &p_.q, p_.H, p_.Dq};
  }
  ProjectedSide<T> keys() const {
    return {right_, width(), key_places(), stages_.call().key_live, &p_.k, p_.G, p_.Dk, true};
  }

  GradientResults stage_targets() const;
  template <class AnyArena>
  void take_own(AnyArena& arena);
  void additive_gradients(runtime::Call& call);
  void add_to_sums(runtime::Call& call) const;

  const Problem& p_;
  const GradientResults& to_;
  const KeySums<T>* sums_;
  ProjectedRows<T> rows_;
  const bool is_additive_;
  GradientResults stages_to_;
  FusedBackward<T> stages_;
  const kernels::GradientKernels<T>& kernels_;
  ProjectionGradients<T> gradients_;
  Projection<T> query_back_, key_back_;
  GradientRows<T> dq_, dk_;
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
  if (!is_additive_) x.k = to_.k;
  if (needs_right()) x.k = rows(key_places());
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
  gradients_.own().take(arena, [&](const GradientTarget& target) {
    if (&target == &to_.q) return dq_.is_summed();
    if (&target == &to_.k) return is_additive_ && dk_.is_summed();
    return &target == &to_.w || &target == &to_.wq || &target == &to_.wk ||
           &target == &to_.score_v || &target == &to_.score_b;
  });
}

// ---- the pass -------------------------------------------------------------------------------

template <class T>
void ProjectedBackward<T>::run(runtime::Call& call) {
  using First = typename ProjectionGradients<T>::First;
  rows_.prepare(call);
  take_own(call.shared());
  const core::StopPoint& stop = rows_.tools().stop;
  gradients_.own().clear(stop, [](const GradientTarget&) { return true; });
  stages_.run(call);
  if (to_.q.given()) {
    query_back_.pack(rows_.tools(), call);
    gradients_.project_back(queries(), query_back_, dq_, call);
  }
  if (to_.w.given()) gradients_.parameter(queries(), First::kInput, to_.w, call);
  if (is_additive_) additive_gradients(call);
  if (sums_ != nullptr) add_to_sums(call);
  gradients_.own().deliver(stop);
}

template <class T>
void ProjectedBackward<T>::additive_gradients(runtime::Call& call) {
  using First = typename ProjectionGradients<T>::First;
  if (to_.k.given()) {
    key_back_.pack(rows_.tools(), call);
    gradients_.project_back(keys(), key_back_, dk_, call);
  }
  if (to_.wq.given()) gradients_.parameter(queries(), First::kGradients, to_.wq, call);
  if (to_.wk.given()) gradients_.parameter(keys(), First::kGradients, to_.wk, call);
  const RowPlaces places = query_places();
  if (to_.score_b.given()) {
    const auto add_rows = [&](Index b, Index h, T* block, T* to) {
      const auto [first, count] = sequence_rows(p_, false, b);
      for (Index n0 = first; n0 < first + count; n0 += kGradientBlock) {
        rows_.tools().stop();
        std::fill_n(block, width(), T(0));
        for (Index n = n0; n < std::min(first + count, n0 + kGradientBlock); ++n) {
          kernels_.add(block, left_ + places.of(b, h, n) * width(), width());
        }
        kernels_.add(to, block, width());
      }
    };
    gradients_.head_sums(to_.score_b, call, add_rows);
  }
  if (!to_.score_v.given()) return;
  const FusedGradientCall<T>& stages = stages_.call();
  gradients_.head_sums(to_.score_v, call, [&](Index b, Index h, T*, T* to) {
    const KeyUnit unit = key_unit(stages.p, b * p_.H + h);
    for (Index n = 0; n < pieces(unit.s.Tk, kGradientBlock); ++n) {
      kernels_.add(to, stages.v_sums + stages.key_block_of(unit, n) * width(), width());
    }
  });
}

template <class T>
void ProjectedBackward<T>::add_to_sums(runtime::Call& call) const {
  const ProjectedSide<T> side = keys();
  for_each_row_block(call, p_, side.places, [&](Index b, Index h, Index row, Index count, auto&) {
    const Index place = side.places.of(b, h, row);
    kernels_.add(sums_->gradients + place * width(), right_ + place * width(), count * width());
    for (Index n = place; n < place + count; ++n) {
      sums_->live[n] = static_cast<std::uint8_t>(sums_->live[n] | side.live[n]);
    }
  });
}

}  // namespace qkv::door

#endif  // QKV_ATTENTION_PROJECTED_BACKWARD_H_
