// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_GRADIENT_ROW_H_
#define QKV_REFERENCE_GRADIENT_ROW_H_

#include "core/results.h"
#include "core/weight_factor.h"
#include "reference/row.h"

// The gradient of the scores of one query, over its unmasked keys:
//   w_j  = exp(s_j - lse) * factor                            (core/weight_factor.h)
//   dw_j = z_j dout . v_j + dweights_j                        z_j = 0 or 1/(1-p)
//   delta = dout . out + sum_j w_j dweights_j - dlse          ( = sum_j w_j dw_j - dlse )
//   ds_j = w_j (dw_j - delta)
//   d_product_j = ds_j * d s_j / d product_j                  product_j: the score before the scale
// A masked pair has no gradient, whatever its arrays hold.
namespace qkv::reference {

using core::GradientSources;

template <class T>
struct GradientRow {
  Row<T> scores;
  std::uint8_t* kept = nullptr;
  T* w = nullptr;
  T* dweights = nullptr;
  T* dw = nullptr;
  T* ds = nullptr;
  T* d_product = nullptr;
  T* g = nullptr;    // dout_i
  T* out = nullptr;  // out_i

  template <class AnyArena>
  static GradientRow take(AnyArena& arena, Index keys, Index E) {
    GradientRow row;
    row.scores = Row<T>::take(arena, keys);
    row.kept = arena.template take<std::uint8_t>(keys).data();
    for (T** array : {&row.w, &row.dweights, &row.dw, &row.ds, &row.d_product}) {
      *array = arena.template take<T>(keys).data();
    }
    row.g = arena.template take<T>(E).data();
    row.out = arena.template take<T>(E).data();
    return row;
  }
};

// Loads dweights_j of one query for `count` keys j from `begin` on: a row of the full matrix, or
// the sum of the rows that are listed for this query.
template <class T>
void load_dweights(const Problem& p, const core::RowsOperand& m, const QueryAt& at, Index begin,
                   Index count, T* to) {
  std::fill(to, to + count, T(0));
  if (!m.given()) return;
  const auto add_row = [&](Index row) {
    for (Index n = 0; n < count; ++n) {
      to[n] += element<T>(p, m.matrix, at.b, at.h, row, begin + n);
    }
  };
  if (!m.indices.given()) return add_row(at.i);
  for (Index r = 0; r < m.count; ++r) {
    const Index i = core::load<Index>(m.indices.dtype, m.indices.data, r * m.indices.row_stride);
    if (i == at.i) add_row(r);
  }
}

// Computes scores, w, dweights and dw of keys begin .. begin+count-1. Returns whether any of these
// keys is unmasked.
template <class T>
bool weight_gradients(const Problem& p, const Prepared<T>& x, const GradientSources& from,
                      const QueryAt& at, Index begin, Index count, const T& factor,
                      GradientRow<T>& row) {
  score_row(p, x, at, begin, count, true, row.scores);
  dropout_row(p, at, begin, count, row.kept);
  load_dweights(p, from.dweights, at, begin, count, row.dweights);
  const Index q_row = p.sequence(at.b).q0 + at.i;
  if (from.dout.given()) load_row(p, from.dout, at.b, at.h, q_row, p.E, row.g);
  const T lse = element<T>(p, from.lse, at.b, at.h, q_row, 0);
  const T* v = p.v.given() ? x.value_of(p, at.b, at.h) + begin * p.E : nullptr;
  const T keep = static_cast<T>(1 - p.dropout);
  bool any_live = false;
  for (Index n = 0; n < count; ++n) {
    row.w[n] = row.dw[n] = T(0);
    if (!row.scores.live[n]) continue;
    x.stop();
    any_live = true;
    row.w[n] = weight_exp<T>(row.scores.s[n] - lse) * factor;
    row.dw[n] = row.dweights[n];
    if (!from.dout.given()) continue;
    const T z = row.kept[n] ? T(1) / keep : T(0);
    row.dw[n] = fused_multiply_add(z, dot_of(x, row.g, v + n * p.E, p.E), row.dw[n]);
  }
  return any_live;
}

// Returns `sum` plus the weights of a row, which were computed with factor 1.
template <class T>
double add_weights(const GradientRow<T>& row, double sum) {
  for (Index n = 0; n < row.scores.count; ++n) sum += row.w[n];
  return sum;
}

// Returns the factor of a whole row, whose weights were computed with factor 1. For a part of the
// keys the factor is 1, unless the sum over all keys is given.
template <class T>
T row_factor(const Problem& p, const GradientSources& from, const QueryAt& at,
             const GradientRow<T>& row) {
  const Index q_row = p.sequence(at.b).q0 + at.i;
  const T lse = element<T>(p, from.lse, at.b, at.h, q_row, 0);
  const bool has_sums = from.weight_sums.given();
  if (!core::has_large_lse(lse) || (p.has_part_of_keys() && !has_sums)) return T(1);
  double sum = 0;
  if (p.sinks.given()) sum += weight_exp<T>(parameter<T>(p.sinks, at.h, 0, 0) - lse);
  sum = has_sums ? sum + element<double>(p, from.weight_sums, at.b, at.h, q_row, 0)
                 : add_weights(row, sum);
  return core::weight_factor(lse, sum);
}

// Returns delta of a row, all of whose keys weight_gradients has processed. In a row without
// unmasked keys delta is minus the gradient of lse, and only the sink's gradient uses it.
template <class T>
T row_delta(const Problem& p, const Prepared<T>& x, const GradientSources& from, const QueryAt& at,
            bool any_live, const GradientRow<T>& row) {
  const Index q_row = p.sequence(at.b).q0 + at.i;
  T delta(0);
  if (any_live && from.dout.given()) {
    load_row(p, from.out, at.b, at.h, q_row, p.E, row.out);
    delta = dot_of(x, row.g, row.out, p.E);
  }
  for (Index n = 0; n < row.scores.count; ++n) {
    if (row.scores.live[n]) delta = fused_multiply_add(row.w[n], row.dweights[n], delta);
  }
  if (from.dlse.given()) delta -= element<T>(p, from.dlse, at.b, at.h, q_row, 0);
  return delta;
}

template <class T>
void score_gradients(const T& delta, GradientRow<T>& row) {
  for (Index n = 0; n < row.scores.count; ++n) {
    row.ds[n] = row.d_product[n] = T(0);
    if (!row.scores.live[n]) continue;
    row.ds[n] = row.w[n] * (row.dw[n] - delta);
    row.d_product[n] = row.ds[n] * row.scores.slope[n];
  }
}

// Returns dsink = w_sink (0 - delta): the sink is a score whose value is 0.
template <class T>
T sink_gradient(const Problem& p, const GradientSources& from, const QueryAt& at, bool any_live,
                const T& factor, const T& delta) {
  if (!p.sinks.given()) return T(0);
  const T sink = parameter<T>(p.sinks, at.h, 0, 0);
  if (sink == -kInfinity<T>) return T(0);
  if (!any_live) return -delta;  // lse = sink: w_sink = 1
  const T lse = element<T>(p, from.lse, at.b, at.h, p.sequence(at.b).q0 + at.i, 0);
  return -(weight_exp<T>(sink - lse) * factor) * delta;
}

// Returns the gradient of the ALiBi slope: s_j contains -slope |i + o - j|.
template <class T>
T alibi_gradient(const QueryAt& at, const GradientRow<T>& row) {
  T sum(0);
  for (Index n = 0; n < row.scores.count; ++n) {
    if (!row.scores.live[n]) continue;
    const Index distance = std::abs(at.i + at.o - (row.scores.begin + n));
    sum = fused_multiply_add(-row.ds[n], static_cast<T>(distance), sum);
  }
  return sum;
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_GRADIENT_ROW_H_
