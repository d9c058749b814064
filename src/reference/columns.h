// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_COLUMNS_H_
#define QKV_REFERENCE_COLUMNS_H_

#include <algorithm>

#include "core/floats.h"
#include "core/integers.h"
#include "core/results.h"
#include "reference/row.h"
#include "reference/softmax.h"

// Results that sum weights over queries, in plain loops. The scores are recomputed once the softmax
// state of every row is known:
//   column_sums_j = sum_i w_ij                            over all queries, or listed ones
//   value_sums_j  = |v_j| column_sums_j                   0 where the sum is 0, whatever v holds;
//                   |.| is Euclidean: w |v| is the length of what the key adds to the output
//   pooled_ac     = (sum of w_ij over i in a, j in c) / (queries in a)
namespace qkv::reference {

using core::ColumnSumsResult;
using core::PooledResult;
using core::ResultOperand;

template <class T>
T& result_at(const Problem& p, const ResultOperand& to, Index b, Index h, Index row, Index col) {
  const Index entry = core::batch_offset(to, p.batch, b);
  return static_cast<T*>(to.data)[core::offset_of(to, entry, h, row, col)];
}

template <class T>
class Columns {
 public:
  Columns(const Problem& p, const ColumnSumsResult& sums, const PooledResult& pooled)
      : p_(p), sums_(sums), pooled_(pooled) {}

  bool wanted() const { return sums_.given() || pooled_.given(); }
  template <class AnyArena>
  void take_shared(AnyArena& arena) {
    if (!wanted()) return;
    for (RowsOf<T>* rows : {&max_, &sum_}) {
      *rows = {nullptr, 1, p_.H, p_.q_rows, p_.packed()};
      rows->data = arena.template take<T>(rows->count(p_.B)).data();
    }
  }
  std::size_t worker_bytes() const {
    MeasuringArena arena;
    take_worker(arena);
    return arena.bytes();
  }
  // Stores the maximum and the sum of one row's softmax state.
  void store_state(Index b, Index h, Index row, const Softmax<T>& state) const {
    if (!wanted()) return;
    *max_.of(b, h, row) = state.nan ? T(kNaN<T>) : state.max;
    *sum_.of(b, h, row) = state.sum;
  }
  template <class Call>
  void run(Call& call, const Prepared<T>& x) const;

 private:
  struct Worker {
    Row<T> row;
    T* total = nullptr;
    T* block = nullptr;
  };
  template <class AnyArena>
  Worker take_worker(AnyArena& arena) const {
    Worker w;
    w.row = Row<T>::take(arena, core::kKeyChunk);
    w.total = arena.template take<T>(core::kKeyChunk).data();
    w.block = arena.template take<T>(core::kKeyChunk).data();
    return w;
  }
  void sum_keys(const Prepared<T>& x, Index b, Index h, Index j0, Worker w) const;
  void pool_row(const Prepared<T>& x, Index b, Index h, Index cell, Worker w) const;
  void add_query(const Prepared<T>& x, const QueryAt& at, Index j0, Index count, Worker& w) const;

  const Problem& p_;
  const ColumnSumsResult& sums_;
  const PooledResult& pooled_;
  RowsOf<T> max_, sum_;
};

template <class T>
template <class Call>
void Columns<T>::run(Call& call, const Prepared<T>& x) const {
  if (sums_.given()) {
    const Index blocks = core::divide_up(p_.Tk, core::kGradientBlock);
    call.for_each_task(p_.B * p_.H * blocks, [&](Index task, core::Arena& arena) {
      const Index head = task / blocks;
      sum_keys(x, head / p_.H, head % p_.H, task % blocks * core::kGradientBlock,
               take_worker(arena));
    });
  }
  if (!pooled_.given()) return;
  call.for_each_task(p_.B * p_.H * pooled_.m, [&](Index task, core::Arena& arena) {
    const Index head = task / pooled_.m;
    pool_row(x, head / p_.H, head % p_.H, task % pooled_.m, take_worker(arena));
  });
}

// Adds the weight of query at.i and key j0 + n to w.block[n], for n < count.
template <class T>
void Columns<T>::add_query(const Prepared<T>& x, const QueryAt& at, Index j0, Index count,
                           Worker& w) const {
  x.stop();
  score_row(p_, x, at, j0, count, false, w.row);
  const Index row = p_.sequence(at.b).q0 + at.i;
  Softmax<T> state;
  state.empty = false;
  state.max = *max_.of(at.b, at.h, row);
  state.sum = *sum_.of(at.b, at.h, row);
  state.nan = std::isnan(real_part(state.max));
  const Scores<T> scores{w.row.s, w.row.live, w.row.count, p_.key_chunk};
  for (Index n = 0; n < count; ++n) w.block[n] += weight(scores, state, n);
}

// Computes the sums of the block of keys from j0 on. The weights of all queries, or of the listed
// ones, are summed in blocks, each from zero, in ascending order.
template <class T>
void Columns<T>::sum_keys(const Prepared<T>& x, Index b, Index h, Index j0, Worker w) const {
  const Sequence s = p_.sequence(b);
  if (j0 >= s.Tk) return;
  const Index offset = p_.diagonal_offset(b, s);
  const Index count = std::min(s.Tk - j0, core::kGradientBlock);
  const Index queries = sums_.indices.given() ? sums_.count : s.Tq;
  std::fill(w.total, w.total + count, T(0));
  for (Index n0 = 0; n0 < queries; n0 += core::kGradientBlock) {
    std::fill(w.block, w.block + count, T(0));
    for (Index n = n0; n < std::min(queries, n0 + core::kGradientBlock); ++n) {
      const Index i = sums_.indices.given()
                          ? core::load<Index>(sums_.indices.dtype, sums_.indices.data,
                                              n * sums_.indices.row_stride)
                          : n;
      add_query(x, {b, h, i, offset}, j0, count, w);
    }
    for (Index n = 0; n < count; ++n) w.total[n] += w.block[n];
  }
  for (Index n = 0; n < count; ++n) {
    const Index row = s.k0 + j0 + n;
    const T sum = w.total[n];
    if (sums_.sums.given()) result_at<T>(p_, sums_.sums, b, h, row, 0) = sum;
    if (!sums_.value_sums.given()) continue;
    T& value_sum = result_at<T>(p_, sums_.value_sums, b, h, row, 0);
    value_sum = T(0);
    if (real_part(sum) == 0) continue;
    const T* v = x.value_of(p_, b, h) + (j0 + n) * p_.E;
    const double length = core::euclidean_length(p_.E, [&](Index c) { return real_part(v[c]); });
    value_sum = sum * static_cast<RealOf<T>>(length);
  }
}

// Computes one row of cells, in three steps: the weights of each key are summed over queries, in
// blocks that end at multiples of kGradientBlock, each from zero; these sums over the keys of a
// cell in each chunk, from zero; and the sums of chunks over all chunks.
template <class T>
void Columns<T>::pool_row(const Prepared<T>& x, Index b, Index h, Index cell, Worker w) const {
  const Sequence s = p_.sequence(b);
  const Index offset = p_.diagonal_offset(b, s);
  const auto at = [&](Index c) -> T& { return result_at<T>(p_, pooled_.cells, b, h, cell, c); };
  for (Index c = 0; c < pooled_.n; ++c) at(c) = T(0);
  const Index i0 = core::cell_begin(cell, s.Tq, pooled_.m);
  const Index i1 = core::cell_begin(cell + 1, s.Tq, pooled_.m);
  if (i0 == i1) return;
  for (Index j0 = 0; j0 < s.Tk; j0 += p_.key_chunk) {
    const Index count = std::min(s.Tk - j0, p_.key_chunk);
    std::fill(w.total, w.total + count, T(0));
    for (Index i = i0; i < i1;) {
      const Index end = std::min(i1, (i / core::kGradientBlock + 1) * core::kGradientBlock);
      std::fill(w.block, w.block + count, T(0));
      for (; i < end; ++i) add_query(x, {b, h, i, offset}, j0, count, w);
      for (Index n = 0; n < count; ++n) w.total[n] += w.block[n];
    }
    for (Index n = 0; n < count;) {
      const Index c = core::cell_of(j0 + n, s.Tk, pooled_.n);
      const Index end = std::min(count, core::cell_begin(c + 1, s.Tk, pooled_.n) - j0);
      T part(0);
      for (; n < end; ++n) part += w.total[n];
      at(c) += part;
    }
  }
  for (Index c = 0; c < pooled_.n; ++c) at(c) /= static_cast<RealOf<T>>(i1 - i0);
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_COLUMNS_H_
