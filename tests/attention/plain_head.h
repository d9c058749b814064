// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_PLAIN_HEAD_H_
#define QKV_TESTS_ATTENTION_PLAIN_HEAD_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include <qkv/tensor.h>

#include "tests/attention/bits.h"

// One head of scaled dot-product attention, computed by the formulas. Error bounds are multiples of
// the error of this naive computation.
namespace qkv::test {

// The arrays of a head, float32. If a head has only some keys of a call, the sink stands for the
// others.
struct Head {
  Index Tq, Tk, D, E;
  Tensor q, k, v, dout;
  double sink = -INFINITY;
};

// A head of random numbers, whose deviation is `deviation` in q and k, and 1 in v and dout.
inline Head random_head(Index Tq, Index Tk, Index D, Index E, float deviation) {
  Head x{
      Tq, Tk, D, E, normal({Tq, D}, 1), normal({Tk, D}, 2), normal({Tk, E}, 3), normal({Tq, E}, 4)};
  for (Tensor* t : {&x.q, &x.k}) {
    for (float& y : t->values<float>()) y *= deviation;
  }
  return x;
}

// Makes key j ten times the sum of up to 24 queries.
inline void dominate(Head& x, Index j) {
  const View q = x.q.view(), k = x.k.view();
  for (Index c = 0; c < x.D; ++c) {
    float sum = 0;
    for (Index i = 0; i < std::min<Index>(x.Tq, 24); ++i) sum += q.at<float>({i, c});
    k.at<float>({j, c}) = 10 * sum;
  }
}

struct PlainResults {
  std::vector<double> out, dq, dk, dv;
};

// Computes results and gradients in sums of T over ascending indices. Scores, weights, gradients of
// scores, and results are each rounded to `dtype`, or with kNone not rounded further.
template <class T>
PlainResults plain_results(const Head& x, DType dtype = DType::kNone) {
  using Values = std::vector<T>;
  const auto Tq = static_cast<std::size_t>(x.Tq), Tk = static_cast<std::size_t>(x.Tk);
  const auto D = static_cast<std::size_t>(x.D), E = static_cast<std::size_t>(x.E);
  const float* q = x.q.values<float>().data();
  const float* k = x.k.values<float>().data();
  const float* v = x.v.values<float>().data();
  const float* g = x.dout.values<float>().data();
  const auto round = [&](T y) {
    if (dtype == DType::kBFloat16) return static_cast<T>(static_cast<float>(BFloat16(float(y))));
    if (dtype == DType::kFloat16) return static_cast<T>(static_cast<float>(Float16(float(y))));
    return y;
  };
  // Transposes [Tk,columns] to [columns,Tk].
  const auto transposed = [&](const float* rows, std::size_t columns) {
    Values y(Tk * columns);
    for (std::size_t n = 0; n < y.size(); ++n) y[n % columns * Tk + n / columns] = T(rows[n]);
    return y;
  };
  const Values k_columns = transposed(k, D), v_columns = transposed(v, E);
  // to_j = sum_c row_c x_jc
  const auto products = [&](const float* row, const Values& columns, std::size_t n, Values& to) {
    std::fill(to.begin(), to.end(), T(0));
    for (std::size_t c = 0; c < n; ++c) {
      const T factor = row[c];
      const T* column = columns.data() + c * Tk;
      for (std::size_t j = 0; j < Tk; ++j) to[j] += factor * column[j];
    }
  };
  const auto add = [](T factor, const float* row, std::size_t n, T* to) {
    for (std::size_t c = 0; c < n; ++c) to[c] += factor * static_cast<T>(row[c]);
  };
  const T scale = 1 / std::sqrt(static_cast<T>(x.D));
  Values out(Tq * E), dq(Tq * D), dk(Tk * D), dv(Tk * E), w(Tk), dw(Tk);
  for (std::size_t i = 0; i < Tq; ++i, q += D, g += E) {
    T* const out_row = out.data() + i * E;
    products(q, k_columns, D, w);
    products(g, v_columns, E, dw);
    T max = static_cast<T>(x.sink);
    for (T& s : w) max = std::max(max, s = round(s * scale));
    T total = std::exp(static_cast<T>(x.sink) - max);
    for (std::size_t j = 0; j < Tk; ++j) total += w[j] = std::exp(w[j] - max);
    for (std::size_t j = 0; j < Tk; ++j) w[j] = round(w[j] / total);
    for (std::size_t j = 0; j < Tk; ++j) add(w[j], v + j * E, E, out_row);
    T delta = 0;
    for (std::size_t c = 0; c < E; ++c) delta += out_row[c] * static_cast<T>(g[c]);
    for (std::size_t j = 0; j < Tk; ++j) {
      const T ds = round(w[j] * (dw[j] - delta) * scale);
      add(w[j], g, E, dv.data() + j * E);
      add(ds, k + j * D, D, dq.data() + i * D);
      add(ds, q, D, dk.data() + j * D);
    }
  }
  const auto wide = [&](const Values& y) {
    std::vector<double> values;
    for (const T one : y) values.push_back(static_cast<double>(round(one)));
    return values;
  };
  return {wide(out), wide(dq), wide(dk), wide(dv)};
}

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_PLAIN_HEAD_H_
