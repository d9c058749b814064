// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/attention/paths.h"
#include "tests/support/compare.h"

// The edges of docs/semantics.md by name. The oracle's cases check the numbers; these check the
// rules.
namespace qkv::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

// A small float64 call: B = 1, H = 1 as rank 2, Tq = 2, Tk = 4, D = 3, E = 2.
struct Small {
  Tensor q = normal({2, 3}, 1, DType::kFloat64);
  Tensor k = normal({4, 3}, 2, DType::kFloat64);
  Tensor v = normal({4, 2}, 3, DType::kFloat64);
  Tensor dout = normal({2, 2}, 4, DType::kFloat64);
  Tensor dlse = normal({2}, 5, DType::kFloat64);
  Tensor out{DType::kFloat64, {2, 2}};
  Tensor lse{DType::kFloat64, {2}};
  Tensor row_max{DType::kFloat64, {2}};
  Tensor weights{DType::kFloat64, {2, 4}};
  Tensor dq{DType::kFloat64, {2, 3}};
  Tensor dk{DType::kFloat64, {4, 3}};
  Tensor dv{DType::kFloat64, {4, 2}};
  Tensor dsinks{DType::kFloat64, {1}};

  void forward(const Options& options) {
    attention({q, k, v}, options,
              {.out = out, .lse = lse, .row_max = row_max, .weights = View(weights)});
  }
  void backward(const Options& options) {
    forward(options);
    attention_backward(
        {q, k, v}, options, {out, lse}, {.out = dout, .lse = dlse},
        {.q = dq, .k = dk, .v = dv, .sinks = options.sinks.given() ? View(dsinks) : View()});
  }
};

std::vector<double> all(const Tensor& x) { return values_of(x); }
std::vector<double> row(const Tensor& x, Index r) {
  return values_of(slice(x.view(), 0, r, r + 1));
}
std::vector<double> same(std::size_t n, double value) { return std::vector<double>(n, value); }

bool all_nan(const std::vector<double>& values) {
  for (double x : values) {
    if (!std::isnan(x)) return false;
  }
  return !values.empty();
}

TEST(Edges, SinkTakesWeightAndNothingElse) {
  Small x;
  const std::vector<double> sink{0.7};
  x.forward({.sinks = sink});
  for (Index i = 0; i < 2; ++i) {
    double sum = 0;
    for (double w : row(x.weights, i)) sum += w;
    const double lse = all(x.lse)[static_cast<std::size_t>(i)];
    EXPECT_NEAR(sum + std::exp(0.7 - lse), 1, 1e-15);
    EXPECT_LT(sum, 1);
  }
}

// Not scaled, capped or masked: with every key masked only the sink remains.
TEST(Edges, SinkIsNeitherScaledNorCappedNorMaskedNorDropped) {
  Small x;
  const std::vector<double> sink{9.5};
  const std::vector<Index> none{0};
  x.forward({.scale = 100.0,
             .softcap = 2,
             .masks = {KeyLengths{none}},
             .sinks = sink,
             .dropout = {0.9, 1}});
  EXPECT_EQ(all(x.lse), same(2, 9.5));
  EXPECT_EQ(all(x.row_max), same(2, 9.5));
  EXPECT_EQ(all(x.out), same(4, 0));
}

TEST(Edges, RowMaximumIncludesTheSink) {
  Small x;
  const std::vector<double> sink{50};
  x.forward({.sinks = sink});
  EXPECT_EQ(all(x.row_max), same(2, 50));
}

TEST(Edges, ARowWithNoLiveKeyIsZero) {
  Small x;
  const std::vector<Index> lengths{0, 3};
  const ConstView per_query(lengths.data(), {1, 2});
  const Options options{.masks = {KeyLengths{per_query}}};
  x.backward(options);
  EXPECT_EQ(row(x.out, 0), same(2, 0));
  EXPECT_EQ(row(x.weights, 0), same(4, 0));
  EXPECT_EQ(all(x.lse)[0], -kInf);
  EXPECT_EQ(all(x.row_max)[0], -kInf);
  EXPECT_EQ(row(x.dq, 0), same(3, 0));
  EXPECT_EQ(row(x.dk, 3), same(3, 0));
  EXPECT_NE(row(x.dq, 1), same(3, 0));
}

TEST(Edges, ARowWhoseLiveScoresAreAllMinusInfinityIsEmpty) {
  Small x;
  for (double& value : x.k.values<double>()) value = -kInf;
  for (double& value : x.q.values<double>()) value = 1;
  x.backward({});
  EXPECT_EQ(all(x.out), same(4, 0));
  EXPECT_EQ(all(x.lse), same(2, -kInf));
  EXPECT_EQ(all(x.dq), same(6, 0));
  EXPECT_EQ(all(x.dk), same(12, 0));
  EXPECT_EQ(all(x.dv), same(8, 0));
}

// lse is the sink there, so its gradient goes to the sink (docs/decisions).
TEST(Edges, AnEmptyRowsLogSumExpIsItsSink) {
  Small x;
  const std::vector<double> sink{-0.25};
  const std::vector<Index> none{0};
  x.backward({.masks = {KeyLengths{none}}, .sinks = sink});
  EXPECT_EQ(all(x.lse), same(2, -0.25));
  EXPECT_DOUBLE_EQ(all(x.dsinks)[0], all(x.dlse)[0] + all(x.dlse)[1]);
  EXPECT_EQ(all(x.dq), same(6, 0));
}

TEST(Edges, ALiveNaNOrInfinityMakesItsRowNaN) {
  for (double poison : {kNaN, kInf}) {
    Small x;
    x.k.values<double>()[5] = poison;  // key 1
    x.q.values<double>()[2] = 1;       // so that inf * q is +inf in row 0
    const std::vector<Index> lengths{4, 1};
    x.backward({.masks = {KeyLengths{ConstView(lengths.data(), {1, 2})}}});
    EXPECT_TRUE(all_nan(row(x.out, 0)));
    EXPECT_TRUE(std::isnan(all(x.lse)[0]));
    EXPECT_TRUE(std::isnan(all(x.row_max)[0]));
    EXPECT_TRUE(all_nan(row(x.weights, 0)));
    EXPECT_TRUE(all_nan(row(x.dq, 0)));
    EXPECT_TRUE(all_nan(row(x.dk, 1)));
    EXPECT_TRUE(all_nan(row(x.dv, 1)));
    // Row 1 sees key 0 alone.
    EXPECT_FALSE(std::isnan(all(x.lse)[1]));
    EXPECT_EQ(row(x.out, 1), row(x.v, 0));
  }
}

TEST(Edges, WhatStandsBehindAMaskCannotEnter) {
  const std::vector<Index> two{2};
  Small clean;
  clean.backward({.masks = {KeyLengths{two}}});
  for (double poison : {kNaN, kInf, -kInf}) {
    Small x;
    for (std::size_t n = 6; n < 12; ++n) x.k.values<double>()[n] = poison;
    for (std::size_t n = 4; n < 8; ++n) x.v.values<double>()[n] = poison;
    std::vector<double> bias{0, 0, poison, poison, 0, 0, poison, poison};
    x.backward({.bias = ConstView(bias.data(), {2, 4}), .masks = {KeyLengths{two}}});
    EXPECT_TRUE(same_bits(clean.out, x.out));
    EXPECT_TRUE(same_bits(clean.lse, x.lse));
    EXPECT_TRUE(same_bits(clean.dq, x.dq));
    EXPECT_TRUE(same_bits(clean.dk, x.dk));
    EXPECT_TRUE(same_bits(clean.dv, x.dv));
  }
}

TEST(Edges, MinusInfinityInTheBiasMasks) {
  const std::vector<Index> two{2};
  Small masked;
  masked.backward({.masks = {KeyLengths{two}}});
  Small x;
  x.k.values<double>()[8] = kNaN;
  const std::vector<double> bias{0, 0, -kInf, -kInf};
  x.backward({.bias = bias});
  EXPECT_TRUE(same_bits(masked.out, x.out));
  EXPECT_TRUE(same_bits(masked.dk, x.dk));
}

// -inf plus an infinite or NaN slope is NaN, but the pair is masked all the same.
TEST(Edges, WhatTheBiasMasksStaysMaskedWhateverTheSlope) {
  for (double slope : {kInf, -kInf, kNaN}) {
    Small x;
    const std::vector<double> slopes{slope};
    const std::vector<double> bias{-kInf, -kInf, -kInf, -kInf};
    x.forward({.bias = bias, .alibi = slopes});
    EXPECT_EQ(all(x.out), same(4, 0));
    EXPECT_EQ(all(x.lse), same(2, -kInf));
    EXPECT_EQ(all(x.weights), same(8, 0));
  }
}

// A function that returns -inf masks as a bias does, and leaks no NaN slope.
TEST(Edges, MinusInfinityFromAUsersFunctionMasks) {
  const std::vector<Index> two{2};
  Small masked;
  masked.backward({.masks = {KeyLengths{two}}});
  Small x;
  x.backward({.mods = {score_mod([](auto s, At at) {
                return select(at.j < 2, s, decltype(s)(-INFINITY) * s * s);
              })}});
  EXPECT_TRUE(same_bits(masked.out, x.out));
  EXPECT_TRUE(same_bits(masked.dq, x.dq));
}

TEST(Edges, EmptySizesAreLegal) {
  for (int zero = 0; zero < 4; ++zero) {
    const Index B = zero == 0 ? 0 : 2;
    const Index H = zero == 1 ? 0 : 2;
    const Index Tq = zero == 2 ? 0 : 3;
    const Index Tk = zero == 3 ? 0 : 3;
    const Tensor q(DType::kFloat32, {B, H, Tq, 4});
    const Tensor k(DType::kFloat32, {B, H, Tk, 4});
    Tensor out(DType::kFloat32, {B, H, Tq, 4});
    Tensor lse(DType::kFloat32, {B, H, Tq});
    Tensor dq(DType::kFloat32, q.shape());
    Tensor dk(DType::kFloat32, k.shape());
    for (float& x : out.values<float>()) x = 7;
    attention({q, k, k}, {.masks = {Causal{}}}, {.out = out, .lse = lse});
    EXPECT_EQ(all(out), same(static_cast<std::size_t>(out.element_count()), 0));
    attention_backward({q, k, k}, {.masks = {Causal{}}}, {out, lse}, {.out = out},
                       {.q = dq, .k = dk});
    EXPECT_EQ(all(dk), same(static_cast<std::size_t>(dk.element_count()), 0));
  }
  // Without elements no memory is needed.
  const ConstView nothing(static_cast<const float*>(nullptr), {0, 4});
  const std::vector<float> q(8, 1);
  std::vector<float> out(8, 7);
  attention({ConstView(q.data(), {2, 4}), nothing, nothing}, {}, {.out = View(out.data(), {2, 4})});
  EXPECT_EQ(out, std::vector<float>(8, 0));
}

// Key heads that no query head reads get gradients of 0, whatever was in the scratch memory.
TEST(Edges, KeyHeadsWithoutQueryHeadsGetZeroGradients) {
  Context context;
  Tensor dirt(DType::kFloat32, {1, 2, 3, 4});
  for (float& x : dirt.values<float>()) x = 3;
  Tensor out(DType::kFloat32, {1, 2, 3, 4});
  attention({dirt, dirt, dirt}, {}, {.out = out}, context);
  const Tensor k = normal({1, 2, 3, 4}, 2);
  const Tensor q(DType::kFloat32, {1, 0, 3, 4});
  const Tensor w = normal({4, 4}, 3);
  const Tensor none(DType::kFloat32, {1, 0, 3, 4});
  const Tensor lse(DType::kFloat32, {1, 0, 3});
  for (const Score& score : {Score(Dot{}), Score(Bilinear{w})}) {
    Tensor dk(DType::kFloat32, k.shape());
    Tensor dv(DType::kFloat32, k.shape());
    for (Tensor* x : {&dk, &dv}) {
      for (float& value : x->values<float>()) value = 7;
    }
    attention_backward({q, k, k}, {.score = score}, {none, lse}, {.out = none}, {.k = dk, .v = dv},
                       context);
    EXPECT_EQ(all(dk), same(24, 0));
    EXPECT_EQ(all(dv), same(24, 0));
  }
}

TEST(Edges, AHugeBatchOfNothingIsDoneAtOnce) {
  const Dims shape{Index{1} << 40, 1, 0, 4};
  const ConstView nothing(static_cast<const float*>(nullptr), shape);
  const View out(static_cast<float*>(nullptr), shape);
  attention({nothing, nothing, nothing}, {}, {.out = out});
  const ConstView lse(static_cast<const float*>(nullptr), {Index{1} << 40, 1, 0});
  attention_backward({nothing, nothing, nothing}, {}, {nothing, lse}, {.out = nothing}, {.q = out});
}

// Whichever axis is empty, however many units the other axes give.
TEST(Edges, ResultsWithoutElementsTakeNeitherTimeNorMemory) {
  constexpr Index kMany = Index{1} << 40;
  const float one = 1;
  float* const none = nullptr;
  const auto input = [&](const Dims& shape) { return ConstView(&one, shape, {0, 0, 0, 0}); };
  const auto forward = [&](const Dims& q, const Dims& k, const Outputs& outputs) {
    attention({input(q), input(k), input(k)}, {}, outputs);
  };
  forward({kMany, 0, 5, 4}, {1, 1, 9, 4}, {.out = View(none, {kMany, 0, 5, 4})});
  forward({1, 0, 5, 4}, {1, kMany, 9, 4}, {.out = View(none, {1, 0, 5, 4})});
  forward({kMany, 2, 0, 4}, {1, 2, 0, 4},
          {.out = View(none, {kMany, 2, 0, 4}), .column_sums = View(none, {kMany, 2, 0})});
  forward({kMany, 2, 5, 4}, {1, 2, 0, 4}, {.column_sums = View(none, {kMany, 2, 0})});
  forward({kMany, 2, 0, 4}, {1, 2, 9, 4}, {.entropy = View(none, {kMany, 2, 0})});
  forward({kMany, 2, 5, 4}, {1, 2, 0, 4}, {.value_sums = View(none, {kMany, 2, 0})});
  forward({kMany, 0, 5, 4}, {1, 1, 9, 4}, {.pooled = View(none, {kMany, 0, 3, 3})});
  const std::vector<int> no_rows;
  forward({kMany, 2, 5, 4}, {1, 2, 9, 4}, {.weights = {no_rows, View(none, {kMany, 2, 0, 9})}});
}

TEST(Edges, MoreTopKeysThanThereAreNeedNoScratch) {
  const Tensor q(DType::kFloat32, {0, 4});
  const Tensor k(DType::kFloat32, {3, 4});
  constexpr Index kMany = Index{1} << 59;
  const View weights(static_cast<float*>(nullptr), {0, kMany});
  const View keys(static_cast<std::int64_t*>(nullptr), {0, kMany});
  attention({q, k}, {}, {.top = {kMany, weights, keys}});
}

// All keys in order of their weights, ties from the lowest key on; this would take hours if each
// new weight moved all those found before.
TEST(Edges, TheLargestWeightsMayBeAllOfVeryManyOnEveryPath) {
  constexpr Index kKeys = 300'000;
  Tensor q(DType::kFloat32, {1, 1});
  Tensor k(DType::kFloat32, {kKeys, 1});
  q.values<float>()[0] = 1;
  std::span<float> scores = k.values<float>();
  for (Index j = 0; j < kKeys; ++j) {
    scores[static_cast<std::size_t>(j)] = static_cast<float>(j * 7919 % kKeys / 10) * 3e-4F;
  }
  for (const std::string& path : all_paths(ScoreKind::kDot)) {
    for (const Index most : {Index{100}, kKeys + 3}) {
      Tensor all(DType::kFloat32, {1, kKeys});
      Tensor weights(DType::kFloat32, {1, most});
      Tensor keys(DType::kInt32, {1, most});
      Context context = context_on(path);
      attention({q, k}, {}, {.top = {most, weights, keys}, .weights = View(all)}, context);
      const std::span<const float> weight = all.values<float>();
      std::vector<std::int32_t> order(weight.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return weight[static_cast<std::size_t>(a)] > weight[static_cast<std::size_t>(b)];
      });
      order.resize(static_cast<std::size_t>(most), -1);
      Index wrong = 0;
      for (std::size_t rank = 0; rank < order.size(); ++rank) {
        const std::int32_t key = order[rank];
        const float want = key < 0 ? 0 : weight[static_cast<std::size_t>(key)];
        wrong += keys.values<std::int32_t>()[rank] != key || weights.values<float>()[rank] != want;
      }
      EXPECT_EQ(wrong, 0) << "path \"" << path << "\", " << most << " keys";
    }
  }
}

// A weight of 1e-20 times a value of -1e-30 is less than any float32: the sum is 0, whether the
// keys are one chunk of the softmax or several that are merged.
TEST(Edges, ASumThatUnderflowsIsZeroWithoutASign) {
  for (const std::string& path : all_paths(ScoreKind::kDot)) {
    for (const Index keys : {2, 600}) {
      for (const Index rows : {1, 60}) {
        Tensor q(DType::kFloat32, {rows, 1});
        Tensor k(DType::kFloat32, {keys, 1});
        Tensor v(DType::kFloat32, {keys, 1});
        Tensor out(DType::kFloat32, {rows, 1});
        std::ranges::fill(q.values<float>(), 1.0F);
        std::ranges::fill(k.values<float>(), -46.0F);
        k.values<float>()[0] = 0;
        v.values<float>()[1] = -1e-30F;
        Context context = context_on(path);
        attention({q, k, v}, {.scale = 1.0}, {.out = out}, context);
        for (const float x : out.values<float>()) {
          EXPECT_EQ(x, 0) << path;
          EXPECT_FALSE(std::signbit(x)) << path << ", " << keys << " keys";
        }
      }
    }
  }
}

TEST(Edges, AnOffsetAloneSwitchesNothingOn) {
  Small plain;
  plain.forward({});
  Small x;
  x.forward({.diagonal = Offset{-3}});
  EXPECT_TRUE(same_bits(plain.out, x.out));
}

TEST(Edges, WindowWithCausalHasRightSideZero) {
  Small a;
  a.forward({.masks = {Window{1, 5}, Causal{}}});
  Small b;
  b.forward({.masks = {Window{1, 0}}});
  EXPECT_TRUE(same_bits(a.weights, b.weights));
}

TEST(Edges, KeyLengthsDoNotMoveTheDiagonal) {
  Small x;
  const std::vector<Index> three{3};
  x.forward({.masks = {Causal{}, KeyLengths{three}}});  // o = Tk - Tq = 2
  EXPECT_GT(row(x.weights, 0)[2], 0);
  EXPECT_EQ(row(x.weights, 1)[3], 0);
  EXPECT_GT(row(x.weights, 1)[2], 0);
}

TEST(Edges, AccumulatingAddsAndOverwritingDoesNot) {
  Small x;
  x.backward({});
  const std::vector<double> once = all(x.dk);
  const Inputs inputs{x.q, x.k, x.v};
  attention_backward(inputs, {}, {x.out, x.lse}, {.out = x.dout, .lse = x.dlse},
                     {.k = x.dk, .write = Write::kAccumulate});
  std::vector<double> twice;
  for (double value : once) twice.push_back(2 * value);
  EXPECT_EQ(all(x.dk), twice);
  attention_backward(inputs, {}, {x.out, x.lse}, {.out = x.dout, .lse = x.dlse}, {.k = x.dk});
  EXPECT_EQ(all(x.dk), once);
}

// Large scores neither overflow nor lose the row.
TEST(Edges, RowMaximaAreSubtractedAlways) {
  const std::vector<float> q{300};
  const std::vector<float> k{300, 299.5F};
  const std::vector<float> v{1, 2};
  std::vector<float> out(1);
  std::vector<float> lse(1);
  attention({ConstView(q.data(), {1, 1}), ConstView(k.data(), {2, 1}), ConstView(v.data(), {2, 1})},
            {}, {.out = View(out.data(), {1, 1}), .lse = View(lse.data(), Dims(1))});
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(lse[0], 90000);
}

// Mixed ranks: (2,8,4) against (5,2,8,4) is one head axis of 2 and a batch of 5.
TEST(Edges, MixedRanksAlignFromTheRight) {
  const Tensor q = normal({2, 8, 4}, 41, DType::kFloat64);
  const Tensor k = normal({5, 2, 8, 4}, 42, DType::kFloat64);
  const Tensor v = normal({5, 2, 8, 3}, 43, DType::kFloat64);
  Tensor out(DType::kFloat64, {5, 2, 8, 3});
  attention({q, k, v}, {}, {.out = out});
  for (Index b = 0; b < 5; ++b) {
    for (Index h = 0; h < 2; ++h) {
      const auto head = [&](const ConstView& x) {
        const ConstView cut = slice(slice(x, 0, b, b + 1), 1, h, h + 1);
        return reshape(cut, {cut.size(2), cut.size(3)});
      };
      Tensor one(DType::kFloat64, {8, 3});
      attention({reshape(slice(ConstView(q.view()), 0, h, h + 1), {8, 4}), head(k), head(v)}, {},
                {.out = one});
      EXPECT_TRUE(same_bits(one, head(out))) << b << "," << h;
    }
  }
}

// Query head h reads key head floor(h*G/H).
TEST(Edges, GroupedHeads) {
  const Tensor q = normal({1, 6, 3, 4}, 51, DType::kFloat64);
  const Tensor k = normal({1, 2, 5, 4}, 52, DType::kFloat64);
  Tensor out(DType::kFloat64, {1, 6, 3, 4});
  attention({q, k, k}, {}, {.out = out});
  for (Index h = 0; h < 6; ++h) {
    Tensor one(DType::kFloat64, {1, 1, 3, 4});
    const ConstView key = slice(ConstView(k.view()), 1, h / 3, h / 3 + 1);
    attention({slice(ConstView(q.view()), 1, h, h + 1), key, key}, {}, {.out = one});
    EXPECT_TRUE(same_bits(one, slice(ConstView(out.view()), 1, h, h + 1))) << h;
  }
}

// The form v^T tanh(W [k; q]) is the additive one with W cut in two.
TEST(Edges, AdditiveByConcatenation) {
  const Tensor w = normal({7, 5 + 3}, 61, DType::kFloat64);
  const Tensor u = normal({7}, 62, DType::kFloat64);
  const Tensor q = normal({2, 3}, 63, DType::kFloat64);
  const Tensor k = normal({4, 5}, 64, DType::kFloat64);
  Tensor scores(DType::kFloat64, {2, 4});
  attention({q, k}, {.score = Additive::concat(w, 5, u)}, {.raw_scores = View(scores)});
  std::vector<double> want;
  for (Index i = 0; i < 2; ++i) {
    for (Index j = 0; j < 4; ++j) {
      double s = 0;
      for (Index unit = 0; unit < 7; ++unit) {
        double x = 0;
        for (Index c = 0; c < 5; ++c)
          x += w.view().at<double>({unit, c}) * k.view().at<double>({j, c});
        for (Index c = 0; c < 3; ++c) {
          x += w.view().at<double>({unit, 5 + c}) * q.view().at<double>({i, c});
        }
        s += u.view().at<double>(Dims(unit)) * std::tanh(x);
      }
      want.push_back(s);
    }
  }
  EXPECT_TRUE(compare("scores", scores, want, {0, 1e-14}, "Edges.AdditiveByConcatenation"));
}

}  // namespace
}  // namespace qkv::test
