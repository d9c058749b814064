// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers.h>

#include "tests/layers/support.h"
#include "tests/support/compare.h"

namespace qkv::test {
namespace {

// Returns the largest distance between the sample's distribution and that of U(-bound, bound).
double kolmogorov_smirnov(std::vector<double> sample, double bound) {
  std::sort(sample.begin(), sample.end());
  const double n = static_cast<double>(sample.size());
  double distance = 0;
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const double cumulative = (sample[i] + bound) / (2 * bound);
    const double rank = static_cast<double>(i);
    distance = std::max({distance, cumulative - rank / n, (rank + 1) / n - cumulative});
  }
  return distance;
}

// Checks mean, variance, range and shape of U(-bound, bound). The limits are four standard errors
// for the moments (the fourth central moment of U(-b, b) is b^4/5), and for the distance
// 1.628/sqrt(n), which Kolmogorov's distribution exceeds with probability 1 %. Seeds are fixed, so
// the outcome is too.
void expect_uniform(const std::vector<double>& sample, double bound, const std::string& name) {
  SCOPED_TRACE(name);
  const double n = static_cast<double>(sample.size());
  ASSERT_GE(n, 64);
  double mean = 0;
  double square = 0;
  for (double x : sample) {
    EXPECT_LE(std::fabs(x), bound);
    mean += x / n;
    square += x * x / n;
  }
  const double variance = bound * bound / 3;
  EXPECT_NEAR(mean, 0, 4 * std::sqrt(variance / n));
  EXPECT_NEAR(square, variance, 4 * std::sqrt((1.0 / 5 - 1.0 / 9) / n) * bound * bound);
  EXPECT_LT(kolmogorov_smirnov(sample, bound), 1.628 / std::sqrt(n));
}

TEST(Initialise, EveryParameterIsUniformWithinOneOverRootOfFanIn) {
  MultiHeadAttention split({.width = 96, .heads = 4, .dtype = DType::kFloat64});
  initialise(split, 42);
  for_each_parameter(split, [](const auto& p) {
    expect_uniform(values_of(p.value), 1 / std::sqrt(96.0), p.name);
  });
  MultiHeadAttention wide(
      {.width = 64, .heads = 4, .form = HeadForm::kWide, .dtype = DType::kFloat64});
  initialise(wide, 43);
  for_each_parameter(wide, [](const auto& p) {
    const double fan_in = p.name.starts_with("unify_heads") ? 256 : 64;
    expect_uniform(values_of(p.value), 1 / std::sqrt(fan_in), p.name);
  });
  AdditiveAttention additive(80, 120, 150, 0, DType::kFloat64);
  initialise(additive, 44);
  expect_uniform(values_of(additive.parameters().w_q), 1 / std::sqrt(80.0), "W_q");
  expect_uniform(values_of(additive.parameters().w_k), 1 / std::sqrt(120.0), "W_k");
  expect_uniform(values_of(additive.parameters().v), 1 / std::sqrt(150.0), "v");
  BilinearAttention bilinear(60, 90, 0, DType::kFloat64);
  initialise(bilinear, 45);
  expect_uniform(values_of(bilinear.parameters().w), 1 / std::sqrt(60.0), "W");
}

// Checks that kolmogorov_smirnov is sensitive with expect_uniform's limit, 1.628/sqrt(100 * 100): a
// bound that is 5 % off fails, as do four values with the mean and variance of U(-0.1, 0.1).
TEST(Initialise, TheDistributionCheckCanFail) {
  BilinearAttention layer(100, 100, 0, DType::kFloat64);
  initialise(layer, 1);
  std::vector<double> sample = values_of(layer.parameters().w);
  EXPECT_LT(kolmogorov_smirnov(sample, 0.1), 0.01628);
  EXPECT_GT(kolmogorov_smirnov(sample, 0.105), 0.01628);
  for (double& x : sample) x = std::copysign(std::fabs(x) < 0.05 ? 0.0333 : 0.0745, x);
  EXPECT_GT(kolmogorov_smirnov(sample, 0.1), 0.01628);
}

// The expected numbers follow from the definition in qkv/layers/parameters.h, computed with the
// Philox of tests/oracle_philox.py: counter (element/2, 0, parameter, 1), words 0 and 1 for even
// elements, 2 and 3 for odd ones.
TEST(Initialise, GivesTheNumbersOfTheDefinition) {
  BilinearAttention layer(4, 2, 0, DType::kFloat64);
  initialise(layer, 42);
  const std::vector<double> want{0x1.807e0222043a0p-4, 0x1.23e968b550680p-2, -0x1.2b64805703d3ap-3,
                                 0x1.2dd60bf261ef0p-4, 0x1.7af2590207eb0p-4};
  const ConstView first_five(layer.parameters().w.values<double>().data(), Dims(5));
  EXPECT_TRUE(compare("W", first_five, want, {}, "seed 42"));

  AdditiveAttention other(5, 4, 2, 0, DType::kFloat64);  // W_k is parameter 1
  initialise(other, 0x100000003);
  const std::vector<double> want_k{-0.02756709310746014, -0.10534622914972652,
                                   -0.028460071164611078};
  const ConstView first_three(other.parameters().w_k.values<double>().data(), Dims(3));
  EXPECT_TRUE(compare("W_k", first_three, want_k, {}, "seed 2^32 + 3"));
}

TEST(Initialise, SameSeedSameBitsOtherSeedOtherBits) {
  const auto bytes = [](std::uint64_t seed) {
    MultiHeadAttention layer({.width = 12, .heads = 3});
    initialise(layer, seed);
    return all_bytes(layer);
  };
  EXPECT_EQ(bytes(5), bytes(5));
  EXPECT_NE(bytes(5), bytes(6));
  EXPECT_NE(bytes(5), bytes(5 + (std::uint64_t{1} << 32)));  // both words of the seed count
}

TEST(Initialise, Float32IsRoundedFloat64) {
  AdditiveAttention narrow(5, 7, 9, 0, DType::kFloat32);
  AdditiveAttention wide(5, 7, 9, 0, DType::kFloat64);
  initialise(narrow, 3);
  initialise(wide, 3);
  for_each_parameter(narrow, wide.parameters(), [](const auto& p, const Tensor& exact) {
    std::vector<double> rounded;
    for (double x : exact.values<double>()) rounded.push_back(double{static_cast<float>(x)});
    EXPECT_TRUE(compare(p.name, p.value, rounded, {}, "seed 3"));
  });
}

TEST(Initialise, EachParameterHasAStreamOfItsOwn) {
  // A parameter's size does not affect the others; each starts with a different number.
  AdditiveAttention a(5, 7, 9);
  AdditiveAttention b(5, 70, 9);
  initialise(a, 3);
  initialise(b, 3);
  EXPECT_EQ(bytes_of(a.parameters().w_q), bytes_of(b.parameters().w_q));
  EXPECT_EQ(bytes_of(a.parameters().v), bytes_of(b.parameters().v));

  MultiHeadAttention layer({.width = 8, .heads = 2});
  EXPECT_EQ(initialise(layer, 3), 8);
  std::set<float> firsts;
  for_each_parameter(layer,
                     [&](const auto& p) { firsts.insert(p.value.template values<float>()[0]); });
  EXPECT_EQ(firsts.size(), 8U);

  // A model's second layer continues the parameter indices of the first, so the layers differ.
  MultiHeadAttention second({.width = 8, .heads = 2});
  EXPECT_EQ(initialise(second, 3, 8), 16);
  EXPECT_NE(all_bytes(layer), all_bytes(second));
  EXPECT_THROW(initialise(second, 3, -1), Error);
}

TEST(DropoutSeed, GivesTheNumbersOfTheDefinition) {
  // The expected numbers are words 0 and 1 at the counter (step low, step high, 0, 2), from
  // tests/oracle_philox.py.
  EXPECT_EQ(dropout_seed({Mode::kTrain, 0, 0}), 0xadf5a0dbdd2fc514U);
  EXPECT_EQ(dropout_seed({Mode::kTrain, 7, 0}), 0xc949274536500feeU);
  EXPECT_EQ(dropout_seed({Mode::kTrain, 7, 1}), 0xac39d6b5092c163fU);
  EXPECT_EQ(dropout_seed({Mode::kTrain, 0x123456789ABCDEF0, 5000000000}), 0x4242fc04a52ece60U);
}

TEST(Parameters, AreListedOnceWithTheNamesOfTheSeeds) {
  using Names = std::vector<std::string>;
  const MultiHeadAttention split({.width = 6, .heads = 2});
  EXPECT_EQ(names_of(split),
            (Names{"fc_q.weight [6,6]", "fc_q.bias [6]", "fc_k.weight [6,6]", "fc_k.bias [6]",
                   "fc_v.weight [6,6]", "fc_v.bias [6]", "fc_o.weight [6,6]", "fc_o.bias [6]"}));
  const MultiHeadAttention wide({.width = 50, .heads = 8, .form = HeadForm::kWide});
  EXPECT_EQ(names_of(wide),
            (Names{"queries.weight [400,50]", "keys.weight [400,50]", "values.weight [400,50]",
                   "unify_heads.weight [50,400]", "unify_heads.bias [50]"}));
  EXPECT_EQ(names_of(SelfAttention(5)),
            (Names{"queries.weight [5,5]", "keys.weight [5,5]", "values.weight [5,5]"}));
  EXPECT_EQ(names_of(AdditiveAttention(3, 4, 8)), (Names{"W_q [8,3]", "W_k [8,4]", "v [8]"}));
  EXPECT_EQ(names_of(BilinearAttention(3, 4)), (Names{"W [3,4]"}));
  EXPECT_EQ(names_of(DotProductAttention()), Names{});

  EXPECT_EQ(parameter_count(split), 4 * (36 + 6));
  EXPECT_EQ(parameter_count(wide), 4 * 400 * 50 + 50);
  EXPECT_EQ(parameter_count(MLPAttention(3, 4, 8)), 8 * (3 + 4 + 1));
  EXPECT_EQ(parameter_count(DotProductAttention()), 0);
}

TEST(Parameters, GradientsHaveTheSameListAndAreZero) {
  const auto check = [](auto layer) {
    initialise(layer, 1);
    const auto gradients = layer.zero_gradients();
    EXPECT_EQ(names_of(gradients), names_of(layer));
    for_each_parameter(gradients, [&](const auto& p) {
      EXPECT_EQ(p.value.dtype(), DType::kFloat64);
      for (double x : p.value.template values<double>()) EXPECT_EQ(x, 0);
    });
  };
  check(MultiHeadAttention({.width = 6, .heads = 2, .dtype = DType::kFloat64}));
  check(MultiHeadAttention(
      {.width = 6, .heads = 2, .form = HeadForm::kWide, .dtype = DType::kFloat64}));
  check(SelfAttention(5, DType::kFloat64));
  check(AdditiveAttention(3, 4, 8, 0, DType::kFloat64));
  check(BilinearAttention(3, 4, 0, DType::kFloat64));
}

TEST(Parameters, PairsSkipGradientsThatAreAbsent) {
  AdditiveAttention layer(3, 4, 8);
  auto gradients = layer.zero_gradients();
  gradients.w_k = {};
  std::vector<std::string> seen;
  for_each_parameter(layer, gradients, [&](const auto& p, Tensor& gradient) {
    EXPECT_EQ(p.value.shape(), gradient.shape());
    seen.push_back(p.name);
  });
  EXPECT_EQ(seen, (std::vector<std::string>{"W_q", "v"}));
}

}  // namespace
}  // namespace qkv::test
