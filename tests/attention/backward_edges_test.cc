// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>

#include "core/weight_factor.h"
#include "tests/attention/bits.h"
#include "tests/attention/paths.h"
#include "tests/support/compare.h"

// Gradients of shared inputs, and of calls without pairs.
namespace qkv::test {
namespace {

Tensor filled(const Dims& shape, float value) {
  Tensor x(DType::kFloat32, shape);
  std::ranges::fill(x.values<float>(), value);
  return x;
}

bool all_zero(const Tensor& x) {
  return std::ranges::all_of(x.values<float>(), [](float y) { return y == 0; });
}

struct Gradients {
  Tensor q, k, v, bias;
};

// All gradients of one call on a path, in buffers that held other values.
Gradients gradients_of(const std::string& path, const Inputs& inputs, const Options& options,
                       const Dims& rows) {
  Dims of_v = rows;
  of_v.push_back(inputs.v.size(-1));
  Tensor out(DType::kFloat32, of_v);
  Tensor lse(DType::kFloat32, rows);
  Context context = context_on(path, 2);
  attention(inputs, options, {.out = out, .lse = lse}, context);
  Gradients d{filled(inputs.q.shape(), 7), filled(inputs.k.shape(), 7), filled(inputs.v.shape(), 7),
              Tensor()};
  InputGradients to{.q = d.q, .k = d.k, .v = d.v};
  if (options.bias.given()) {
    d.bias = filled(options.bias.shape(), 7);
    to.bias = d.bias;
  }
  attention_backward(inputs, options, {out, lse}, {.out = normal(of_v, 9)}, to, context);
  return d;
}

TEST(BackwardEdges, WithoutPairsEveryGradientIsZero) {
  const Tensor one = normal({1, 1, 9, 4}, 1);
  const Tensor one_q = normal({1, 1, 5, 4}, 2);
  const Tensor bias = normal({1, 1, 5, 9}, 3);
  for (const std::string& path : all_paths()) {
    SCOPED_TRACE(path);
    {  // no batch entry, but keys of one
      const Tensor q(DType::kFloat32, {0, 2, 5, 4});
      const Gradients d = gradients_of(path, {q, one, one}, {.bias = bias}, {0, 2, 5});
      EXPECT_TRUE(all_zero(d.k) && all_zero(d.v) && all_zero(d.bias));
    }
    {  // no batch entry, but queries of one
      const Tensor k(DType::kFloat32, {0, 1, 9, 4});
      EXPECT_TRUE(all_zero(gradients_of(path, {one_q, k, k}, {}, {0, 1, 5}).q));
    }
    {  // no queries, no keys
      const Tensor none(DType::kFloat32, {1, 1, 0, 4});
      const Gradients d = gradients_of(path, {none, one, one}, {}, {1, 1, 0});
      EXPECT_TRUE(all_zero(d.k) && all_zero(d.v));
      EXPECT_TRUE(all_zero(gradients_of(path, {one_q, none, none}, {}, {1, 1, 5}).q));
    }
  }
}

// However many batch entries there are, no memory is reserved for keys that no query sees.
TEST(BackwardEdges, WithoutQueriesNoMemoryIsTaken) {
  constexpr Index kMany = Index{1} << 40;
  const std::vector<float> numbers(5 * 8, 1);
  const auto many = [&](Index rows) {
    return ConstView(numbers.data(), {kMany, 1, rows, 8}, {0, 0, 8, 1});
  };
  const Tensor sinks = normal(Dims(1), 3);
  const Inputs inputs{many(0), many(5), many(5)};
  const ConstView lse(numbers.data(), {kMany, 1, 0}, {0, 0, 1});
  for (const ScoreKind kind : kScoreKinds) {
    const SeededScore score(kind, {.H = 1, .Dq = 8, .Dk = 8, .U = 4}, DType::kFloat32);
    for (const std::string& path : all_paths(kind)) {
      SCOPED_TRACE(path);
      Context context = context_on(path);
      const Options options{.score = score.score(), .sinks = sinks};
      Tensor dsinks = normal(Dims(2), 4);
      Tensor more = normal(Dims(1), 5);
      const float before = more.values<float>()[0];
      const View strided(dsinks.values<float>().data(), Dims(1), Dims(2));
      attention_backward(inputs, options, {many(0), lse}, {.out = many(0)}, {.sinks = strided},
                         context);
      EXPECT_EQ(dsinks.values<float>()[0], 0);
      EXPECT_NE(dsinks.values<float>()[1], 0);
      attention_backward(inputs, options, {many(0), lse}, {.out = many(0)},
                         {.sinks = more, .write = Write::kAccumulate}, context);
      EXPECT_EQ(more.values<float>()[0], before);
      const Plan plan(inputs, options, context);
      EXPECT_EQ(plan.scratch_bytes() + plan.backward_scratch_bytes(), 0U);
    }
  }
}

// Keys shared by batch entries or heads: dk and dv are sums over those, with the same bits however
// they are computed.
TEST(BackwardEdges, SharedKeysAreSumsOfTheirParts) {
  struct Shape {
    Index B, H, Tq, Tk, D;
  };
  // The last is too large to store dk for each batch entry.
  for (const Shape& s : {Shape{3, 2, 140, 200, 5}, Shape{at_scale(600, 50), 1, 1, 500, 64}}) {
    const Tensor q = normal({s.B, s.H, s.Tq, s.D}, 1);
    const Tensor k = normal({1, 1, s.Tk, s.D}, 2);
    const Tensor v = normal({1, 1, s.Tk, s.D}, 3);
    for (const std::string& path : fast_paths()) {
      SCOPED_TRACE(path + ", B " + std::to_string(s.B));
      const Gradients shared = gradients_of(path, {q, k, v}, {}, {s.B, s.H, s.Tq});
      const Dims each{s.B, 1, s.Tk, s.D};
      const Tensor own_k = contiguous(broadcast_to(k.view(), each));
      const Tensor own_v = contiguous(broadcast_to(v.view(), each));
      const Gradients apart = gradients_of(path, {q, own_k, own_v}, {}, {s.B, s.H, s.Tq});
      const auto sum = [&](const Tensor& x) {
        Tensor total = filled({1, 1, s.Tk, s.D}, 0);
        const auto from = x.values<float>();
        const auto to = total.values<float>();
        for (std::size_t n = 0; n < from.size(); ++n) to[n % to.size()] += from[n];
        return total;
      };
      EXPECT_TRUE(same_bits(shared.k, sum(apart.k)));
      EXPECT_TRUE(same_bits(shared.v, sum(apart.v)));
      EXPECT_TRUE(same_bits(shared.q, apart.q));
    }
  }
}

// An lse of more keys than are given is left alone; one that is merely rounded does not give
// weights whose sum is not 1.
TEST(BackwardEdges, OnlyWhatRoundingExplainsIsDivided) {
  using core::weight_factor;
  EXPECT_EQ(weight_factor(15.0F, 1.000001), 1.0F);  // not large
  EXPECT_EQ(weight_factor(2000.0F, 1.0001), static_cast<float>(1 / 1.0001));
  EXPECT_EQ(weight_factor(-2000.0F, 0.9999), static_cast<float>(1 / 0.9999));
  EXPECT_EQ(weight_factor(2000.0F, 0.99), 1.0F);
  EXPECT_EQ(weight_factor(1e7F, 0.0), 1.0F);
  EXPECT_EQ(weight_factor(4e8F, 1e-3), 1000.0F);  // a unit in the last place is 32
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float lse : {inf, -inf, nan}) EXPECT_EQ(weight_factor(lse, 1.01), 1.0F);
  EXPECT_EQ(weight_factor(2000.0F, double{nan}), 1.0F);
}

// Equal keys share dv equally, however large the scores are.
TEST(BackwardEdges, HugeScoresShareTheWeight) {
  constexpr float kKeys = 6;
  for (const float size : {1.0F, 100.0F, 6000.0F, 1e9F, 1e18F}) {
    const Tensor q = filled({1, 1}, size);
    const Tensor k = filled({6, 1}, size);
    const Tensor g = filled({1, 1}, 1);
    for (const std::string& path : all_paths()) {
      Context context = context_on(path);
      Tensor out(DType::kFloat32, {1, 1});
      Tensor lse(DType::kFloat32, Dims(1));
      Tensor dv(DType::kFloat32, {6, 1});
      const Inputs inputs{.q = q, .k = k, .v = k};
      attention(inputs, {}, {.out = out, .lse = lse}, context);
      attention_backward(inputs, {}, {out, lse}, {.out = g}, {.v = dv}, context);
      for (const float x : dv.values<float>()) {
        EXPECT_NEAR(x, 1 / kKeys, 1e-6) << path << ", scores of " << size * size;
      }
    }
  }
}

// Gradients of the weights of a query listed twice are added first: if its only weight is 1, dq and
// dk are 0.
TEST(BackwardEdges, OneWeightOfANamedQueryLeavesNothing) {
  const Tensor q = normal({1, 8}, 1);
  const Tensor v = normal({1, 8}, 2);
  const Tensor g = normal({1, 8}, 3);
  const Tensor dweights = normal({3, 1}, 4);
  std::vector<Index> rows(3, 0);
  for (const std::string& path : fast_paths()) {
    Context context = context_on(path);
    Tensor out(DType::kFloat32, {1, 8});
    Tensor lse(DType::kFloat32, Dims(1));
    Tensor dq = filled({1, 8}, 7);
    Tensor dk = filled({1, 8}, 7);
    attention({q, q, v}, {}, {.out = out, .lse = lse}, context);
    OutputGradients sources{.out = g};
    sources.weights = {rows, dweights};
    attention_backward({q, q, v}, {}, {out, lse}, sources, {.q = dq, .k = dk}, context);
    for (const Tensor* x : {&dq, &dk}) {
      for (const float y : x->values<float>()) EXPECT_EQ(y, 0) << path;
    }
  }
}

}  // namespace
}  // namespace qkv::test
