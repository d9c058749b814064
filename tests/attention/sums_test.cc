// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/attention/paths.h"
#include "tests/support/compare.h"

// Tests of results that are sums of weights: entropy, column sums, value sums, pooled weights. The
// oracle's cases and random calls compare small results with the full matrix, and
// path_edges_test.cc tests edge cases. The sizes here have several blocks of queries (128) and
// chunks of keys (512), whose sums are added in task order.
namespace qkv::test {
namespace {

struct Sums {
  Tensor entropy, columns, values, pooled;

  Sums(DType dtype, const Dims& lead, Index Tq, Index Tk, Index m, Index n)
      : entropy(dtype, with(lead, {Tq})),
        columns(dtype, with(lead, {Tk})),
        values(dtype, with(lead, {Tk})),
        pooled(dtype, with(lead, {m, n})) {
    for (Tensor* x : list()) {
      for (Index i = 0; i < x->view().element_count(); ++i) {
        core::store(dtype, x->view().data(), i, -777.0);
      }
    }
  }
  static Dims with(Dims lead, std::initializer_list<Index> tail) {
    for (const Index size : tail) lead.push_back(size);
    return lead;
  }
  std::vector<Tensor*> list() { return {&entropy, &columns, &values, &pooled}; }
  Outputs all(const ConstView& rows = {}) {
    return {
        .entropy = entropy, .column_sums = {rows, columns}, .value_sums = values, .pooled = pooled};
  }
};

// The expected results, from the full matrix in float64, as the documentation defines them.
struct Wanted {
  std::vector<double> entropy, columns, values, pooled;
};

Wanted from_matrix(const ConstView& weights, const ConstView& v, const std::vector<Index>& rows,
                   Index m, Index n) {
  const Index Tq = weights.size(-2);
  const Index Tk = weights.size(-1);
  const std::vector<double> w = values_of(weights);
  const std::vector<double> value = values_of(v);
  const Index E = v.size(-1);
  const Index heads = weights.element_count() / (Tq * Tk);
  const Index groups = v.element_count() / (Tk * E);
  Wanted want;
  for (Index h = 0; h < heads; ++h) {
    const auto at = [&](Index i, Index j) {
      return w[static_cast<std::size_t>((h * Tq + i) * Tk + j)];
    };
    std::vector<double> cells(static_cast<std::size_t>(m * n), 0);
    std::vector<double> counts(static_cast<std::size_t>(m), 0);
    for (Index i = 0; i < Tq; ++i) {
      double entropy = 0;
      for (Index j = 0; j < Tk; ++j) {
        if (at(i, j) > 0) entropy -= at(i, j) * std::log(at(i, j));
        cells[static_cast<std::size_t>(i * m / Tq * n + j * n / Tk)] += at(i, j);
      }
      want.entropy.push_back(entropy);
      counts[static_cast<std::size_t>(i * m / Tq)] += 1;
    }
    for (Index c = 0; c < m * n; ++c) {
      const double count = counts[static_cast<std::size_t>(c / n)];
      want.pooled.push_back(count == 0 ? 0 : cells[static_cast<std::size_t>(c)] / count);
    }
    for (Index j = 0; j < Tk; ++j) {
      double sum = 0;
      for (const Index i : rows) sum += at(i, j);
      double squares = 0;
      const Index key = (h * groups / heads) * Tk + j;
      for (Index c = 0; c < E; ++c) {
        squares += std::pow(value[static_cast<std::size_t>(key * E + c)], 2);
      }
      want.columns.push_back(sum);
      want.values.push_back(sum * std::sqrt(squares));
    }
  }
  return want;
}

std::vector<Index> every(Index T) {
  std::vector<Index> rows(static_cast<std::size_t>(T));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<Index>(i);
  return rows;
}

// Calls test(path, kind) for every path of dot products, and for the other scores on every path but
// the reference.
template <class F>
void for_each_path(const F& test) {
  for (const ScoreKind kind : kScoreKinds) {
    for (const std::string& path : kind == ScoreKind::kDot ? all_paths() : fast_paths(kind)) {
      SCOPED_TRACE(path);
      test(path, kind);
    }
  }
}

struct Cells {
  Index m, n;
};
// The pooled weights have m x n cells, fewer or more than there are queries (300) and keys (1030).
// Some cells end within a block or chunk, others where it ends.
constexpr Cells kCells[] = {{7, 5}, {1, 1}, {2, 3}, {13, 1030}, {300, 40}, {450, 1500}};

TEST(Sums, AreThoseOfTheFullMatrixOnEveryPath) {
  for_each_path([](const std::string& path, ScoreKind kind) {
    for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
      const bool wide = dtype == DType::kFloat64;
      const DType sums = accumulator_of(dtype);
      const Tensor q = normal({1, 2, 300, 8}, 1, dtype);
      const Tensor k = normal({1, 1, 1030, 8}, 2, dtype);
      const Tensor v = normal({1, 1, 1030, 5}, 3, dtype);
      const Tensor sinks = normal({2}, 4, sums);
      const std::vector<Index> lengths{1000};
      const SeededScore score(kind, {.H = 2, .Dq = 8, .Dk = 8, .U = 7}, dtype);
      const Options options{.score = score.score(),
                            .masks = {Window{600, 40}, KeyLengths{lengths}},
                            .sinks = sinks,
                            .dropout = {0.25, 3}};
      const std::vector<Index> listed{299, 0, 17, 17, 130};
      Context context = context_on(path);
      Tensor weights(sums, {1, 2, 300, 1030});
      attention({q, k, v}, options, {.weights = View(weights)}, context);
      for (const auto& [m, n] : kCells) {
        Sums all(sums, {1, 2}, 300, 1030, m, n);
        attention({q, k, v}, options, all.all(), context);
        Sums some(sums, {1, 2}, 300, 1030, m, n);
        attention({q, k, v}, options, some.all(listed), context);
        const Wanted want = from_matrix(weights, v, every(300), m, n);
        const Bound bound = wide ? Bound{1e-13, 1e-14} : Bound{2e-5, 2e-6};
        const std::string what = std::to_string(m) + " x " + std::to_string(n);
        EXPECT_TRUE(compare("entropy", all.entropy, want.entropy, bound, what));
        EXPECT_TRUE(compare("column_sums", all.columns, want.columns, bound, what));
        EXPECT_TRUE(compare("value_sums", all.values, want.values, bound, what));
        EXPECT_TRUE(compare("pooled", all.pooled, want.pooled, bound, what));
        const Wanted of_listed = from_matrix(weights, v, listed, m, n);
        EXPECT_TRUE(compare("column_sums", some.columns, of_listed.columns, bound, what));
        EXPECT_TRUE(compare("value_sums", some.values, of_listed.values, bound, what));
        EXPECT_TRUE(same_bits(all.entropy, some.entropy)) << what;
        EXPECT_TRUE(same_bits(all.pooled, some.pooled)) << what;
        if (is_brief() || !wide) break;
      }
    }
  });
}

// A call with one head or one output gives the bits of the call with all heads and outputs.
TEST(Sums, DoNotDependOnOtherHeadsOrResults) {
  for_each_path([](const std::string& path, ScoreKind kind) {
    const Tensor q = normal({2, 4, 300, 8}, 11);
    const Tensor k = normal({2, 2, 1600, 8}, 12);
    const Tensor v = normal({2, 2, 1600, 5}, 13);
    const SeededScore score(kind, {.H = 4, .Dq = 8, .Dk = 8, .U = 7}, DType::kFloat32);
    const auto run = [&](const Inputs& inputs, Index h0, const Outputs& outputs) {
      Context context = context_on(path, h0 == 0 ? 2 : 1);
      attention(inputs, {.score = score.heads(h0, 4), .masks = {Causal{}, Window{1400, 0}}},
                outputs, context);
    };
    const Inputs whole{q, k, v};
    for (const auto& [m, n] : {Cells{5, 7}, Cells{300, 3}}) {
      Sums all(DType::kFloat32, {2, 4}, 300, 1600, m, n);
      Sums apart(DType::kFloat32, {2, 4}, 300, 1600, m, n);
      Sums head(DType::kFloat32, {1, 1}, 300, 1600, m, n);
      run(whole, 0, all.all());
      run(whole, 0, {.entropy = apart.entropy});
      run(whole, 0, {.column_sums = apart.columns});
      run(whole, 0, {.value_sums = apart.values});
      run(whole, 0, {.pooled = apart.pooled});
      const auto part = [](const Tensor& x, Index h) {
        return slice(slice(x.view(), 0, 1, 2), 1, h, h + 1);
      };
      run({part(q, 3), part(k, 1), part(v, 1)}, 3, head.all());
      for (std::size_t x = 0; x < 4; ++x) {
        EXPECT_TRUE(same_bits(*all.list()[x], *apart.list()[x])) << "alone, result " << x;
        EXPECT_TRUE(same_bits(part(*all.list()[x], 3), *head.list()[x])) << "head, result " << x;
      }
      if (is_brief()) break;
    }
  });
}

TEST(Sums, OfPackedSequencesAreThoseOfEachAlone) {
  const std::vector<Index> cu_q{0, 140, 140, 141, 171};
  const std::vector<Index> cu_k{0, 600, 610, 610, 640};
  const Tensor q = normal({171, 4, 8}, 21);
  const Tensor k = normal({640, 2, 8}, 22);
  const Tensor v = normal({640, 2, 5}, 23);
  for (const std::string& path : all_paths()) {
    SCOPED_TRACE(path);
    Context context = context_on(path, 2);
    Sums all(DType::kFloat32, {4}, 171, 640, 1, 1);
    Tensor pooled(DType::kFloat32, {4, 4, 3, 5});
    Outputs outputs = all.all();
    outputs.pooled = pooled;
    attention({q, k, v, cu_q, cu_k}, {.masks = {Causal{}}}, outputs, context);
    for (std::size_t b = 0; b < 4; ++b) {
      const auto rows = [&](const Tensor& x, const std::vector<Index>& cu) {
        const ConstView cut = permute(slice(x.view(), 0, cu[b], cu[b + 1]), {1, 0, 2});
        return broadcast_to(cut, {1, cut.size(0), cut.size(1), cut.size(2)});
      };
      const Index Tq = cu_q[b + 1] - cu_q[b];
      const Index Tk = cu_k[b + 1] - cu_k[b];
      Sums alone(DType::kFloat32, {1, 4}, Tq, Tk, 3, 5);
      attention({rows(q, cu_q), rows(k, cu_k), rows(v, cu_k)}, {.masks = {Causal{}}}, alone.all(),
                context);
      const auto at = static_cast<Index>(b);
      EXPECT_TRUE(same_bits(slice(pooled.view(), 0, at, at + 1), alone.pooled)) << b;
      const auto part = [&](const Tensor& x, const std::vector<Index>& cu) {
        const ConstView cut = slice(x.view(), 1, cu[b], cu[b + 1]);
        return broadcast_to(cut, {1, cut.size(0), cut.size(1)});
      };
      if (Tq > 0) {
        EXPECT_TRUE(same_bits(part(all.entropy, cu_q), alone.entropy)) << b;
      }
      if (Tk == 0) continue;
      EXPECT_TRUE(same_bits(part(all.columns, cu_k), alone.columns)) << b;
      EXPECT_TRUE(same_bits(part(all.values, cu_k), alone.values)) << b;
    }
  }
}

// With a cell for each query and key, pooled weights are the weights.
TEST(Sums, PooledToEveryCellAreTheWeights) {
  for (const std::string& path : all_paths()) {
    const Tensor q = normal({150, 8}, 41);
    const Tensor k = normal({700, 8}, 42);
    Tensor weights(DType::kFloat32, {150, 700});
    Tensor pooled(DType::kFloat32, {150, 700});
    Context context = context_on(path);
    attention({q, k}, {.masks = {Causal{}}}, {.pooled = pooled, .weights = View(weights)}, context);
    EXPECT_TRUE(same_bits(weights, pooled)) << path;
  }
}

}  // namespace
}  // namespace qkv::test
