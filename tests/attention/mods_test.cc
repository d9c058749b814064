// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/support/compare.h"

// User scores and masks: C++ callables, differentiated by dual numbers.
namespace qkv::test {
namespace {

struct Call {
  Tensor q, k, v, dout, out, lse, dq, dk, dv;
  explicit Call(DType d)
      : q(normal({2, 3, 5, 4}, 1, d)),
        k(normal({2, 3, 7, 4}, 2, d)),
        v(normal({2, 3, 7, 4}, 3, d)),
        dout(normal({2, 3, 5, 4}, 4, d)),
        out(d, q.shape()),
        lse(d, {2, 3, 5}),
        dq(d, q.shape()),
        dk(d, k.shape()),
        dv(d, v.shape()) {}
  Call& run(const Options& options) {
    attention({q, k, v}, options, {.out = out, .lse = lse});
    attention_backward({q, k, v}, options, {out, lse}, {.out = dout}, {.q = dq, .k = dk, .v = dv});
    return *this;
  }
};

void expect_same(const Call& a, const Call& b) {
  EXPECT_TRUE(same_bits(a.out, b.out));
  EXPECT_TRUE(same_bits(a.lse, b.lse));
  EXPECT_TRUE(same_bits(a.dq, b.dq));
  EXPECT_TRUE(same_bits(a.dk, b.dk));
  EXPECT_TRUE(same_bits(a.dv, b.dv));
}

// Built-ins rewritten as user functions: the same bits.
TEST(Mods, BuiltInMasksWrittenAsFunctions) {
  for (DType d : {DType::kFloat32, DType::kFloat64}) {
    const MaskMod causal = mask_mod([](At at) { return at.j <= at.i + 2; });  // o = Tk - Tq = 2
    expect_same(Call(d).run({.masks = {Causal{}}}), Call(d).run({.masks = {causal}}));
    const MaskMod window = mask_mod([](At at) { return at.i - 1 <= at.j && at.j <= at.i + 1; });
    expect_same(Call(d).run({.diagonal = TopLeft{}, .masks = {Window{1, 1}}}),
                Call(d).run({.masks = {window}}));
  }
}

TEST(Mods, AlibiWrittenAsAFunction) {
  const std::vector<float> slopes{0.5F, 0.25F, 0.125F};
  const ScoreMod alibi = score_mod(
      [slope = slopes.data()](auto s, At at) { return s - slope[at.h] * abs(at.i + 2 - at.j); });
  const std::vector<double> wide(slopes.begin(), slopes.end());
  expect_same(Call(DType::kFloat32).run({.alibi = slopes}),
              Call(DType::kFloat32).run({.mods = {alibi}}));
  expect_same(Call(DType::kFloat64).run({.alibi = wide}),
              Call(DType::kFloat64).run({.mods = {alibi}}));
}

TEST(Mods, SoftCapWrittenAsAFunction) {
  const ScoreMod cap = score_mod([](auto s, At) { return soft_cap(s, 3); });
  for (DType d : {DType::kFloat32, DType::kFloat64}) {
    expect_same(Call(d).run({.softcap = 3}), Call(d).run({.mods = {cap}}));
  }
}

TEST(Mods, ActOneAfterTheOtherAfterTheSoftCapAndBeforeTheBias) {
  const std::vector<double> q{2};
  const std::vector<double> k{3};
  const std::vector<double> bias{100};
  std::vector<double> score(1);
  const Inputs inputs{ConstView(q.data(), {1, 1}), ConstView(k.data(), {1, 1})};
  attention(inputs,
            {.score = Dot{},
             .softcap = 4,
             .mods = {score_mod([](auto s, At) { return s + 1; }),
                      score_mod([](auto s, At) { return s * 10; })},
             .bias = ConstView(bias.data(), {1, 1})},
            {.masked_scores = View(score.data(), {1, 1})});
  EXPECT_DOUBLE_EQ(score[0], (4 * std::tanh(6.0 / 4) + 1) * 10 + 100);
}

TEST(Mods, SeeWhereTheyStand) {
  const Tensor q = normal({2, 3, 4, 2}, 1, DType::kFloat64);
  const Tensor k = normal({2, 3, 5, 2}, 2, DType::kFloat64);
  Tensor scores(DType::kFloat64, {2, 3, 4, 5});
  const ScoreMod place = score_mod(
      [](auto s, At at) { return s * 0 + (at.b * 1000 + at.h * 100 + at.i * 10 + at.j); });
  attention({q, k}, {.mods = {place}}, {.masked_scores = View(scores)});
  for (Index b = 0; b < 2; ++b) {
    for (Index h = 0; h < 3; ++h) {
      EXPECT_EQ(scores.view().at<double>({b, h, 3, 4}),
                static_cast<double>(b * 1000 + h * 100 + 34));
    }
  }
}

// For masked pairs a function may return anything.
TEST(Mods, AreForgottenWhereMasked) {
  const ScoreMod nonsense =
      score_mod([](auto s, At at) { return at.j > at.i + 2 ? s * 0 / 0 : s + 1; });
  const ScoreMod plain = score_mod([](auto s, At) { return s + 1; });
  expect_same(Call(DType::kFloat64).run({.mods = {plain}, .masks = {Causal{}}}),
              Call(DType::kFloat64).run({.mods = {nonsense}, .masks = {Causal{}}}));
}

// A double constant in a float32 call rounds the same in both passes: weights that sum to 1 in the
// forward pass do so in the backward pass, and the gradient of a constant v is 0.
TEST(Mods, BothPassesSeeTheSameScores) {
  const Tensor q = normal({3, 4}, 1);
  Tensor k = normal({5, 4}, 2);
  for (float& x : k.values<float>()) x *= 300;
  const ScoreMod tenth = score_mod([](auto s, At) { return s * 0.1; });
  const ScoreMod same = score_mod([](auto s, At) {
    if constexpr (std::is_same_v<decltype(s), float>) {
      return static_cast<float>(s * 0.1);
    } else {
      return s * 0.1;
    }
  });
  Tensor a(DType::kFloat32, {5, 4});
  Tensor b(DType::kFloat32, {5, 4});
  Tensor out(DType::kFloat32, {3, 4});
  Tensor lse(DType::kFloat32, {3});
  for (auto& [mod, dk] : {std::pair(tenth, &a), std::pair(same, &b)}) {
    attention({q, k, k}, {.mods = {mod}}, {.out = out, .lse = lse});
    attention_backward({q, k, k}, {.mods = {mod}}, {out, lse}, {.out = out}, {.v = *dk});
  }
  EXPECT_TRUE(same_bits(a, b));
  // dv with dout = 1 is each key's weight over all queries: their sum is the number of queries.
  Tensor ones(DType::kFloat32, {3, 4});
  for (float& x : ones.values<float>()) x = 1;
  attention_backward({q, k, k}, {.mods = {tenth}}, {out, lse}, {.out = ones}, {.v = a});
  double sum = 0;
  for (float x : a.values<float>()) sum += static_cast<double>(x) / 4;
  EXPECT_NEAR(sum, 3, 3e-5);
}

// The callable is copied into the mod, and lives as long as it.
TEST(Mods, OwnTheirCallable) {
  ScoreMod mod;
  {
    const std::vector<double> table{1, 2, 3, 4, 5, 6, 7};
    mod = score_mod([table](auto s, At at) { return s + table[static_cast<std::size_t>(at.j)]; });
  }
  const std::vector<double> bias{1, 2, 3, 4, 5, 6, 7};
  expect_same(Call(DType::kFloat64).run({.bias = bias}),
              Call(DType::kFloat64).run({.mods = {mod}}));
}

// Every operation of Dual against the complex-free definition: central differences in float64.
TEST(Dual, EveryOperationHasItsDerivative) {
  using F = std::function<Dual<double>(Dual<double>)>;
  const std::vector<std::pair<const char*, F>> functions{
      {"+", [](auto x) { return x + x + 2 + (3 + x); }},
      {"-", [](auto x) { return -x - 2 - (3 - x * 3); }},
      {"*", [](auto x) { return x * x * 2 * (3 * x); }},
      {"/", [](auto x) { return (x / (x + 2)) / 3 + 2 / x; }},
      {"+=",
       [](auto x) {
         auto y = x;
         y += 1;
         y *= x;
         y -= 2;
         y /= 3;
         return y;
       }},
      {"exp", [](auto x) { return exp(2 * x); }},
      {"log", [](auto x) { return log(x * 3); }},
      {"log1p", [](auto x) { return log1p(x * 3); }},
      {"sqrt", [](auto x) { return sqrt(x + 2); }},
      {"tanh", [](auto x) { return tanh(x * 0.5); }},
      {"sin", [](auto x) { return sin(x * 2); }},
      {"cos", [](auto x) { return cos(x * 2); }},
      {"atan", [](auto x) { return atan(x * 2); }},
      {"abs", [](auto x) { return abs(x - 1) + abs(1 - x * x); }},
      {"pow", [](auto x) { return pow(x, 2.5) + pow(x, 3); }},
      {"min", [](auto x) { return min(x * x, 2 * x - 0.5) + min(x, 1) + min(0.5F, x); }},
      {"max", [](auto x) { return max(x * x, 2 * x - 0.5) + max(x, 1) + max(0.5F, x); }},
      {"select", [](auto x) { return select(x > 1, x * x, x) + select(x < 1, 0.0, x); }}};
  const double h = std::cbrt(2e-16);
  for (const auto& [name, f] : functions) {
    for (double x : {0.3, 0.7, 1.9}) {
      const double slope = f(Dual<double>(x, 1)).slope;
      const double difference =
          (f(Dual<double>(x + h)).value - f(Dual<double>(x - h)).value) / (2 * h);
      EXPECT_NEAR(slope, difference, 1e-8 * (1 + std::fabs(slope))) << name << " at " << x;
      EXPECT_EQ(f(Dual<double>(x)).slope, 0) << name << " of a constant";
    }
  }
}

// The numbers of both passes are the same; of equal ones the first is chosen, as by std::min.
TEST(Dual, TheSmallerAndTheLargerOfTwo) {
  const double nan = std::nan("");
  for (const double a : {-1.0, 0.0, 2.5, nan}) {
    for (const double b : {-1.0, 0.0, 2.5, nan}) {
      const Dual<double> x(a, 3), y(b, 5);
      const auto expect = [&](const Dual<double>& got, double plain, double slope) {
        EXPECT_TRUE(got.value == plain || (std::isnan(got.value) && std::isnan(plain)));
        EXPECT_EQ(got.slope, slope) << a << ", " << b;
      };
      expect(min(x, y), std::min(a, b), b < a ? 5 : 3);
      expect(max(x, y), std::max(a, b), a < b ? 5 : 3);
      expect(min(x, b), std::min(a, b), b < a ? 0 : 3);
      expect(max(a, y), std::max(a, b), a < b ? 5 : 0);
      EXPECT_TRUE(min(a, b) == std::min(a, b) || std::isnan(std::min(a, b)));
    }
  }
  EXPECT_EQ(max(0, 0.5F), 0.5F) << "not cut to an integer";
  EXPECT_EQ(min(1, 0.5), 0.5);
}

TEST(Mods, MinAndMaxHaveGradients) {
  const ScoreMod cut = score_mod([](auto s, At) { return max(-0.5, min(s, 0.5)); });
  const ScoreMod same = score_mod([](auto s, At) {
    const auto half = s * 0 + 0.5;
    return select(s > 0.5, half, select(s < -0.5, -half, s));
  });
  expect_same(Call(DType::kFloat64).run({.mods = {cut}}),
              Call(DType::kFloat64).run({.mods = {same}}));
}

}  // namespace
}  // namespace qkv::test
