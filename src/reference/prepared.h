// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_PREPARED_H_
#define QKV_REFERENCE_PREPARED_H_

#include "core/arena.h"
#include "core/bfloat16_products.h"
#include "core/head_rows.h"
#include "core/problem.h"
#include "core/stop.h"
#include "reference/row_maps.h"
#include "reference/scalar.h"

// The rows from which scores are computed: for each head a matrix of queries (left) and one of keys
// (right), after the input transforms ("row maps"), as plain rows of T.
//   dot       left_i = q_i            right_j = k_j            s = left_i . right_j
//   cosine    left_i = q_i / |q_i|    right_j = k_j / |k_j|    s = left_i . right_j
//   bilinear  left_i = q_i^T W        right_j = k_j            s = left_i . right_j
//   additive  left_i = Wq q_i + b     right_j = Wk k_j
//             s = sum_u v_u tanh(left_iu + right_ju)
namespace qkv::reference {

using core::MeasuringArena;
using core::PairProduct;
using core::Problem;
using core::Sequence;

// Rows of `width` values, one per (b, head, row): [B, heads, T, width], or for packed sequences
// [heads, sum T, width].
template <class T>
struct RowsOf {
  T* data = nullptr;
  Index width = 0;
  Index heads = 0;
  Index total = 0;      // rows of one head: T, or sum T
  bool packed = false;  // whether the rows are of packed sequences

  // Returns row `first` of (b, head). In packed sequences rows are counted over all sequences.
  T* of(Index b, Index head, Index first) const noexcept {
    const Index block = packed ? head : b * heads + head;
    return data + (block * total + first) * width;
  }
  Index count(Index B) const noexcept { return (packed ? 1 : B) * heads * total; }
};

// The width of `left` and `right`.
inline Index score_width(const Problem& p) noexcept { return p.query_maps.width(p.Dq); }

// True if there is a transform between q and `left`.
inline bool maps_queries(const Problem& p) noexcept { return !p.query_maps.is_identity(); }
// True if there is a transform between k and `right`.
inline bool maps_keys(const Problem& p) noexcept { return !p.key_maps.is_identity(); }
// The number of heads of `right`. right_head() is the head of `right` that query head h uses.
inline Index right_heads(const Problem& p) noexcept {
  return p.key_maps.product.given() ? p.H : p.G;
}
inline Index right_head(const Problem& p, Index h) noexcept {
  return p.key_maps.product.given() ? h : p.key_head(h);
}

template <class T>
struct Prepared {
  RowsOf<T> left;     // per query head
  RowsOf<T> right;    // per head of right_heads
  RowsOf<T> value;    // per key head
  RowsOf<T> score_v;  // the additive score's v: U values per query head, for all b
  core::Products products = core::Products::kPlain;  // core/bfloat16_products.h
  core::StopPoint stop;                              // polled in each row, since rows may be long

  const T* left_of(const Problem& p, Index b, Index h) const {
    return left.of(b, h, p.sequence(b).q0);
  }
  const T* right_of(const Problem& p, Index b, Index h) const {
    return right.of(b, right_head(p, h), p.sequence(b).k0);
  }
  const T* value_of(const Problem& p, Index b, Index h) const {
    return value.of(b, p.key_head(h), p.sequence(b).k0);
  }
};

template <class T>
T element(const Problem& p, const Operand& x, Index b, Index h, Index row, Index col) {
  const Index entry = core::batch_offset(x, p.batch, b);
  return core::load<T>(x.dtype, x.data, core::offset_of(x, entry, h, row, col));
}

// Loads n values of row (b, h, row) of an operand as T.
template <class T>
void load_row(const Problem& p, const Operand& x, Index b, Index h, Index row, Index n, T* to) {
  const Index first = core::HeadRows(p, x, b, h, 0).offset(row);
  for (Index c = 0; c < n; ++c) {
    to[c] = core::load<T>(x.dtype, x.data, first + c * x.col_stride);
  }
}

// The row of query i (or of key j, in key_row) of sequence b.
template <class T>
RowAt<T> query_row(const Problem& p, Index b, Index head, Index i) {
  const Sequence s = p.sequence(b);
  return {b, head, s.q0 + i, i + p.diagonal_offset(b, s) + p.first_key()};
}
template <class T>
RowAt<T> key_row(const Problem& p, Index b, Index head, Index j) {
  return {b, head, p.sequence(b).k0 + j, j + p.first_key()};
}

// Loads a row of x, `width` values, and writes the transformed row to `to`. `h` is the head of the
// product's parameters. `spare` has room for a row of x.
template <class T>
void make_row(const Problem& p, const Operand& x, const RowMaps& maps, const RowAt<T>& at, Index h,
              Index width, T* spare, T* to, const core::StopPoint& stop) {
  T* values = maps.product.given() ? spare : to;
  load_row(p, x, at.b, at.head, at.row, width, values);
  change_row(maps.maps(), at, width, values);
  if (maps.product.given()) multiply_row(maps.product, h, values, width, to, stop);
}

template <class T>
void prepare_left(const Problem& p, const Prepared<T>& to, Index b, Index h, core::Arena& arena) {
  const Sequence s = p.sequence(b);
  T* rows = to.left.of(b, h, s.q0);
  T* spare = arena.take<T>(p.Dq).data();
  for (Index i = 0; i < s.Tq; ++i, rows += to.left.width) {
    to.stop();
    make_row(p, p.q, p.query_maps, query_row<T>(p, b, h, i), h, p.Dq, spare, rows, to.stop);
  }
}

template <class T>
void prepare_right(const Problem& p, const Prepared<T>& to, Index b, Index head,
                   core::Arena& arena) {
  const Sequence s = p.sequence(b);
  const Index g = to.right.heads == p.G ? head : p.key_head(head);
  T* rows = to.right.of(b, head, s.k0);
  T* spare = arena.take<T>(p.Dk).data();
  for (Index j = 0; j < s.Tk; ++j, rows += to.right.width) {
    to.stop();
    make_row(p, p.k, p.key_maps, key_row<T>(p, b, g, j), head, p.Dk, spare, rows, to.stop);
  }
}

template <class T>
void prepare_value(const Problem& p, const Prepared<T>& to, Index b, Index g) {
  const Sequence s = p.sequence(b);
  T* rows = to.value.of(b, g, s.k0);
  for (Index j = 0; j < s.Tk; ++j, rows += p.E) {
    to.stop();
    load_row(p, p.v, b, g, s.k0 + j, p.E, rows);
  }
}

// Takes the rows' memory from an Arena or a MeasuringArena.
template <class T, class AnyArena>
Prepared<T> take_prepared(const Problem& p, AnyArena& arena) {
  Prepared<T> x;
  const auto take = [&](Index width, Index heads, Index total) {
    RowsOf<T> rows{nullptr, width, heads, total, p.packed()};
    rows.data = arena.template take<T>(rows.count(p.B) * width).data();
    return rows;
  };
  x.left = take(score_width(p), p.H, p.q_rows);
  x.right = take(score_width(p), right_heads(p), p.k_rows);
  if (p.v.given()) x.value = take(p.E, p.G, p.k_rows);
  if (p.score_v.given()) {
    x.score_v = {nullptr, p.U, p.H, 1, true};
    x.score_v.data = arena.template take<T>(p.H * p.U).data();
  }
  return x;
}

// Fills the rows. Each worker needs prepare_scratch bytes. `call` runs tasks:
// call.for_each_task(count, f) with f(task, arena).
template <class T, class Call>
void prepare(const Problem& p, const Prepared<T>& x, Call& call) {
  if (p.q_rows == 0 || p.k_rows == 0) return;  // there are no query-key pairs, but B may be huge
  if (p.score_v.given()) {
    for (Index h = 0; h < p.H; ++h) {
      for (Index u = 0; u < p.U; ++u)
        x.score_v.data[h * p.U + u] = parameter<T>(p.score_v, h, 0, u);
    }
  }
  call.for_each_task(p.B * p.H, [&](Index task, core::Arena& arena) {
    prepare_left(p, x, task / p.H, task % p.H, arena);
  });
  const Index heads = x.right.heads;
  call.for_each_task(p.B * heads, [&](Index task, core::Arena& arena) {
    prepare_right(p, x, task / heads, task % heads, arena);
  });
  if (!p.v.given()) return;
  call.for_each_task(
      p.B * p.G, [&](Index task, core::Arena&) { prepare_value(p, x, task / p.G, task % p.G); });
}

template <class T>
std::size_t prepare_scratch(const Problem& p) {
  return core::Arena::cost<T>(p.Dq) + core::Arena::cost<T>(p.Dk);
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_PREPARED_H_
