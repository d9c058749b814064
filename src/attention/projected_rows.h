// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_PROJECTED_ROWS_H_
#define QKV_ATTENTION_PROJECTED_ROWS_H_

#include <atomic>

#include "attention/projection.h"

// The bilinear and the additive score as problems of which the stages of a fused pass know all but
// the score: queries, and keys of the additive one, are replaced by what is made of them once.
//   bilinear  left_i = q_i^T W                         right_j = k_j
//   additive  left_i = exp(2 (Wq q_i + b)) by units    right_j = exp(2 Wk k_j), one for each head
namespace qkv::door {

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

template <class T>
class ProjectedRows {
 public:
  ProjectedRows(const Problem& p, kernels::Target target)
      : p_(p),
        is_additive_(p.score == core::ScoreKind::kAdditive),
        tools_(p, target),
        inner_(p),
        query_projection_(is_additive_ ? Projection<T>(tools_, p.wq, p.U, p.Dq, Turned::kNo)
                                       : Projection<T>(tools_, p.w, p.Dk, p.Dq, Turned::kYes)),
        key_projection_(tools_, p.wk, p.U, p.Dk, Turned::kNo),
        query_places_(RowPlaces::of_queries(p)),
        key_places_{p.H, p.k_rows, p.packed()} {
    inner_.Dq = inner_.Dk = is_additive_ ? 2 * p.U : p.Dk;
    inner_.q = rows_operand<const T>(p, query_places_, inner_.Dq, nullptr);
    if (!is_additive_) {
      inner_.score = core::ScoreKind::kDot;
      return;
    }
    inner_.G = p.H;
    inner_.k = rows_operand<const T>(p, key_places_, inner_.Dk, nullptr);
    scores_.kernels = &kernels::additive_kernels<T>(target);
    scores_.units = p.U;
    scores_.chunks = pieces(p.U, core::kUnitChunk);
    scores_.queries = query_places_;
    scores_.keys = key_places_;
  }
  ProjectedRows(const ProjectedRows&) = delete;
  ProjectedRows& operator=(const ProjectedRows&) = delete;

  // The problem after projection, its scores (null: dot products), and the tools it came with.
  const Problem& problem() const { return inner_; }
  const AdditiveScores<T>* scores() const { return is_additive_ ? &scores_ : nullptr; }
  const DotCall<T>& tools() const { return tools_; }

  template <class AnyArena>
  void take(AnyArena& arena);
  std::size_t worker_bytes() const;
  void prepare(runtime::Call& call);

 private:
  struct Worker {
    T* copy = nullptr;  // a block of rows as T
    T* rows = nullptr;  // projected
  };
  template <class AnyArena>
  Worker take_worker(AnyArena& arena) const {
    const Index units = std::max(query_projection_.padded_units(), key_projection_.padded_units());
    return {arena.template take<T>(kProjectedRows * std::max(p_.Dq, p_.Dk)).data(),
            arena.template take<T>(kProjectedRows * units).data()};
  }
  void load_parameters();
  void project_queries(runtime::Call& call);
  void project_keys(runtime::Call& call);
  void put_exponentials(const RowsOf<const T>& a, Index rows, Index place, T* to,
                        std::uint8_t* flags);

  const Problem& p_;
  const bool is_additive_;
  DotCall<T> tools_;
  Problem inner_;
  AdditiveScores<T> scores_;
  Projection<T> query_projection_, key_projection_;
  RowPlaces query_places_, key_places_;
  T* left_ = nullptr;
  T* right_ = nullptr;
  T* v_ = nullptr;
  T* slopes_ = nullptr;
  T* b_ = nullptr;
  T* chunk_sums_ = nullptr;
  std::uint8_t* odd_v_ = nullptr;
  std::uint8_t* query_flags_ = nullptr;
  std::uint8_t* key_flags_ = nullptr;
  std::atomic<bool> any_power_{false};
};

// ---- memory ---------------------------------------------------------------------------------

template <class T>
template <class AnyArena>
void ProjectedRows<T>::take(AnyArena& arena) {
  const auto take = [&]<class V>(V*& to, Index n) { to = arena.template take<V>(n).data(); };
  query_projection_.take(arena);
  take(left_, query_places_.count(p_.B) * inner_.Dq);
  inner_.q.data = left_;
  if (!is_additive_) return;
  key_projection_.take(arena);
  take(right_, key_places_.count(p_.B) * inner_.Dk);
  inner_.k.data = right_;
  take(v_, p_.H * p_.U);
  take(slopes_, p_.H * p_.U);
  if (p_.score_b.given()) take(b_, p_.H * p_.U);
  take(chunk_sums_, p_.H * scores_.chunks);
  take(odd_v_, p_.H);
  take(query_flags_, query_places_.count(p_.B));
  take(key_flags_, key_places_.count(p_.B));
  scores_.v = v_;
  scores_.slopes = slopes_;
  scores_.chunk_sums = chunk_sums_;
  scores_.odd_v = odd_v_;
  scores_.query_flags = query_flags_;
  scores_.key_flags = key_flags_;
}

template <class T>
std::size_t ProjectedRows<T>::worker_bytes() const {
  core::MeasuringArena arena;
  take_worker(arena);
  return arena.bytes();
}

// ---- the work -------------------------------------------------------------------------------

template <class T>
void ProjectedRows<T>::prepare(runtime::Call& call) {
  take(call.shared());
  tools_.stop = call.stop_point();
  any_power_ = false;
  if (is_additive_) load_parameters();
  query_projection_.pack(call);
  project_queries(call);
  if (!is_additive_) return;
  key_projection_.pack(call);
  project_keys(call);
  scores_.powers = any_power_;
}

template <class T>
void ProjectedRows<T>::load_parameters() {
  constexpr T kHuge = sizeof(T) == 4 ? T(0x1p120) : T(0x1p1000);
  for (Index h = 0; h < p_.H; ++h) {
    T* v = v_ + h * p_.U;
    load_values(p_.score_v, core::offset_of(p_.score_v, 0, h, 0, 0), p_.score_v.col_stride, p_.U,
                v);
    if (p_.score_b.given()) {
      load_values(p_.score_b, core::offset_of(p_.score_b, 0, h, 0, 0), p_.score_b.col_stride, p_.U,
                  b_ + h * p_.U);
    }
    T size(0);
    for (Index chunk = 0; chunk < scores_.chunks; ++chunk) {
      T sum(0);
      const Index end = std::min(p_.U, (chunk + 1) * core::kUnitChunk);
      for (Index u = chunk * core::kUnitChunk; u < end; ++u) {
        sum += v[u];
        size += std::abs(v[u]);
        slopes_[h * p_.U + u] = T(4) * v[u];
      }
      chunk_sums_[h * scores_.chunks + chunk] = sum;
    }
    odd_v_[h] = static_cast<std::uint8_t>(!(size < kHuge));
    if (odd_v_[h] != 0) any_power_ = true;
  }
}

template <class T>
void ProjectedRows<T>::project_queries(runtime::Call& call) {
  for_each_row_block(
      call, p_, query_places_, [&](Index b, Index h, Index row, Index count, core::Arena& arena) {
        const Worker w = take_worker(arena);
        const Index stride = query_projection_.padded_units();
        query_projection_.apply(h, plain_rows(p_, p_.q, b, h, row, count, p_.Dq, w.copy), count,
                                {w.rows, stride});
        const Index place = query_places_.of(b, h, row);
        if (!is_additive_) {
          for (Index r = 0; r < count; ++r) {
            std::copy_n(w.rows + r * stride, p_.Dk, left_ + (place + r) * p_.Dk);
          }
          return;
        }
        for (Index r = 0; r < count && b_ != nullptr; ++r) {
          T* a = w.rows + r * stride;
          for (Index u = 0; u < p_.U; ++u) a[u] += b_[h * p_.U + u];
        }
        put_exponentials({w.rows, stride}, count, place, left_, query_flags_);
      });
}

template <class T>
void ProjectedRows<T>::project_keys(runtime::Call& call) {
  for_each_row_block(
      call, p_, key_places_, [&](Index b, Index h, Index row, Index count, core::Arena& arena) {
        const Worker w = take_worker(arena);
        const Index stride = key_projection_.padded_units();
        key_projection_.apply(h, plain_rows(p_, p_.k, b, p_.key_head(h), row, count, p_.Dk, w.copy),
                              count, {w.rows, stride});
        put_exponentials({w.rows, stride}, count, key_places_.of(b, h, row), right_, key_flags_);
      });
}

// Of rows of projected values, into the rows at `place` of `to`.
template <class T>
void ProjectedRows<T>::put_exponentials(const RowsOf<const T>& a, Index rows, Index place, T* to,
                                        std::uint8_t* flags) {
  for (Index r = 0; r < rows; ++r) {
    T* row = to + (place + r) * 2 * p_.U;
    const bool powers = scores_.kernels->exponentials(a.data + r * a.stride, p_.U, row, row + p_.U);
    flags[place + r] = static_cast<std::uint8_t>(powers);
    if (powers) any_power_ = true;
  }
}

}  // namespace qkv::door

#endif  // QKV_ATTENTION_PROJECTED_ROWS_H_
