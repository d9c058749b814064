// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/edge_calls.h"

// Continues path_edges_test.cc: calls with empty axes, or with very long ones.
namespace qkv::test {
namespace {

// ---- empty axes -------------------------------------------------------------------------------

// There are no batch entries, heads, queries or keys, or none of a shared input; or key heads that
// no query head reads. Results do not depend on the contents of scratch memory, and arrays without
// elements need no memory.
TEST(PathSizes, WithoutPairsEveryResultIsZero) {
  constexpr std::array<Index, 6> kSizes[] = {
      // B of q and k, H, G, Tq, Tk
      {0, 1, 2, 1, 5, 9}, {1, 0, 1, 1, 5, 9}, {1, 1, 2, 1, 0, 9}, {2, 2, 2, 1, 5, 0},
      {1, 1, 1, 1, 0, 0}, {2, 2, 0, 1, 5, 9}, {1, 1, 0, 2, 5, 9}};
  for_each_walk([&](const Walk& walk) {
    const SeededCall dirt(1, 2, 1, 9, 70, 8, 3, walk);
    PathRunner run(walk, dirt.score.score());
    run.besides = PathRunner::Besides::kEverything;
    run(dirt.inputs(), {}, {.out = dirt.dout});
    const std::vector<Index> none;
    Tensor columns = normal({1, 2, 70}, 1, accumulator_of(walk.dtype));
    Context context = context_on(walk.path);
    attention(dirt.inputs(), {.score = dirt.score.score()}, {.column_sums = {none, columns}},
              context);
    EXPECT_EQ(values_of(columns), std::vector<double>(140, 0)) << "of no queries";
    for (const auto& [Bq, Bk, H, G, Tq, Tk] : kSizes) {
      const SeededScore score = walk.score(H, 8);
      const auto tensor = [&](const Dims& shape) { return normal(shape, 3, walk.dtype); };
      const Tensor q = tensor({Bq, H, Tq, 8}), k = tensor({Bk, G, Tk, 8});
      const Tensor v = tensor({Bk, G, Tk, 3}), dout = tensor({std::min(Bq, Bk), H, Tq, 3});
      const Tensor bias = tensor({1, 1, Tq, Tk});
      const auto given = [](const Tensor& x) {
        return x.element_count() != 0 ? x.view()
                                      : View(static_cast<void*>(nullptr), x.dtype(), x.shape(),
                                             contiguous_strides(x.shape()));
      };
      const PathResults got = run(
          {given(q), given(k), given(v)},
          {.score = score.score(), .bias = given(bias), .masks = {Causal{}}}, {.out = given(dout)});
      for (const auto& [name, result] : got) {
        const double want = name == "lse" || name == "row_max" ? -kInf
                            : name == "top_keys"               ? -1
                                                               : 0;
        EXPECT_EQ(values_of(result),
                  std::vector<double>(static_cast<std::size_t>(result.element_count()), want))
            << name << ", H " << H << ", G " << G << ", Tq " << Tq << ", Tk " << Tk;
      }
    }
  });
}

// Whichever axis is empty, and however many units the other axes give, no memory is reserved for
// keys that no query attends to, and gradients of the sinks are 0 or the previous contents.
TEST(PathSizes, ResultsWithoutElementsTakeNeitherTimeNorMemory) {
  constexpr Index kMany = Index{1} << 40;
  const float one = 1;
  float* const none = nullptr;
  const auto input = [&](const Dims& shape) { return ConstView(&one, shape, {0, 0, 0, 0}); };
  const Tensor w = normal({4, 4}, 1), u = normal(Dims(4), 2), sinks = normal(Dims(2), 3);
  const std::vector<int> no_rows;
  for_each_walk([&](const Walk& walk) {
    if (walk.dtype != DType::kFloat32) return;
    const Score score = walk.kind == ScoreKind::kBilinear   ? Score(Bilinear{w})
                        : walk.kind == ScoreKind::kAdditive ? Score(Additive{w, w, u, u})
                        : walk.kind == ScoreKind::kCosine   ? Score(Cosine{})
                                                            : Score(ScaledDot{});
    Context context = context_on(walk.path);
    const auto forward = [&](const Dims& q, const Dims& k, const Outputs& outputs) {
      attention({input(q), input(k), input(k)}, {.score = score}, outputs, context);
    };
    forward({kMany, 0, 5, 4}, {1, 1, 9, 4}, {.out = View(none, {kMany, 0, 5, 4})});
    forward({1, 0, 5, 4}, {1, kMany, 9, 4}, {.out = View(none, {1, 0, 5, 4})});
    forward({kMany, 2, 0, 4}, {1, 2, 0, 4},
            {.out = View(none, {kMany, 2, 0, 4}), .column_sums = View(none, {kMany, 2, 0})});
    forward({kMany, 2, 5, 4}, {1, 2, 0, 4}, {.column_sums = View(none, {kMany, 2, 0})});
    forward({kMany, 2, 0, 4}, {1, 2, 9, 4}, {.entropy = View(none, {kMany, 2, 0})});
    forward({kMany, 2, 5, 4}, {1, 2, 0, 4}, {.value_sums = View(none, {kMany, 2, 0})});
    forward({kMany, 0, 5, 4}, {1, 1, 9, 4}, {.pooled = View(none, {kMany, 0, 3, 3})});
    forward({kMany, 2, 5, 4}, {1, 2, 9, 4}, {.weights = {no_rows, View(none, {kMany, 2, 0, 9})}});
    // Requesting more of the largest weights than there are needs no scratch memory.
    constexpr Index kMost = Index{1} << 59;
    forward({1, 1, 0, 4}, {1, 1, 3, 4},
            {.top = {kMost, View(none, {1, 1, 0, kMost}),
                     View(static_cast<std::int64_t*>(nullptr), {1, 1, 0, kMost})}});
    const Inputs inputs{input({kMany, 2, 0, 4}), input({kMany, 1, 5, 4}), input({kMany, 1, 5, 4})};
    const Options options{.score = score, .sinks = sinks};
    const View empty(none, {kMany, 2, 0, 4});
    const Saved saved{empty, ConstView(none, {kMany, 2, 0})};
    std::vector<float> dsinks{3, 4, 5, 6};
    InputGradients to{.q = empty, .sinks = View(dsinks.data(), Dims(2), Dims(2))};
    attention_backward(inputs, options, saved, {.out = empty}, to, context);
    EXPECT_EQ(dsinks, (std::vector<float>{0, 4, 0, 6}));
    dsinks[0] = 5;
    to.write = Write::kAccumulate;
    attention_backward(inputs, options, saved, {.out = empty}, to, context);
    EXPECT_EQ(dsinks, (std::vector<float>{5, 4, 0, 6}));
    const Plan plan(inputs, options, context);
    EXPECT_EQ(plan.scratch_bytes() + plan.backward_scratch_bytes(), 0U);
  });
}

// ---- long axes --------------------------------------------------------------------------------

// All keys are returned in order of their weights, ties from the lowest key on. This would take
// hours if each new weight moved all those found before.
TEST(PathSizes, TheLargestWeightsMayBeAllOfVeryMany) {
  constexpr Index kKeys = 300'000;
  Tensor q(DType::kFloat32, {1, 1});
  Tensor k(DType::kFloat32, {kKeys, 1});
  q.values<float>()[0] = 1;
  for (Index j = 0; j < kKeys; ++j) {
    k.values<float>()[static_cast<std::size_t>(j)] =
        static_cast<float>(j * 7919 % kKeys / 10) * 3e-4F;
  }
  for_each_dot_walk([&](const Walk& walk) {
    for (const Index most : {Index{5}, kKeys + 3}) {
      Tensor all(DType::kFloat32, {1, kKeys});
      Tensor weights(DType::kFloat32, {1, most});
      Tensor keys(DType::kInt32, {1, most});
      Context context = context_on(walk.path);
      attention({q, k}, {}, {.top = {most, weights, keys}, .weights = View(all)}, context);
      const std::span<const float> weight = all.values<float>();
      std::vector<std::int32_t> order(weight.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, std::greater(),
                               [&](std::int32_t j) { return weight[static_cast<std::size_t>(j)]; });
      order.resize(static_cast<std::size_t>(most), -1);
      std::vector<float> want;
      for (const std::int32_t j : order)
        want.push_back(j < 0 ? 0 : weight[static_cast<std::size_t>(j)]);
      EXPECT_TRUE(std::ranges::equal(keys.values<std::int32_t>(), order)) << most;
      EXPECT_TRUE(std::ranges::equal(weights.values<float>(), want)) << most;
    }
  });
}

// Keys are shared by batch entries or heads: dk and dv are sums over those, bit-identical however
// they are computed. At full scale the last shape is too large to store dk for each batch entry.
TEST(PathSizes, SharedKeysAreSumsOfTheirParts) {
  struct Shape {
    Index B, H, Tq, Tk, D;
  };
  for (const Shape& s : {Shape{3, 2, 140, 200, 5}, Shape{at_scale(600, 50), 1, 1, 500, 64}}) {
    const Tensor q = normal({s.B, s.H, s.Tq, s.D}, 1);  // and gradients of out
    const Tensor k = normal({1, 1, s.Tk, s.D}, 2), v = normal({1, 1, s.Tk, s.D}, 3);
    const Dims each{s.B, 1, s.Tk, s.D};
    const Tensor own_k = contiguous(broadcast_to(k.view(), each));
    const Tensor own_v = contiguous(broadcast_to(v.view(), each));
    for_each_dot_walk([&](const Walk& walk) {
      if (s.B > 3 && walk.path == kReferencePath) return;  // the reference is slow
      Context context = context_on(walk.path, 2);
      const auto gradients = [&](const Inputs& inputs) {
        std::map<std::string, Tensor> x;
        const auto like = [](const ConstView& of) { return Tensor(of.dtype(), of.shape()); };
        x["dq"] = like(inputs.q), x["dk"] = like(inputs.k), x["dv"] = like(inputs.v);
        Tensor out = like(q), lse(walk.dtype, {s.B, s.H, s.Tq});
        attention(inputs, {}, {.out = out, .lse = lse}, context);
        attention_backward(inputs, {}, {out, lse}, {.out = q},
                           {.q = x["dq"], .k = x["dk"], .v = x["dv"]}, context);
        return x;
      };
      const auto shared = gradients({q, k, v}), apart = gradients({q, own_k, own_v});
      EXPECT_TRUE(same_bits(shared.at("dq"), apart.at("dq")));
      for (const char* name : {"dk", "dv"}) {
        Tensor total(walk.dtype, k.shape());
        const auto to = total.values<float>();
        const auto from = apart.at(name).values<float>();
        for (std::size_t n = 0; n < from.size(); ++n) to[n % to.size()] += from[n];
        EXPECT_TRUE(same_bits(shared.at(name), total)) << name << ", B " << s.B;
      }
    });
  }
}

}  // namespace
}  // namespace qkv::test
