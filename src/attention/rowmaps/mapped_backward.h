// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_ROWMAPS_MAPPED_BACKWARD_H_
#define QKV_ATTENTION_ROWMAPS_MAPPED_BACKWARD_H_

#include "attention/backward/backward.h"
#include "attention/rowmaps/mapped_rows.h"
#include "attention/rowmaps/row_gradients.h"
#include "core/integers.h"

// The backward pass of a score with input transforms (row maps). FusedBackward gives the gradients
// of the transformed rows, dleft and dright; from these follow the gradients of the rows and of the
// transforms' parameters. The pass runs some batch entries at a time, so that transformed rows and
// their gradients stay in the caches. With a projection y = W x + b among the transforms,
//   dx = W^T dy        dW = sum over rows of dy x^T        db = sum over rows of dy
namespace qkv::attn {

// The gradient dright of the transformed rows of prepared keys, summed over calls.
template <class T>
struct KeySums {
  T* gradients = nullptr;        // [B,H,Tk][units]
  std::uint8_t* live = nullptr;  // [B,H,Tk]: whether the row counts as live
};

template <class T>
class MappedBackward {
 public:
  // With prepared keys `made` (attention/rowmaps/mapped_rows.h), dright is added to `sums`, and
  // `to` must not request a gradient of k or Wk.
  MappedBackward(const Problem& p, const GradientSources& from, const GradientResults& to,
                 kernels::Target target, const AdditiveKeys<T>* made = nullptr,
                 const KeySums<T>* sums = nullptr)
      : p_(p),
        to_(to),
        sums_(sums),
        rows_(p, target, MappedRows<T>::With::kRowsAndGradients, made),
        stages_to_(stage_targets()),
        stages_(rows_.problem(), from, stages_to_, target, rows_.scores(), rows_.entries()),
        kernels_(kernels::gradient_kernels<T>(target)),
        gradients_(rows_.tools(), kernels_, to),
        query_back_(RowProduct<T>::back(p.query_maps.product, p.H, p.Dq)),
        key_back_(RowProduct<T>::back(p.key_maps.product, p.H, p.Dk)),
        dq_(p, to.q, rows_.queries().places, p.H, p.Dq),
        dk_(p, to.k, rows_.keys().places, p.G, p.Dk) {
    stages_.ask_for_maps(to.score_v.given());
  }
  MappedBackward(const MappedBackward&) = delete;
  MappedBackward& operator=(const MappedBackward&) = delete;

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
  static bool any_parameter(const core::RowMapTargets& to) {
    return to.gain.given() || to.w.given() || to.b.given();
  }
  bool maps_queries() const { return !p_.query_maps.is_identity(); }
  bool maps_keys() const { return !p_.key_maps.is_identity(); }
  bool needs_left() const { return maps_queries() && (to_.q.given() || any_parameter(to_.query)); }
  bool needs_right() const {
    return maps_keys() && (to_.k.given() || any_parameter(to_.key) || sums_ != nullptr);
  }
  MadeGradients<T> queries(const Entries& entries) const {
    return {rows_.queries(), left_, stages_.call().row_live, entries};
  }
  MadeGradients<T> keys(const Entries& entries) const {
    return {rows_.keys(), right_, stages_.call().key_live, entries};
  }

  GradientResults stage_targets() const;
  template <class AnyArena>
  void take_own(AnyArena& arena);
  void run_entries(const Entries& entries, runtime::Call& call);
  void back(const MadeGradients<T>& made, const core::RowMapTargets& maps,
            const GradientTarget& input, const RowProduct<T>& by, const GradientRows<T>& rows,
            T* gain_sums, runtime::Call& call);
  void gradient_of_v(const Entries& entries, runtime::Call& call);
  void add_to_sums(const Entries& entries, runtime::Call& call) const;

  const Problem& p_;
  const GradientResults& to_;
  const KeySums<T>* sums_;
  MappedRows<T> rows_;
  GradientResults stages_to_;
  FusedBackward<T> stages_;
  const kernels::GradientKernels<T>& kernels_;
  RowGradients<T> gradients_;
  RowProduct<T> query_back_, key_back_;
  GradientRows<T> dq_, dk_;
  T* left_ = nullptr;   // [entries,H,q_rows][width]: dleft of some entries
  T* right_ = nullptr;  // [entries,heads,k_rows][width]: dright
  T* query_gain_sums_ = nullptr;
  T* key_gain_sums_ = nullptr;
};

// ---- memory ---------------------------------------------------------------------------------

template <class T>
GradientResults MappedBackward<T>::stage_targets() const {
  GradientResults x;
  const auto rows = [&](const InputRows<T>& input) {
    GradientTarget to;
    to.buffer = View(static_cast<T*>(nullptr), {0});  // never accessed: it only has to be given
    to.direct = to.own = rows_operand<T, void>(p_, input.places, input.mapped_width(), nullptr);
    return to;
  };
  if (!maps_queries()) x.q = to_.q;
  if (needs_left()) x.q = rows(rows_.queries());
  if (!maps_keys()) x.k = to_.k;
  if (needs_right()) x.k = rows(rows_.keys());
  x.v = to_.v;
  x.bias = to_.bias;
  x.alibi = to_.alibi;
  x.sinks = to_.sinks;
  x.captured = to_.captured;
  return x;
}

template <class T>
template <class AnyArena>
void MappedBackward<T>::take_own(AnyArena& arena) {
  const Index entries = rows_.entries();
  const auto take = [&](const InputRows<T>& input, T*& to) {
    to = arena.template take<T>(input.count(entries) * input.mapped_width()).data();
  };
  if (needs_left()) take(rows_.queries(), left_);
  if (needs_right()) take(rows_.keys(), right_);
  if (to_.q.given() || to_.query.gain.given()) query_back_.take(arena);
  if (to_.k.given() || to_.key.gain.given()) key_back_.take(arena);
  const auto take_gain = [&](const InputRows<T>& input, const GradientTarget& gain, T*& to) {
    if (!gain.given()) return;
    to = arena.template take<T>(RowGradients<T>::gain_values(p_, input, entries)).data();
  };
  take_gain(rows_.queries(), to_.query.gain, query_gain_sums_);
  take_gain(rows_.keys(), to_.key.gain, key_gain_sums_);
  gradients_.own().take(arena, [&](const GradientTarget& target) {
    if (&target == &to_.q) return maps_queries() && dq_.is_summed();
    if (&target == &to_.k) return maps_keys() && dk_.is_summed();
    return &target == &to_.query.gain || &target == &to_.query.w || &target == &to_.query.b ||
           &target == &to_.key.gain || &target == &to_.key.w || &target == &to_.key.b ||
           &target == &to_.score_v;
  });
}

// ---- the pass -------------------------------------------------------------------------------

template <class T>
void MappedBackward<T>::run(runtime::Call& call) {
  rows_.prepare(call);
  take_own(call.shared());
  const core::StopPoint& stop = rows_.tools().stop;
  gradients_.own().clear(stop, [](const GradientTarget&) { return true; });
  if (to_.q.given() || to_.query.gain.given()) query_back_.pack(rows_.tools(), call);
  if (to_.k.given() || to_.key.gain.given()) key_back_.pack(rows_.tools(), call);
  stages_.start(call);
  rows_.for_each_entries(call, [&](const Entries& entries) { run_entries(entries, call); });
  stages_.finish();
  gradients_.own().deliver(stop);
}

template <class T>
void MappedBackward<T>::run_entries(const Entries& entries, runtime::Call& call) {
  const MadeGradients<T> left = queries(entries);
  const MadeGradients<T> right = keys(entries);
  if (needs_left()) stages_to_.q.direct.data = origin(left_, left.places, left.width());
  if (needs_right()) stages_to_.k.direct.data = origin(right_, right.places, right.width());
  stages_.run_entries(call, entries);
  if (needs_left()) back(left, to_.query, to_.q, query_back_, dq_, query_gain_sums_, call);
  if (needs_right()) back(right, to_.key, to_.k, key_back_, dk_, key_gain_sums_, call);
  if (to_.score_v.given()) gradient_of_v(entries, call);
  if (sums_ != nullptr) add_to_sums(entries, call);
}

template <class T>
void MappedBackward<T>::back(const MadeGradients<T>& made, const core::RowMapTargets& maps,
                             const GradientTarget& input, const RowProduct<T>& by,
                             const GradientRows<T>& rows, T* gain_sums, runtime::Call& call) {
  using First = typename RowGradients<T>::First;
  if (input.given()) gradients_.map_back(made, by, rows, call);
  if (maps.gain.given()) gradients_.gain(made, by, gain_sums, maps.gain, call);
  if (maps.w.given()) {
    const bool transposed = made.input.maps.product.transposed;
    gradients_.parameter(made, transposed ? First::kInput : First::kGradients, maps.w, call);
  }
  if (maps.b.given()) gradients_.sum_rows(made, maps.b, call);
}

// Adds up the gradient of the additive score's v from the partial sums of the key blocks.
template <class T>
void MappedBackward<T>::gradient_of_v(const Entries& entries, runtime::Call& call) {
  const FusedGradientCall<T>& stages = stages_.call();
  const Index width = p_.U;
  gradients_.head_sums(entries, to_.score_v, width, call, [&](Index b, Index h, T*, T* to) {
    const KeyUnit unit = key_unit(stages.p, b * p_.H + h);
    for (Index n = 0; n < core::divide_up(unit.s.Tk, kGradientBlock); ++n) {
      kernels_.add(to, stages.v_sums + stages.key_block_of(unit, n) * width, width);
    }
  });
}

template <class T>
void MappedBackward<T>::add_to_sums(const Entries& entries, runtime::Call& call) const {
  const MadeGradients<T> made = keys(entries);
  const RowPlaces& all = rows_.keys().places;
  const Index width = made.width();
  for_each_row_block(
      call, made.places, entries, [&](Index b, Index h, Index row, Index count, auto&) {
        const Index place = all.of(b, h, row);
        kernels_.add(sums_->gradients + place * width, made.from(b, h, row).data, count * width);
        const std::uint8_t* const live = made.live_from(b, h, row);
        for (Index n = 0; n < count; ++n) {
          sums_->live[place + n] = static_cast<std::uint8_t>(sums_->live[place + n] | live[n]);
        }
      });
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_ROWMAPS_MAPPED_BACKWARD_H_
