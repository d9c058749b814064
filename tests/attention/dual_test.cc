// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/dual.h>

// The dual numbers by which users' score functions are differentiated. path_edges_test.cc tests the
// meaning of such functions.
namespace qkv::test {
namespace {

// Compares every operation of Dual with central differences in float64.
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
      {"erf", [](auto x) { return erf(x * 2) + erf(-x); }},
      {"erfc", [](auto x) { return erfc(x * 2) + erfc(-x); }},
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

// GELU is x Phi(x), its derivative Phi(x) + x phi(x). `rows` holds x and both. At x = -9, where
// 1 + erf is 0, erfc still has digits.
TEST(Dual, TheExactGelu) {
  const auto by_erf = [](auto x) { return x / 2 * (1 + erf(x / std::sqrt(2.0))); };
  const auto by_erfc = [](auto x) { return x / 2 * erfc(-x / std::sqrt(2.0)); };
  const double rows[][3] = {{0, 0, 0.5},
                            {1, 0.8413447460685429, 1.0833154705876864},
                            {-2, -0.04550026389635842, -0.08523180107819693}};
  for (const auto& [x, value, slope] : rows) {
    for (const Dual<double>& y : {by_erf(Dual<double>(x, 1)), by_erfc(Dual<double>(x, 1))}) {
      EXPECT_NEAR(y.value, value, 1e-15) << x;
      EXPECT_NEAR(y.slope, slope, 1e-15) << x;
    }
    const Dual<float> y = by_erf(Dual<float>(static_cast<float>(x), 1));
    EXPECT_NEAR(y.value, value, 1e-6) << x;
    EXPECT_NEAR(y.slope, slope, 1e-6) << x;
    EXPECT_EQ(by_erf(x), by_erf(Dual<double>(x)).value) << "a plain number";
  }
  const Dual<double> tail = by_erfc(Dual<double>(-9, 1));
  EXPECT_NEAR(tail.value / -1.0157296e-18, 1, 1e-6);
  EXPECT_NEAR(tail.slope / -9.1389374e-18, 1, 1e-6);
}

// min and max choose as std::min and std::max do, the first of equal operands, so that a Dual has
// the value that the plain number has in the forward pass.
TEST(Dual, MinAndMaxChooseAsStdMinAndMaxDo) {
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

}  // namespace
}  // namespace qkv::test
