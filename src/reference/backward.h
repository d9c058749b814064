// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_BACKWARD_H_
#define QKV_REFERENCE_BACKWARD_H_

#include <algorithm>

#include "core/own_gradients.h"
#include "core/results.h"
#include "core/stop.h"
#include "expressions/captured_gradients.h"
#include "reference/gradient_row.h"
#include "reference/row_sums.h"

// Gradients computed from the saved out and lse, not from saved weights (Dao et al. 2022, appendix
// B.2), in plain loops and two sweeps: over queries for the gradients of queries, over keys for the
// gradients of keys and values. Each sum is computed by one task in a fixed order. Gradients of
// queries are summed in blocks of kGradientBlock keys, gradients of keys and values in blocks of
// kGradientBlock queries: each block from zero, in ascending order.
namespace qkv::reference {

using core::GradientResults;
using core::GradientTarget;
using core::kGradientBlock;

// The number of queries of one task of the query sweep, which changes no bit of the results.
inline constexpr Index kQueriesPerBackwardTask = 32;

template <class T>
class Backward {
 public:
  // `products` must be Products::kPlain unless multiplies_bfloat16(p, from).
  Backward(const Problem& p, const GradientSources& from, const GradientResults& to,
           Products products = Products::kPlain)
      : p_(p), from_(from), to_(to), products_(products), own_(p, to) {}

  template <class AnyArena>
  void take_shared(AnyArena& arena) {
    x_ = take_prepared<T>(p_, arena);
    x_.products = products_;
    const auto take = [&](Index width, Index heads, Index total) {
      RowsOf<T> rows{nullptr, width, heads, total, p_.packed()};
      rows.data = arena.template take<T>(rows.count(p_.B) * width).data();
      return rows;
    };
    query_live_ = take_flags(arena, p_.H, p_.q_rows);
    if (maps_keys(p_)) key_live_ = take_flags(arena, right_heads(p_), p_.k_rows);
    delta_ = take(1, p_.H, p_.q_rows);
    factor_ = take(1, p_.H, p_.q_rows);
    dleft_ = take(score_width(p_), p_.H, p_.q_rows);
    dright_ = take(score_width(p_), right_heads(p_), p_.k_rows);
    dvalue_ = take(p_.E, p_.G, p_.k_rows);
    dalibi_ = take(1, p_.H, p_.q_rows);
    dsinks_ = take(1, p_.H, p_.q_rows);
    if (p_.score_v.given()) dscore_v_ = take(p_.U, p_.H, p_.q_rows);
    if (maps_queries(p_)) dq_ = take(p_.Dq, p_.H, p_.q_rows);
    if (maps_keys(p_)) dk_ = take(p_.Dk, right_heads(p_), p_.k_rows);
    own_.take(arena, [](const GradientTarget&) { return true; });
  }
  std::size_t worker_bytes() const {
    MeasuringArena arena;
    take_worker(arena);
    MeasuringArena back;
    take_back_worker(back);
    return std::max({arena.bytes(), back.bytes(), prepare_scratch<T>(p_)});
  }

  // Computes the gradients, or only the weight sums if `to` requests them. `call` has the shared
  // memory that take_shared() takes, and runs tasks (runtime/tasks.h).
  template <class Call>
  void run(Call& call);

 private:
  struct Worker {
    GradientRow<T> row;
    T* block = nullptr;     // sums of one block, added to the total when the block ends
    T* block_v = nullptr;   // such sums of d value, or of the gradient of the additive score's v
    T* chains = nullptr;    // scratch memory of RowSums: of one query, or of each key of a block
    T* chains_v = nullptr;  // such memory for d value
  };

  template <class AnyArena>
  Worker take_worker(AnyArena& arena) const {
    Worker w;
    w.row = GradientRow<T>::take(arena, p_.Tk, p_.E);
    w.block = arena.template take<T>(kGradientBlock * score_width(p_)).data();
    w.block_v = arena.template take<T>(std::max(kGradientBlock * p_.E, p_.U)).data();
    w.chains = arena.template take<T>(kGradientBlock * scratch(score_width(p_))).data();
    w.chains_v = arena.template take<T>(kGradientBlock * scratch(p_.E)).data();
    return w;
  }

  // Scratch memory for the backward pass of the transforms of one row.
  struct BackWorker {
    T* row = nullptr;      // [width]: a row of q or k
    T* outputs = nullptr;  // [transforms][width]: the row after each transform
    T* sums = nullptr;     // [width]: a sum of rows
  };
  template <class AnyArena>
  BackWorker take_back_worker(AnyArena& arena) const {
    const Index width = std::max(p_.Dq, p_.Dk);
    const std::size_t maps = std::max(p_.query_maps.maps().size(), p_.key_maps.maps().size());
    BackWorker w;
    w.row = arena.template take<T>(width).data();
    w.outputs = arena.template take<T>(static_cast<Index>(maps) * width).data();
    w.sums = arena.template take<T>(width).data();
    return w;
  }

  template <class AnyArena>
  RowsOf<std::uint8_t> take_flags(AnyArena& arena, Index heads, Index total) const {
    RowsOf<std::uint8_t> rows{nullptr, 1, heads, total, p_.packed()};
    rows.data = arena.template take<std::uint8_t>(rows.count(p_.B)).data();
    return rows;
  }

  Index scratch(Index width) const { return RowSums<T>::scratch(products_, width); }

  QueryAt query_at(Index b, Index h, Index i) const {
    return {b, h, i, p_.diagonal_offset(b, p_.sequence(b))};
  }

  // Initialises the sums of a row of a gradient: to zeros, or to the buffer's numbers if the call
  // continues them.
  void begin_sum(const GradientTarget& to, Index b, Index head, Index row, Index width,
                 T* sums) const {
    std::fill_n(sums, width, T(0));
    if (!to.given() || !to.continues) return;
    const core::ResultOperand& x = to.direct;
    const Index first = core::offset_of(x, core::batch_offset(x, p_.batch, b), head, row, 0);
    for (Index c = 0; c < width; ++c) {
      sums[c] = core::load<T>(x.dtype, x.data, first + c * x.col_stride);
    }
  }
  void add_weight_sum(const QueryAt& at, Index row, const GradientRow<T>& weights) const {
    const core::ResultOperand& x = to_.weight_sums;
    if (!core::has_large_lse(real_part(element<T>(p_, from_.lse, at.b, at.h, row, 0)))) return;
    const Index offset = core::offset_of(x, core::batch_offset(x, p_.batch, at.b), at.h, row, 0);
    core::store(x.dtype, x.data, offset,
                add_weights(weights, core::load<double>(x.dtype, x.data, offset)));
  }
  void query_sweep(Index b, Index h, Index i0, core::Arena& arena);
  void left_gradient(const QueryAt& at, Worker& w);
  void key_sweep(Index b, Index g, Index j0, core::Arena& arena);
  void add_query_block(const QueryAt& first, Index queries, Index j0, Index count, Worker& w);
  template <class F>
  void for_each_row(Index i0, Index i1, core::Arena& arena, const F& f);
  void bias_gradient(Index i0, Index i1, core::Arena& arena);
  void captured_gradients(core::Arena& arena);
  struct Side;
  void map_back(const Side& side, Index b, Index head, const BackWorker& w, T* dg);
  template <class Call>
  void maps_back(const Side& side, Call& call);
  void product_gradients(const Side& side, Index u, const BackWorker& w);
  void score_v_gradient(Index u);
  template <class Call>
  void parameter_gradients(Call& call);
  void input_gradients();
  void sum_into_own(const RowsOf<T>& rows, bool keys, const GradientTarget& target);

  const Problem& p_;
  const GradientSources& from_;
  const GradientResults& to_;
  Products products_ = Products::kPlain;
  Prepared<T> x_;
  // Whether each query and each row of `right` is in an unmasked pair. All other rows are skipped,
  // whatever they hold: 0 * NaN would be NaN.
  RowsOf<std::uint8_t> query_live_, key_live_;
  RowsOf<T> delta_, factor_;  // per query
  RowsOf<T> dleft_, dright_, dvalue_;
  RowsOf<T> dalibi_, dsinks_, dscore_v_;  // each query's term of a sum
  RowsOf<T> dq_, dk_;                     // with transforms; else dleft_, dright_ are dq, dk
  core::OwnGradients<T> own_;
};

template <class T>
template <class Call>
void Backward<T>::run(Call& call) {
  take_shared(call.shared());
  x_.stop = call.stop_point();
  prepare(p_, x_, call);
  const Index q_blocks = core::divide_up(p_.Tq, kQueriesPerBackwardTask);
  call.for_each_task(p_.B * p_.H * q_blocks, [&](Index task, core::Arena& arena) {
    const Index head = task / q_blocks;
    query_sweep(head / p_.H, head % p_.H, task % q_blocks * kQueriesPerBackwardTask, arena);
  });
  if (to_.weight_sums.given()) return;
  const Index k_blocks = core::divide_up(p_.Tk, kGradientBlock);
  call.for_each_task(p_.B * p_.G * k_blocks, [&](Index task, core::Arena& arena) {
    const Index head = task / k_blocks;
    key_sweep(head / p_.G, head % p_.G, task % k_blocks * kGradientBlock, arena);
  });
  parameter_gradients(call);
  input_gradients();
  own_.deliver(x_.stop);
}

// Computes delta, d left and each query's terms of the sums over all queries, for one task's
// queries of one head, from i0 on.
template <class T>
void Backward<T>::query_sweep(Index b, Index h, Index i0, core::Arena& arena) {
  Worker w = take_worker(arena);
  const Sequence s = p_.sequence(b);
  for (Index i = i0; i < std::min(s.Tq, i0 + kQueriesPerBackwardTask); ++i) {
    const QueryAt at = query_at(b, h, i);
    const bool any_live = weight_gradients(p_, x_, from_, at, 0, s.Tk, T(1), w.row);
    if (to_.weight_sums.given()) {
      add_weight_sum(at, s.q0 + i, w.row);
      continue;
    }
    T& factor = *factor_.of(b, h, s.q0 + i);
    factor = row_factor(p_, from_, at, w.row);
    for (Index n = 0; n < s.Tk; ++n) w.row.w[n] *= factor;
    *query_live_.of(b, h, s.q0 + i) = any_live;
    T& delta = *delta_.of(b, h, s.q0 + i);
    // Keys outside this call may be unmasked, too, and lse covers all keys.
    const bool any_live_key = p_.has_part_of_keys()
                                  ? element<T>(p_, from_.lse, b, h, s.q0 + i, 0) != T(-kInfinity<T>)
                                  : any_live;
    delta = row_delta(p_, x_, from_, at, any_live_key, w.row);
    score_gradients(delta, w.row);
    left_gradient(at, w);
    *dsinks_.of(b, h, s.q0 + i) = sink_gradient(p_, from_, at, any_live_key, factor, delta);
    *dalibi_.of(b, h, s.q0 + i) = alibi_gradient(at, w.row);
  }
}

// Computes the gradients of `left` and of the additive score's v for one query:
//   dot       d left_i = sum_j d_product_ij right_j
//   additive  d left_iu = sum_j d_product_ij v_u (1 - t_iju^2),  dv_u += sum_j d_product_ij t_iju
template <class T>
void Backward<T>::left_gradient(const QueryAt& at, Worker& w) {
  const Index width = score_width(p_);
  const Index row = p_.sequence(at.b).q0 + at.i;
  const T* left = x_.left_of(p_, at.b, at.h) + at.i * width;
  const T* right = x_.right_of(p_, at.b, at.h);
  T* total = dleft_.of(at.b, at.h, row);
  begin_sum(to_.q, at.b, at.h, row, width, total);
  const bool sums_v = p_.score_v.given();
  T* total_v = sums_v ? dscore_v_.of(at.b, at.h, row) : nullptr;
  if (sums_v) std::fill(total_v, total_v + width, T(0));
  for (Index j0 = 0; j0 < w.row.scores.count; j0 += kGradientBlock) {
    x_.stop();
    std::fill(w.block, w.block + width, T(0));
    std::fill(w.block_v, w.block_v + (sums_v ? width : 0), T(0));
    const Index end = std::min(w.row.scores.count, j0 + kGradientBlock);
    RowSums<T> sums(products_, w.chains, width);
    sums.begin(j0, w.block);
    core::for_each_term(products_, j0, end, [&](Index j) {
      if (!w.row.scores.live[j]) return;
      const T d_product = w.row.d_product[j];
      const T* right_j = right + j * width;
      switch (p_.product) {
        case PairProduct::kDot:
          sums.add(j, d_product, right_j);
          break;
        case PairProduct::kTanh: {
          const T* v = x_.score_v.of(0, at.h, 0);
          for (Index u = 0; u < width; ++u) {
            const T t = reference::tanh(left[u] + right_j[u]);
            w.block[u] = fused_multiply_add(d_product, v[u] * (T(1) - t * t), w.block[u]);
            w.block_v[u] = fused_multiply_add(d_product, t, w.block_v[u]);
          }
          break;
        }
      }
    });
    sums.end();
    for (Index c = 0; c < width; ++c) total[c] += w.block[c];
    for (Index u = 0; sums_v && u < width; ++u) total_v[u] += w.block_v[u];
  }
}

// Computes d right and d value for the block of keys from j0 on, of one key head: sums over the
// query heads that read this key head, and over the queries of each of them, in ascending order.
template <class T>
void Backward<T>::key_sweep(Index b, Index g, Index j0, core::Arena& arena) {
  Worker w = take_worker(arena);
  const Sequence s = p_.sequence(b);
  const Index count = std::min(s.Tk - j0, kGradientBlock);
  if (count <= 0) return;
  const bool per_query_head = p_.key_maps.product.given();
  const Index width = score_width(p_);
  T* dvalue = dvalue_.of(b, g, s.k0 + j0);
  for (Index n = 0; n < count; ++n) {
    begin_sum(to_.v, b, g, s.k0 + j0 + n, p_.E, dvalue + n * p_.E);
  }
  const auto begin_rows = [&](Index head) {
    T* const rows = dright_.of(b, head, s.k0 + j0);
    for (Index n = 0; n < count; ++n) {
      begin_sum(to_.k, b, head, s.k0 + j0 + n, width, rows + n * width);
    }
    if (maps_keys(p_)) std::fill_n(key_live_.of(b, head, s.k0 + j0), count, std::uint8_t{0});
  };
  if (!per_query_head) begin_rows(g);
  for (Index h = 0; h < p_.H; ++h) {
    if (p_.key_head(h) != g) continue;
    T* dright = dright_.of(b, per_query_head ? h : g, s.k0 + j0);
    if (per_query_head) begin_rows(h);
    for (Index i0 = 0; i0 < s.Tq; i0 += kGradientBlock) {
      std::fill(w.block, w.block + count * width, T(0));
      std::fill(w.block_v, w.block_v + count * p_.E, T(0));
      add_query_block(query_at(b, h, i0), std::min(s.Tq - i0, kGradientBlock), j0, count, w);
      for (Index n = 0; n < count * width; ++n) dright[n] += w.block[n];
      for (Index n = 0; n < count * p_.E; ++n) dvalue[n] += w.block_v[n];
    }
  }
}

// Adds the terms of a block of queries to w.block and w.block_v, sums of the gradients of `right`
// and of the values, for `count` keys from j0 on:
//   dot       d right_j = sum_i d_product_ij left_i
//   additive  d right_ju = sum_i d_product_ij v_u (1 - t_iju^2)
//   d value_j = sum_i w_ij z_ij dout_i
template <class T>
void Backward<T>::add_query_block(const QueryAt& first, Index queries, Index j0, Index count,
                                  Worker& w) {
  const Index width = score_width(p_);
  const Index q0 = p_.sequence(first.b).q0;
  const T* right = x_.right_of(p_, first.b, first.h) + j0 * width;
  const T keep = static_cast<T>(1 - p_.dropout);
  RowSums<T> sums[kGradientBlock];
  RowSums<T> sums_v[kGradientBlock];
  for (Index n = 0; n < count; ++n) {
    sums[n] = RowSums<T>(products_, w.chains + n * scratch(width), width);
    sums[n].begin(first.i, w.block + n * width);
    sums_v[n] = RowSums<T>(products_, w.chains_v + n * scratch(p_.E), p_.E);
    sums_v[n].begin(first.i, w.block_v + n * p_.E);
  }
  core::for_each_term(products_, first.i, first.i + queries, [&](Index i) {
    x_.stop();
    const QueryAt at{first.b, first.h, i, first.o};
    if (!weight_gradients(p_, x_, from_, at, j0, count, *factor_.of(at.b, at.h, q0 + i), w.row)) {
      return;
    }
    score_gradients(*delta_.of(at.b, at.h, q0 + i), w.row);
    const T* left = x_.left_of(p_, at.b, at.h) + i * width;
    for (Index n = 0; n < count; ++n) {
      if (!w.row.scores.live[n]) continue;
      const T d_product = w.row.d_product[n];
      T* dright = w.block + n * width;
      if (maps_keys(p_)) {
        key_live_.of(at.b, right_head(p_, at.h), p_.sequence(at.b).k0 + j0)[n] = 1;
      }
      switch (p_.product) {
        case PairProduct::kDot:
          sums[n].add(i, d_product, left);
          break;
        case PairProduct::kTanh: {
          const T* v = x_.score_v.of(0, at.h, 0);
          for (Index u = 0; u < width; ++u) {
            const T t = reference::tanh(left[u] + right[n * width + u]);
            dright[u] = fused_multiply_add(d_product, v[u] * (T(1) - t * t), dright[u]);
          }
          break;
        }
      }
      if (!from_.dout.given()) continue;
      const T kept_weight = w.row.kept[n] ? w.row.w[n] / keep : T(0);
      sums_v[n].add(i, kept_weight, w.row.g);
    }
  });
  for (Index n = 0; n < count; ++n) {
    sums[n].end();
    sums_v[n].end();
  }
}

}  // namespace qkv::reference

#include "core/integers.h"
#include "reference/backward_parameters.h"  // the other members of Backward

#endif  // QKV_REFERENCE_BACKWARD_H_
