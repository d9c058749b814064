// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_PROJECTED_ROWS_H_
#define QKV_ATTENTION_PROJECTED_ROWS_H_

#include "attention/additive_keys.h"

// The bilinear and the additive score as problems of which the stages of a fused pass know all but
// the score: queries, and keys of the additive one, are replaced by what is made of them once.
//   bilinear  left_i = q_i^T W                         right_j = k_j
//   additive  left_i = exp(2 (Wq q_i + b)) by units    right_j: attention/additive_keys.h
namespace qkv::door {

template <class T>
class ProjectedRows {
 public:
  // `made`, where given, has been prepared and belongs to this problem's keys.
  ProjectedRows(const Problem& p, kernels::Target target, const AdditiveKeys<T>* made = nullptr)
      : p_(p),
        is_additive_(core::product_of(p.score) == core::PairProduct::kTanh),
        tools_(p, target),
        inner_(p),
        projection_(p.w, p.H, p.Dk, p.Dq, Turned::kYes),
        own_keys_(p, target),
        keys_(made == nullptr ? own_keys_ : *made),
        places_(RowPlaces::of_queries(p)) {
    inner_.Dq = inner_.Dk = is_additive_ ? 2 * p.U : p.Dk;
    inner_.q = rows_operand<const T>(p, places_, inner_.Dq, nullptr);
    if (!is_additive_) {
      inner_.score = core::ScoreKind::kDot;
      return;
    }
    scores_ = own_keys_.scores();
    inner_.G = p.H;
    inner_.k = rows_operand<const T>(p, scores_.keys, inner_.Dk, nullptr);
  }
  ProjectedRows(const ProjectedRows&) = delete;
  ProjectedRows& operator=(const ProjectedRows&) = delete;

  // The problem after projection, its scores (null: dot products), and the tools it came with.
  const Problem& problem() const { return inner_; }
  const AdditiveScores<T>* scores() const { return is_additive_ ? &scores_ : nullptr; }
  const FusedCall<T>& tools() const { return tools_; }

  template <class AnyArena>
  void take(AnyArena& arena);
  std::size_t worker_bytes() const {
    core::MeasuringArena arena;
    take_worker(arena);
    return std::max(arena.bytes(), makes_keys() ? own_keys_.worker_bytes(p_) : 0);
  }
  void prepare(runtime::Call& call);

 private:
  bool makes_keys() const { return is_additive_ && &keys_ == &own_keys_; }
  const Projection<T>& projection() const {
    return is_additive_ ? keys_.query_projection() : projection_;
  }
  template <class AnyArena>
  ProjectedBlock<T> take_worker(AnyArena& arena) const {
    return ProjectedBlock<T>::take(arena, p_.Dq, projection().padded_units());
  }
  void put(const RowsOf<T>& projected, Index h, Index rows, Index place) const;

  const Problem& p_;
  const bool is_additive_;
  FusedCall<T> tools_;
  Problem inner_;
  AdditiveScores<T> scores_;
  Projection<T> projection_;  // bilinear
  AdditiveKeys<T> own_keys_;
  const AdditiveKeys<T>& keys_;
  RowPlaces places_;
  T* left_ = nullptr;
  Range* ranges_ = nullptr;
};

template <class T>
template <class AnyArena>
void ProjectedRows<T>::take(AnyArena& arena) {
  left_ = arena.template take<T>(places_.count(p_.B) * inner_.Dq).data();
  if (!is_additive_) return projection_.take(arena);
  ranges_ = arena.template take<Range>(places_.count(p_.B)).data();
  if (makes_keys()) own_keys_.take(p_, arena);
}

template <class T>
void ProjectedRows<T>::prepare(runtime::Call& call) {
  take(call.shared());
  tools_.stop = call.stop_point();
  inner_.q.data = left_;
  if (!is_additive_) projection_.pack(tools_, call);
  if (makes_keys()) own_keys_.prepare(tools_, call);
  for_each_row_block(
      call, p_, places_, [&](Index b, Index h, Index row, Index count, core::Arena& arena) {
        const ProjectedBlock<T> w = take_worker(arena);
        const RowsOf<T> projected{w.rows, projection().padded_units()};
        projection().apply(tools_, h, plain_rows(p_, p_.q, b, h, row, count, p_.Dq, w.copy), count,
                           projected);
        put(projected, h, count, places_.of(b, h, row));
      });
  if (!is_additive_) return;
  inner_.k.data = keys_.rows();
  const RowPlaces queries = scores_.queries;
  scores_ = keys_.scores();
  scores_.queries = queries;
  scores_.query_ranges = ranges_;
  scores_.most = std::max(scores_.most, *std::max_element(ranges_, ranges_ + places_.count(p_.B)));
}

template <class T>
void ProjectedRows<T>::put(const RowsOf<T>& projected, Index h, Index rows, Index place) const {
  if (!is_additive_) {
    for (Index r = 0; r < rows; ++r) {
      std::copy_n(projected.data + r * projected.stride, p_.Dk, left_ + (place + r) * p_.Dk);
    }
    return;
  }
  const T* b = keys_.bias(h);
  for (Index r = 0; r < rows && b != nullptr; ++r) {
    T* a = projected.data + r * projected.stride;
    for (Index u = 0; u < p_.U; ++u) a[u] += b[u];
  }
  scores_.put_exponentials(projected, rows, place, left_, ranges_);
}

}  // namespace qkv::door

#endif  // QKV_ATTENTION_PROJECTED_ROWS_H_
