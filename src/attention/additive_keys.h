// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_ADDITIVE_KEYS_H_
#define QKV_ATTENTION_ADDITIVE_KEYS_H_

#include <cmath>

#include "attention/additive_scores.h"
#include "attention/projection.h"

// What the additive score makes of its parameters and of keys: all that does not depend on queries.
//   right_j = exp(2 Wk k_j) by units, one for each query head
namespace qkv::door {

template <class T>
class AdditiveKeys {
 public:
  AdditiveKeys(const Problem& p, kernels::Target target)
      : query_projection_(p.wq, p.H, p.U, p.Dq, Turned::kNo),
        key_projection_(p.wk, p.H, p.U, p.Dk, Turned::kNo) {
    scores_.kernels = &kernels::additive_kernels<T>(target);
    scores_.units = p.U;
    scores_.queries = RowPlaces::of_queries(p);
    scores_.keys = {p.H, p.k_rows, p.packed()};
  }

  template <class AnyArena>
  void take(const Problem& p, AnyArena& arena);
  std::size_t worker_bytes(const Problem& p) const {
    core::MeasuringArena arena;
    take_worker(p, arena);
    return arena.bytes();
  }
  // `tools` are those of the problem that the keys belong to.
  void prepare(const FusedCall<T>& tools, runtime::Call& call);

  // Of the keys; nothing is known of queries.
  const AdditiveScores<T>& scores() const { return scores_; }
  const Projection<T>& query_projection() const { return query_projection_; }
  const T* rows() const { return rows_; }  // [B,H,k_rows][2 units]
  const T* bias(Index h) const { return b_ == nullptr ? nullptr : b_ + h * scores_.units; }

 private:
  template <class AnyArena>
  ProjectedBlock<T> take_worker(const Problem& p, AnyArena& arena) const {
    return ProjectedBlock<T>::take(arena, p.Dk, key_projection_.padded_units());
  }
  void load_parameters(const Problem& p);

  AdditiveScores<T> scores_;
  Projection<T> query_projection_, key_projection_;
  T* rows_ = nullptr;
  T* v_ = nullptr;
  T* b_ = nullptr;
  std::uint8_t* odd_v_ = nullptr;
  Range* ranges_ = nullptr;
};

template <class T>
template <class AnyArena>
void AdditiveKeys<T>::take(const Problem& p, AnyArena& arena) {
  const auto take = [&]<class V>(V*& to, Index n) { to = arena.template take<V>(n).data(); };
  query_projection_.take(arena);
  key_projection_.take(arena);
  take(rows_, scores_.keys.count(p.B) * 2 * p.U);
  take(v_, p.H * p.U);
  if (p.score_b.given()) take(b_, p.H * p.U);
  take(odd_v_, p.H);
  take(ranges_, scores_.keys.count(p.B));
  scores_.v = v_;
  scores_.odd_v = odd_v_;
  scores_.key_ranges = ranges_;
}

template <class T>
void AdditiveKeys<T>::prepare(const FusedCall<T>& tools, runtime::Call& call) {
  const Problem& p = tools.p;
  load_parameters(p);
  query_projection_.pack(tools, call);
  key_projection_.pack(tools, call);
  for_each_row_block(
      call, p, scores_.keys, [&](Index b, Index h, Index row, Index count, core::Arena& arena) {
        const ProjectedBlock<T> w = take_worker(p, arena);
        const RowsOf<T> projected{w.rows, key_projection_.padded_units()};
        key_projection_.apply(tools, h,
                              plain_rows(p, p.k, b, p.key_head(h), row, count, p.Dk, w.copy), count,
                              projected);
        scores_.put_exponentials(projected, count, scores_.keys.of(b, h, row), rows_, ranges_);
      });
  scores_.most = *std::max_element(ranges_, ranges_ + scores_.keys.count(p.B));
}

template <class T>
void AdditiveKeys<T>::load_parameters(const Problem& p) {
  for (Index h = 0; h < p.H; ++h) {
    T* v = v_ + h * p.U;
    const auto load = [&](const Operand& x, T* to) {
      load_values(x, core::offset_of(x, 0, h, 0, 0), x.col_stride, p.U, to);
    };
    load(p.score_v, v);
    if (p.score_b.given()) load(p.score_b, b_ + h * p.U);
    odd_v_[h] = static_cast<std::uint8_t>(
        !std::all_of(v, v + p.U, [](T value) { return std::isfinite(value); }));
  }
}

}  // namespace qkv::door

#endif  // QKV_ATTENTION_ADDITIVE_KEYS_H_
