// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/backward_call.h"
#include "tests/attention/bits.h"
#include "tests/attention/largest.h"
#include "tests/attention/paths.h"
#include "tests/support/compare.h"

// The error bound of docs/semantics.md for gradients, on every path: at most three times the error
// of the naive computation (float32 sums in one order) plus 4 ulp of the largest value. The oracle
// is the naive computation in float64. Inputs are random or ill-conditioned.
namespace qkv::test {
namespace {

enum class Kind { kRandom, kLarge, kDominated, kEqual, kTiny };
constexpr const char* kKinds[] = {"random", "large scores", "one key dominates", "equal keys",
                                  "tiny"};

// One head. Of a call of many keys in which only some matter, the others are the sink.
struct Head {
  Index Tq, Tk, D, E;
  Tensor q, k, v, dout;
  double sink = -INFINITY;
};

Head make_head(Kind kind, Index Tq, Index Tk, Index D, Index E) {
  Head x{
      Tq, Tk, D, E, normal({Tq, D}, 1), normal({Tk, D}, 2), normal({Tk, E}, 3), normal({Tq, E}, 4)};
  const float deviation = kind == Kind::kLarge ? 30 : kind == Kind::kTiny ? 0.01F : 1;
  for (Tensor* t : {&x.q, &x.k}) {
    for (float& y : t->values<float>()) y *= deviation;
  }
  const View q = x.q.view();
  const View k = x.k.view();
  for (Index c = 0; c < D; ++c) {
    if (kind == Kind::kDominated) {  // one key is ten times the sum of some queries
      float sum = 0;
      for (Index i = 0; i < std::min<Index>(Tq, 24); ++i) sum += q.at<float>({i, c});
      k.at<float>({Tk / 2, c}) = 10 * sum;
    }
    if (kind == Kind::kEqual) {
      for (Index j = 1; j < Tk; ++j) k.at<float>({j, c}) = k.at<float>({0, c});
    }
  }
  return x;
}

struct Plain {
  std::vector<double> dq, dk, dv;
};

// Columns become rows.
template <class T>
std::vector<T> transposed(const Tensor& x) {
  const auto rows = static_cast<std::size_t>(x.size(0));
  const auto columns = static_cast<std::size_t>(x.size(1));
  std::vector<T> y(rows * columns);
  const auto values = x.values<float>();
  for (std::size_t n = 0; n < values.size(); ++n) {
    y[n % columns * rows + n / columns] = static_cast<T>(values[n]);
  }
  return y;
}

// The formulas in sums of T.
template <class T>
Plain plain_gradients(const Head& x) {
  using Values = std::vector<T>;
  const auto D = static_cast<std::size_t>(x.D);
  const auto E = static_cast<std::size_t>(x.E);
  const auto Tk = static_cast<std::size_t>(x.Tk);
  const float* q = x.q.values<float>().data();
  const float* k = x.k.values<float>().data();
  const float* v = x.v.values<float>().data();
  const float* g = x.dout.values<float>().data();
  const Values k_columns = transposed<T>(x.k);
  const Values v_columns = transposed<T>(x.v);
  const T scale = 1 / std::sqrt(static_cast<T>(x.D));
  // to_j = sum_c row_c x_jc, over ascending c
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
  Values dq(x.q.values<float>().size()), dk(Tk * D), dv(Tk * E), w(Tk), dw(Tk), out(E);
  T* dq_row = dq.data();
  for (Index i = 0; i < x.Tq; ++i, q += D, g += E, dq_row += D) {
    products(q, k_columns, D, w);
    products(g, v_columns, E, dw);
    T max = static_cast<T>(x.sink);
    for (T& s : w) max = std::max(max, s *= scale);
    T total = std::exp(static_cast<T>(x.sink) - max);
    for (std::size_t j = 0; j < Tk; ++j) total += w[j] = std::exp(w[j] - max);
    for (std::size_t j = 0; j < Tk; ++j) w[j] /= total;
    std::fill(out.begin(), out.end(), T(0));
    for (std::size_t j = 0; j < Tk; ++j) add(w[j], v + j * E, E, out.data());
    T delta = 0;
    for (std::size_t c = 0; c < E; ++c) delta += out[c] * static_cast<T>(g[c]);
    for (std::size_t j = 0; j < Tk; ++j) {
      const T ds = w[j] * (dw[j] - delta) * scale;
      add(w[j], g, E, dv.data() + j * E);
      add(ds, k + j * D, D, dq_row);
      add(ds, q, D, dk.data() + j * D);
    }
  }
  const auto wide = [](const Values& y) { return std::vector<double>(y.begin(), y.end()); };
  return {wide(dq), wide(dk), wide(dv)};
}

double ulp(double x) { return std::ldexp(1.0, std::ilogb(std::max(x, 1e-30)) - 23); }

void check(Kind kind, const Head& x, const std::vector<std::string>& paths) {
  const Plain truth = plain_gradients<double>(x);
  const Plain naive = plain_gradients<float>(x);
  Tensor sinks(DType::kFloat32, Dims(1));
  sinks.values<float>()[0] = static_cast<float>(x.sink);
  BackwardCall call{.inputs = {x.q, x.k, x.v}, .sources = {.out = x.dout}, .threads = 2};
  if (std::isfinite(x.sink)) call.options.sinks = sinks;
  for (const char* name : {"q", "k", "v"}) call.ask(name, Layout::kContiguous);
  for (const std::string& path : paths) {
    const SavedTensors saved(call, path);
    const Gradients got(call);
    run_backward(call, path, saved.views(), got);
    const auto check_one = [&](const char* name, std::vector<double> Plain::*of) {
      const std::vector<double>& want = truth.*of;
      const double bound = 3 * largest_difference(naive.*of, want) + 4 * ulp(largest(want));
      const double error = largest_difference(values_of(got.arrays().at(name).view()), want);
      EXPECT_LE(error, bound) << path << ", d" << name << ", " << kKinds[static_cast<int>(kind)]
                              << ", Tq " << x.Tq << ", Tk " << x.Tk;
    };
    check_one("q", &Plain::dq);
    check_one("k", &Plain::dk);
    check_one("v", &Plain::dv);
  }
}

TEST(BackwardPathPrecision, IsWithinTheBoundOfTheNaiveComputation) {
  for (const Kind kind :
       {Kind::kRandom, Kind::kLarge, Kind::kDominated, Kind::kEqual, Kind::kTiny}) {
    for (const Index T : {1, 3, 100, 1000}) {
      if (T > 100 && !is_thorough()) continue;
      const Head x = make_head(kind, T, T, 64, 32);
      check(kind, x, T > 100 ? fast_backward_paths() : all_backward_paths());
    }
  }
}

// Long sequences, of which some queries or some keys are computed. A query needs all keys; a key
// needs all queries, whose other keys are a sink with as much weight as they have on the average.
TEST(BackwardPathPrecision, IsWithinTheBoundForSomeOfManyRows) {
  const Index sampled = at_scale(256, 16);
  for (const Index T : {8192, at_scale(65536, 5461)}) {
    for (const Kind kind : {Kind::kRandom, Kind::kLarge, Kind::kDominated, Kind::kTiny}) {
      if (T > 8192 && (kind == Kind::kTiny || kind == Kind::kDominated)) continue;
      const Head of_queries = make_head(kind, sampled, T, 16, 16);
      check(kind, of_queries, fast_backward_paths());
      Head of_keys = make_head(kind, T, sampled, 16, 16);
      of_keys.sink = std::log(static_cast<double>(T - sampled));
      check(kind, of_keys, fast_backward_paths());
    }
  }
}

}  // namespace
}  // namespace qkv::test
