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

// The additive score's error bound, on every path: scores have at most twice the error of tanh
// computed directly in float32, plus kScoreError sum |v|; gradients have at most three times the
// error of the naive computation, plus the terms that check() derives. The oracle is the formulas
// in float64.
namespace qkv::test {
namespace {

using Values = std::vector<double>;

Tensor scaled(Tensor x, double by) {
  for (float& y : x.values<float>()) y *= static_cast<float>(by);
  return x;
}

Tensor positive(Tensor x) {
  for (float& y : x.values<float>()) y = std::fabs(y);
  return x;
}

// The numbers 1, -1, 2, -2, 1/2, ..: products with them are exact.
Tensor powers_of_two(Index rows) {
  Tensor x(DType::kFloat32, {rows, 1});
  int n = 0;
  for (float& y : x.values<float>()) {
    y = std::ldexp(n % 2 == 0 ? 1.0F : -1.0F, (n / 2 + 1) % 3 - 1);
    ++n;
  }
  return x;
}

// ---- scores ---------------------------------------------------------------------------------

// Returns the raw scores, computed in dtype d from the same float32 numbers.
Values scores_of(const Tensor& q, const Tensor& k, const Additive& score, const std::string& path,
                 DType d) {
  Context context = context_on(path);
  const auto as = [&](const ConstView& x) { return x.given() ? convert(x, d) : Tensor(d, {0}); };
  const Tensor q_d = as(q), k_d = as(k), wq = as(score.wq), wk = as(score.wk), v = as(score.v),
               b = as(score.b);
  Tensor s(d, {q.size(0), k.size(0)});
  attention({q_d, k_d}, {.score = Additive{wq, wk, v, score.b.given() ? b : ConstView()}},
            {.raw_scores = View(s)}, context);
  return values_of(s);
}

TEST(AdditivePathPrecision, ScoresAreWithinTheBoundOfTanh) {
  const std::string reference(kReferencePath);
  for (const double deviation : {0.01, 0.1, 1.0, 5.0, 20.0, 100.0}) {
    for (const Index U : {1, 2, 32, 256, 1000}) {
      if (!is_thorough() && U > 256) continue;
      for (const bool all_positive : {false, true}) {
        for (const Index D : {1, 16}) {  // width 1: projections are exact
          const Tensor v = normal(Dims(U), 5);
          const double w_deviation = deviation / std::sqrt(static_cast<double>(D));
          const Tensor q = D == 1 ? powers_of_two(9) : normal({9, D}, 1);
          const Tensor k = D == 1 ? powers_of_two(11) : normal({70, D}, 2);
          const Tensor wq = scaled(normal({U, D}, 3), w_deviation),
                       wk = scaled(normal({U, D}, 4), w_deviation);
          const Tensor final_v = all_positive ? positive(contiguous(v)) : contiguous(v);
          const auto scores = [&](const std::string& path, DType d) {
            return scores_of(q, k, {wq, wk, final_v}, path, d);
          };
          double size = 0;
          for (double y : values_of(final_v)) size += std::fabs(y);
          const Values truth = scores(reference, DType::kFloat64);
          const double direct = largest_difference(scores(reference, DType::kFloat32), truth);
          const double bound = 2 * direct + kScoreError * size;
          for (const std::string& path : fast_paths(ScoreKind::kAdditive)) {
            EXPECT_LE(largest_difference(scores(path, DType::kFloat32), truth), bound)
                << path << ", deviation " << deviation << ", U " << U << ", D " << D
                << (all_positive ? ", all v positive" : "") << "; tanh directly: " << direct;
          }
        }
      }
    }
  }
}

// ---- gradients ------------------------------------------------------------------------------

struct Head {
  Index Tq, Tk, U;
  double deviation;
  bool all_positive = false;
};
constexpr std::size_t kWidth = 6;   // of queries and keys
constexpr std::size_t kValues = 5;  // of values

constexpr std::array kNames{"q", "k", "v", "wq", "wk", "score_v", "score_b"};

struct Arrays {
  explicit Arrays(const Head& x)
      : q(normal({x.Tq, Index{kWidth}}, 1)),
        k(normal({x.Tk, Index{kWidth}}, 2)),
        v(normal({x.Tk, Index{kValues}}, 3)),
        dout(normal({x.Tq, Index{kValues}}, 4)),
        wq(scaled(normal({x.U, Index{kWidth}}, 5), x.deviation / std::sqrt(6))),
        wk(scaled(normal({x.U, Index{kWidth}}, 6), x.deviation / std::sqrt(6))),
        score_v(scaled(normal(Dims(x.U), 7), 3 / std::sqrt(static_cast<double>(x.U)))),
        score_b(scaled(normal(Dims(x.U), 8), x.deviation)) {
    if (x.all_positive) score_v = positive(contiguous(score_v));
  }

  Tensor q, k, v, dout, wq, wk, score_v, score_b;
};

// The gradients, in the order of kNames, and for each its largest sum of absolute terms (for dv,
// its largest absolute element).
struct Plain {
  std::array<Values, kNames.size()> values;
  std::array<double, kNames.size()> sizes{};
};

// Computes the gradients by their formulas, with sums of type T.
template <class T>
class PlainGradients {
 public:
  PlainGradients(const Head& head, const Arrays& x)
      : Tq(static_cast<std::size_t>(head.Tq)),
        Tk(static_cast<std::size_t>(head.Tk)),
        U(static_cast<std::size_t>(head.U)),
        q(numbers(x.q)),
        k(numbers(x.k)),
        v(numbers(x.v)),
        dout(numbers(x.dout)),
        wq(numbers(x.wq)),
        wk(numbers(x.wk)),
        score_v(numbers(x.score_v)),
        score_b(numbers(x.score_b)) {}

  Plain run() {
    const Numbers left = projected(q, Tq, wq, score_b);
    const Numbers right = projected(k, Tk, wk, Numbers(U));
    dleft = dleft_size = Numbers(Tq * U);
    dright = dright_size = Numbers(Tk * U);
    dv = Numbers(Tk * kValues);
    dscore_v = dscore_v_size = Numbers(U);
    for (std::size_t i = 0; i < Tq; ++i) add_query(i, &left[i * U], right);
    Plain r;
    const auto set = [&](std::size_t n, const Numbers& x, const Numbers& size) {
      r.values[n] = Values(x.begin(), x.end());
      r.sizes[n] = largest(Values(size.begin(), size.end()));
    };
    set(0, rows_gradient(dleft, Tq, wq), rows_gradient(dleft_size, Tq, sizes_of(wq)));
    set(1, rows_gradient(dright, Tk, wk), rows_gradient(dright_size, Tk, sizes_of(wk)));
    set(2, dv, sizes_of(dv));
    set(3, parameter_gradient(dleft, Tq, q), parameter_gradient(dleft_size, Tq, sizes_of(q)));
    set(4, parameter_gradient(dright, Tk, k), parameter_gradient(dright_size, Tk, sizes_of(k)));
    set(5, dscore_v, dscore_v_size);
    set(6, sums(dleft, Tq), sums(dleft_size, Tq));
    return r;
  }
  // The sum of |ds| over all pairs.
  double score_gradients() const { return ds_size; }

 private:
  using Numbers = std::vector<T>;

  static Numbers numbers(const Tensor& x) {
    return Numbers(x.values<float>().begin(), x.values<float>().end());
  }
  static Numbers sizes_of(Numbers x) {
    for (T& y : x) y = std::fabs(y);
    return x;
  }
  Numbers projected(const Numbers& x, std::size_t rows, const Numbers& w, const Numbers& b) const {
    Numbers y;
    for (std::size_t n = 0; n < rows; ++n) {
      for (std::size_t u = 0; u < U; ++u) {
        T sum = 0;
        for (std::size_t c = 0; c < kWidth; ++c) sum += w[u * kWidth + c] * x[n * kWidth + c];
        y.push_back(sum + b[u]);
      }
    }
    return y;
  }

  void add_query(std::size_t i, const T* left, const Numbers& right) {
    Numbers t(Tk * U), s(Tk), dw(Tk);
    T most = -INFINITY;
    for (std::size_t j = 0; j < Tk; ++j) {
      for (std::size_t u = 0; u < U; ++u) {
        t[j * U + u] = std::tanh(left[u] + right[j * U + u]);
        s[j] += score_v[u] * t[j * U + u];
      }
      most = std::max(most, s[j]);
      for (std::size_t c = 0; c < kValues; ++c) dw[j] += dout[i * kValues + c] * v[j * kValues + c];
    }
    T total = 0;
    for (T& x : s) total += x = std::exp(x - most);
    T delta = 0, delta_size = 0;
    for (std::size_t j = 0; j < Tk; ++j) {
      s[j] /= total;
      delta += s[j] * dw[j];
      delta_size += s[j] * std::fabs(dw[j]);
    }
    for (std::size_t j = 0; j < Tk; ++j) {
      const T ds = s[j] * (dw[j] - delta);
      const T ds_of_sizes = s[j] * (std::fabs(dw[j] - delta) + delta_size);
      ds_size += static_cast<double>(std::fabs(ds));
      for (std::size_t c = 0; c < kValues; ++c) {
        dv[j * kValues + c] += s[j] * dout[i * kValues + c];
      }
      for (std::size_t u = 0; u < U; ++u) {
        const T tanh = t[j * U + u];
        const T derivative = score_v[u] * (1 - tanh * tanh);
        dleft[i * U + u] += ds * derivative;
        dright[j * U + u] += ds * derivative;
        dscore_v[u] += ds * tanh;
        dleft_size[i * U + u] += ds_of_sizes * std::fabs(derivative);
        dright_size[j * U + u] += ds_of_sizes * std::fabs(derivative);
        dscore_v_size[u] += ds_of_sizes * std::fabs(tanh);
      }
    }
  }

  Numbers rows_gradient(const Numbers& d, std::size_t rows, const Numbers& w) const {
    Numbers x(rows * kWidth);
    for (std::size_t n = 0; n < rows; ++n) {
      for (std::size_t u = 0; u < U; ++u) {
        for (std::size_t c = 0; c < kWidth; ++c) {
          x[n * kWidth + c] += w[u * kWidth + c] * d[n * U + u];
        }
      }
    }
    return x;
  }
  Numbers parameter_gradient(const Numbers& d, std::size_t rows, const Numbers& x) const {
    Numbers w(U * kWidth);
    for (std::size_t n = 0; n < rows; ++n) {
      for (std::size_t u = 0; u < U; ++u) {
        for (std::size_t c = 0; c < kWidth; ++c) {
          w[u * kWidth + c] += d[n * U + u] * x[n * kWidth + c];
        }
      }
    }
    return w;
  }
  Numbers sums(const Numbers& d, std::size_t rows) const {
    Numbers b(U);
    for (std::size_t n = 0; n < rows * U; ++n) b[n % U] += d[n];
    return b;
  }

  std::size_t Tq, Tk, U;
  Numbers q, k, v, dout, wq, wk, score_v, score_b;
  Numbers dleft, dleft_size, dright, dright_size, dv, dscore_v, dscore_v_size;
  double ds_size = 0;
};

// The largest error of a path's scores.
double score_error(const Arrays& x, const std::string& path) {
  const Additive score{x.wq, x.wk, x.score_v, x.score_b};
  return largest_difference(
      scores_of(x.q, x.k, score, path, DType::kFloat32),
      scores_of(x.q, x.k, score, std::string(kReferencePath), DType::kFloat64));
}

// Expects that the error of each gradient is at most the sum of
// - three times the naive computation's error, and 4 ulp of the gradient's largest element;
// - the effect of scores off by e: a weight changes by 2 e times itself, and so a term ds_ij x by
//   2 e w_ij (|dw_ij - delta| + sum_j w_ij |dw_ij|) |x| at most. `sizes` are the sums of these
//   bounds without the factor 2 e. Terms of dv change by 2 e w_ij |dout_ic|; for dv, `sizes` is
//   less than their sum: it is |dv| itself, which has been enough on every path;
// - for dscore_v, 2^-22 sum |ds|, since 1 - 2r, which replaces tanh, is off by up to 2^-22.
void check(const Head& head) {
  const Arrays x(head);
  PlainGradients<double> in_double(head, x);
  const Plain truth = in_double.run();
  const Plain naive = PlainGradients<float>(head, x).run();
  BackwardCall call{.inputs = {x.q, x.k, x.v},
                    .options = {.score = Additive{x.wq, x.wk, x.score_v, x.score_b}},
                    .sources = {.out = x.dout},
                    .threads = 2};
  for (const char* name : kNames) call.ask(name, Layout::kContiguous);
  for (const std::string& path : fast_backward_paths(ScoreKind::kAdditive)) {
    const SavedTensors saved(call, path);
    const Gradients got(call);
    run_backward(call, path, saved.views(), got);
    const double weight_error = 2 * score_error(x, path);
    for (std::size_t n = 0; n < kNames.size(); ++n) {
      const Values& want = truth.values[n];
      double bound = 3 * largest_difference(naive.values[n], want) + 4 * ulp(largest(want)) +
                     weight_error * truth.sizes[n];
      if (n == 5) bound += std::ldexp(in_double.score_gradients(), -22);
      const Values gradient = values_of(got.arrays().at(kNames[n]).view());
      EXPECT_LE(largest_difference(gradient, want), bound)
          << path << ", d" << kNames[n] << ", Tq " << head.Tq << ", Tk " << head.Tk << ", U "
          << head.U << ", deviation " << head.deviation
          << "; naive: " << largest_difference(naive.values[n], want)
          << ", largest: " << largest(want);
    }
  }
}

TEST(AdditivePathPrecision, GradientsAreWithinTheBoundOfTheNaiveComputation) {
  for (const double deviation : {0.01, 0.1, 1.0, 5.0, 20.0, 100.0}) {
    for (const bool all_positive : {false, true}) {
      check({1, 1, 100, deviation, all_positive});
      check({3, 130, at_scale(256, 21), deviation, all_positive});
      check({100, 100, 33, deviation, all_positive});
    }
  }
}

TEST(AdditivePathPrecision, GradientsOfLongSequencesAreWithinTheBound) {
  const Index T = at_scale(20'000, 200);
  for (const double deviation : {0.1, 1.0, 20.0}) {
    check({at_scale(1000, 100), at_scale(1000, 100), 8, deviation});
    check({6, T, 20, deviation});
    check({T, 6, 20, deviation});
  }
}

}  // namespace
}  // namespace qkv::test
