// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "core/elementary.h"
#include "tests/attention/bits.h"
#include "tests/attention/path_runner.h"
#include "tests/attention/paths.h"
#include "tests/support/compare.h"
#include "tests/support/in_blocks.h"

// Sums over channels on every path (blocks of 64, each from zero, added in ascending order) are
// bit-identical with plain loops; and rows of more than one block do not depend on neighbours,
// threads or memory layout.
namespace qkv::test {
namespace {

// Plain loops whose multiply-adds are rounded as on a path.
struct Plain {
  explicit Plain(std::string_view path) : fused(fuses(path)) {}

  float plus(float a, float b, float sum) const {
    return fused ? std::fma(a, b, sum) : a * b + sum;
  }
  // Computes sum_c a_c b_c over n channels, which are a_step and b_step elements apart.
  float dot(const float* a, Index a_step, const float* b, Index b_step, Index n) const {
    return sum_in_blocks<float>(
        n, [&](Index c, float sum) { return plus(a[c * a_step], b[c * b_step], sum); });
  }
  // Computes x w^T for x [rows,n] and w [columns,n]; if `transposed`, x w for w [n,columns].
  Tensor product(const Tensor& x, const Tensor& w, bool transposed) const {
    const Index n = x.size(1);
    const Index columns = w.size(transposed ? 1 : 0);
    Tensor y(DType::kFloat32, {x.size(0), columns});
    for (Index r = 0; r < x.size(0); ++r) {
      for (Index o = 0; o < columns; ++o) {
        const float* const to = w.values<float>().data() + (transposed ? o : o * n);
        y.view().at<float>({r, o}) =
            dot(x.values<float>().data() + r * n, 1, to, transposed ? columns : 1, n);
      }
    }
    return y;
  }

  bool fused;
};

Tensor identity(Index n) {
  Tensor x(DType::kFloat32, {n, n});
  for (Index c = 0; c < n; ++c) x.view().at<float>({c, c}) = 1;
  return x;
}

Tensor raw_scores(std::string_view path, const ConstView& q, const ConstView& k,
                  const Options& options) {
  Context context = context_on(path);
  Tensor scores(DType::kFloat32, {q.size(0), k.size(0)});
  attention({q, k}, options, {.raw_scores = View(scores)}, context);
  return scores;
}

struct QueryKeyGradients {
  Tensor q, k;
};

// Gradients of a call with lse and out taken as 0, and dout and v of ones.
QueryKeyGradients gradients(std::string_view path, const Tensor& q, const Tensor& k,
                            const Score& score) {
  Context context = context_on(path);
  Tensor v(DType::kFloat32, {k.size(0), 1});
  Tensor dout(DType::kFloat32, {q.size(0), 1});
  for (Tensor* x : {&v, &dout}) std::ranges::fill(x->values<float>(), 1.0F);
  const Tensor out(DType::kFloat32, {q.size(0), 1});
  const Tensor lse(DType::kFloat32, Dims(q.size(0)));
  QueryKeyGradients d{Tensor(DType::kFloat32, q.shape()), Tensor(DType::kFloat32, k.shape())};
  attention_backward({q, k, v}, {.score = score}, {out, lse}, {.out = dout}, {.q = d.q, .k = d.k},
                     context);
  return d;
}

testing::AssertionResult equal(const Tensor& got, const Tensor& want) {
  return compare("value", got, values_of(want), {}, "");
}

TEST(ChannelPathOrder, ScoresAreSummedInBlocks) {
  for (const std::string& path : all_paths()) {
    SCOPED_TRACE(path);
    const Plain plain(path);
    for (const Index D : {63, 64, 65, 70, 128, 129, 200, 1000}) {
      const Tensor q = normal({7, D}, 1);
      const Tensor k = normal({70, D}, 2);
      const Tensor got = raw_scores(path, q, k, {.score = Dot{}});
      EXPECT_TRUE(equal(got, plain.product(q, k, false))) << "D " << D;
      bool one_sum = true;
      for (Index i = 0; i < 7; ++i) {
        for (Index j = 0; j < 70; ++j) {
          float sum = 0;
          for (Index c = 0; c < D; ++c) {
            sum = plain.plus(q.view().at<float>({i, c}), k.view().at<float>({j, c}), sum);
          }
          one_sum = one_sum && sum == got.view().at<float>({i, j});
        }
      }
      // Without fused multiply-adds, adding a block of one channel equals adding one more term.
      EXPECT_EQ(one_sum, D <= (plain.fused ? 64 : 65)) << "D " << D;
    }
  }
}

// With scores, lse and bias of 0 every weight is 1. The bias's gradient is then
// dout . v - dout . out.
TEST(ChannelPathOrder, GradientsOfWeightsAreSummedInBlocks) {
  for (const std::string& path : all_paths()) {
    SCOPED_TRACE(path);
    const Plain plain(path);
    for (const Index E : {64, 65, 129, 1000}) {
      const Tensor q(DType::kFloat32, {9, 4});
      const Tensor k(DType::kFloat32, {70, 4});
      const Tensor v = normal({70, E}, 3);
      const Tensor out = normal({9, E}, 4);
      const Tensor dout = normal({9, E}, 5);
      const Tensor lse(DType::kFloat32, Dims(9));
      const Tensor bias(DType::kFloat32, {9, 70});
      Tensor dbias(DType::kFloat32, bias.shape());
      Context context = context_on(path);
      attention_backward({q, k, v}, {.bias = bias}, {out, lse}, {.out = dout}, {.bias = dbias},
                         context);
      Tensor want = plain.product(dout, v, false);
      for (Index i = 0; i < 9; ++i) {
        const float delta = plain.dot(dout.values<float>().data() + i * E, 1,
                                      out.values<float>().data() + i * E, 1, E);
        for (Index j = 0; j < 70; ++j) want.view().at<float>({i, j}) -= delta;
      }
      EXPECT_TRUE(equal(dbias, want)) << "E " << E;
    }
  }
}

// A call does not return its projected rows. So a second call, with the plain loops' projected rows
// and the identity as projection, gives the gradients of projected rows, from which plain loops
// compute dq and dk.
TEST(ChannelPathOrder, BilinearProjectionsAreSummedInBlocks) {
  const Tensor q = normal({3, 300}, 1);
  const Tensor k = normal({5, 260}, 2);
  Tensor w = normal({300, 260}, 3);
  for (float& x : w.values<float>()) x *= 0.003F;  // weights that are neither 0 nor infinite
  const Tensor one = identity(260);
  for (const std::string& path : all_paths(ScoreKind::kBilinear)) {
    SCOPED_TRACE(path);
    const Plain plain(path);
    const Tensor left = plain.product(q, w, true);
    const Tensor scores = plain.product(left, k, false);
    EXPECT_TRUE(equal(raw_scores(path, q, k, {.score = Bilinear{w}}), scores));
    const QueryKeyGradients projected = gradients(path, left, k, Bilinear{one});
    const QueryKeyGradients d = gradients(path, q, k, Bilinear{w});
    EXPECT_TRUE(equal(d.q, plain.product(projected.q, w, false)));
    EXPECT_TRUE(equal(d.k, projected.k));
  }
}

TEST(ChannelPathOrder, AdditiveProjectionsAreSummedInBlocks) {
  constexpr Index kUnits = 100;
  const Tensor q = normal({3, 300}, 1);
  const Tensor k = normal({5, 260}, 2);
  Tensor wq = normal({kUnits, 300}, 3);
  Tensor wk = normal({kUnits, 260}, 4);
  for (Tensor* w : {&wq, &wk}) {
    for (float& x : w->values<float>()) x *= 0.06F;
  }
  Tensor v = normal(Dims(kUnits), 5);
  for (float& x : v.values<float>()) x *= 0.1F;
  const Tensor one = identity(kUnits);
  for (const std::string& path : all_paths(ScoreKind::kAdditive)) {
    SCOPED_TRACE(path);
    const Plain plain(path);
    const Tensor a = plain.product(q, wq, false);
    const Tensor b = plain.product(k, wk, false);
    const Additive score{wq, wk, v};
    const Additive projected_score{one, one, v};
    const Tensor scores = raw_scores(path, q, k, {.score = score});
    EXPECT_TRUE(equal(scores, raw_scores(path, a, b, {.score = projected_score})));
    const QueryKeyGradients projected = gradients(path, a, b, projected_score);
    const QueryKeyGradients d = gradients(path, q, k, score);
    EXPECT_TRUE(equal(d.q, plain.product(projected.q, wq, true)));
    EXPECT_TRUE(equal(d.k, plain.product(projected.k, wk, true)));
    if (path != kReferencePath) continue;  // other paths compute tanh differently
    for (Index i = 0; i < 3; ++i) {
      for (Index j = 0; j < 5; ++j) {
        float sum = 0;
        for (Index start = 0; start < kUnits; start += 32) {
          float chunk = 0;
          for (Index u = start; u < std::min(kUnits, start + 32); ++u) {
            const float t =
                core::portable_tanh(a.view().at<float>({i, u}) + b.view().at<float>({j, u}));
            chunk = plain.plus(v.values<float>()[static_cast<std::size_t>(u)], t, chunk);
          }
          sum += chunk;
        }
        EXPECT_EQ(scores.view().at<float>({i, j}), sum) << i << " " << j;
      }
    }
  }
}

// Scores of 0 give weights of 1 before division, so that out is the sum of the chunks' sums of v,
// divided by the number of keys. A chunk has 512 keys, or 256 if D is 128 or more.
TEST(ChannelPathOrder, ChunksOfWideKeysAreShorter) {
  constexpr Index kKeys = 600;
  const Tensor v = normal({kKeys, 3}, 6);
  for (const ScoreKind kind : kScoreKinds) {
    for (const std::string& path : all_paths(kind)) {
      SCOPED_TRACE(path);
      const Plain plain(path);
      for (const Index D : {8, 127, 128, 300}) {
        const Tensor q(DType::kFloat32, {2, D});
        const Tensor k(DType::kFloat32, {kKeys, D});
        const SeededScore score(kind, {.H = 1, .Dq = D, .Dk = D, .U = 4}, DType::kFloat32);
        Options options{.score = score.score()};
        options.scale = 0;
        Context context = context_on(path);
        Tensor out(DType::kFloat32, {2, 3});
        attention({q, k, v}, options, {.out = out}, context);
        Tensor want(DType::kFloat32, out.shape());
        for (Index c = 0; c < 3; ++c) {
          float sum = 0;
          for (Index first = 0; first < kKeys; first += D < 128 ? 512 : 256) {
            float chunk = 0;
            for (Index j = first; j < std::min(kKeys, first + (D < 128 ? 512 : 256)); ++j) {
              chunk = plain.plus(1.0F, v.view().at<float>({j, c}), chunk);
            }
            sum += chunk;
          }
          for (Index i = 0; i < 2; ++i) want.view().at<float>({i, c}) = sum * (1.0F / kKeys);
        }
        EXPECT_TRUE(equal(out, want)) << "D " << D;
      }
    }
  }
}

// Rows with D = 200 and E = 130 are bit-identical alone and among others, on two threads, and in
// another memory layout.
TEST(ChannelPathOrder, RowsOfManyBlocksDoNotKnowTheirNeighbours) {
  for_each_path(Passes::kBoth, [](const Walk& walk) {
    constexpr Index kQueries = 8;
    const DType d = walk.dtype;
    const Tensor q = normal({2, 2, kQueries, 200}, 1, d);
    const Tensor k = normal({2, 1, 260, 200}, 2, d);
    const Tensor v = normal({2, 1, 260, 130}, 3, d);
    const Tensor dout = normal({2, 2, kQueries, 130}, 4, d);
    const SeededScore score(walk.kind, {.H = 2, .Dq = 200, .Dk = 200, .U = 33, .projected = 2}, d);
    PathRunner run(walk, score.score());
    const PathResults all = run({q, k, v}, {}, {.out = dout});
    PathRunner threads(walk, score.score(), Executor::threads(2));
    expect_same(all, threads({q, k, v}, {}, {.out = dout}), "two threads");
    for (const auto& [from, to] : std::initializer_list<std::pair<Index, Index>>{{0, 1}, {1, 8}}) {
      const auto rows = [&](const ConstView& x) { return slice(x, 2, from, to); };
      const PathResults some = run({rows(q), k, v}, {}, {.out = rows(dout)});
      for (const char* name : {"out", "dq"}) {
        EXPECT_TRUE(same_bits(rows(all.at(name)), some.at(name))) << name << from;
      }
    }
    std::vector<Guarded> arrays;
    for (const Tensor* x : {&q, &k, &v, &dout}) {
      arrays.emplace_back(d, x->shape(), Layout::kPermuted);
      arrays.back().fill(values_of(*x));
    }
    expect_same(all, run({arrays[0], arrays[1], arrays[2]}, {}, {.out = arrays[3]}), "permuted");
  });
}

}  // namespace
}  // namespace qkv::test
