// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include <qkv/soft_cap.h>

// Tests cap * tanh(s / cap) against libm in long double: the accuracy stated in qkv/soft_cap.h,
// over the whole range.
namespace qkv::test {
namespace {

template <class T>
class SoftCap : public testing::Test {};
using Reals = testing::Types<float, double>;
TYPED_TEST_SUITE(SoftCap, Reals);

// Returns the distance of soft_cap(s, cap) from the true value in units in the last place, or 0 if
// the true value is subnormal or nearly so.
template <class T>
double error_in_ulp(T s, T cap) {
  const long double want = static_cast<long double>(cap) * tanhl(static_cast<long double>(s) / cap);
  if (fabsl(want) < static_cast<long double>(std::numeric_limits<T>::min()) * 2) return 0;
  int exponent = 0;
  frexpl(want, &exponent);
  const long double ulp = ldexpl(1, exponent - std::numeric_limits<T>::digits);
  return static_cast<double>(fabsl(soft_cap(s, cap) - want) / ulp);
}

TYPED_TEST(SoftCap, IsAccurateEverywhere) {
  using T = TypeParam;
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> logarithm(-60, 6);
  std::uniform_real_distribution<double> linear(-25, 25);
  double worst = 0;
  for (double cap : {1e-30, 1e-3, 0.7, 1.0, 1.9999, 3.0, 30.0, 50.0, 1e30}) {
    const T c = static_cast<T>(cap);
    for (int n = 0; n < 20000; ++n) {
      const double near_zero = cap * std::exp(logarithm(random));
      for (double s : {near_zero, -near_zero, cap * linear(random)}) {
        const double error = error_in_ulp(static_cast<T>(s), c);
        ASSERT_LE(error, 5) << "s = " << static_cast<T>(s) << ", cap = " << c;
        worst = std::max(worst, error);
      }
    }
  }
  EXPECT_GT(worst, 0.5);  // errors were measured
}

TYPED_TEST(SoftCap, SaturatesAndKeepsNaN) {
  using T = TypeParam;
  using Bits = typename detail::SoftCapNumbers<T>::Bits;
  const T infinity = std::numeric_limits<T>::infinity();
  for (T cap : {T(3), T(1e-30), T(1e30), std::numeric_limits<T>::min()}) {
    EXPECT_EQ(soft_cap(infinity, cap), cap);
    EXPECT_EQ(soft_cap(-infinity, cap), -cap);
    EXPECT_EQ(soft_cap(std::numeric_limits<T>::max(), cap), cap);
    EXPECT_TRUE(std::isnan(soft_cap(std::numeric_limits<T>::quiet_NaN(), cap)));
    EXPECT_EQ(std::bit_cast<Bits>(soft_cap(T(0), cap)), Bits{0});
    EXPECT_EQ(std::bit_cast<Bits>(soft_cap(-T(0), cap)), std::bit_cast<Bits>(-T(0)));
  }
  EXPECT_EQ(soft_cap(T(1e-30), T(1e30)), T(1e-30));
  // Subnormal caps give less accurate results, but no NaN for finite scores.
  const T tiny = std::numeric_limits<T>::denorm_min();
  EXPECT_EQ(soft_cap(T(0), tiny), 0);
  EXPECT_EQ(soft_cap(T(1), tiny), tiny);
}

TYPED_TEST(SoftCap, IsAnOddFunctionAndAtMostTheCap) {
  using T = TypeParam;
  for (const T cap : {T(1.9999), T(2), T(30)}) {
    for (int n = 0; n < 200000; ++n) {
      const T s = static_cast<T>(n) / T(20000) * cap;
      const T value = soft_cap(s, cap);
      ASSERT_EQ(soft_cap(-s, cap), -value) << s;
      ASSERT_LE(value, cap) << s;
    }
  }
}

TYPED_TEST(SoftCap, HasTheDerivativeOfTheFormula) {
  using T = TypeParam;
  for (double x : {-70.0, -3.0, -0.1, 0.0, 1e-6, 0.5, 2.0, 9.0, 1e30}) {
    const T s = static_cast<T>(x);
    const Dual<T> capped = soft_cap(Dual<T>{s, T(3)}, 5);
    const double t = std::tanh(x / 5);
    EXPECT_EQ(capped.value, soft_cap(s, 5));
    EXPECT_NEAR(static_cast<double>(capped.slope), 3 * (1 - t * t),
                16 * static_cast<double>(std::numeric_limits<T>::epsilon()));
  }
}

TEST(SoftCapComplex, IsTheFormula) {
  const std::complex<double> s(0.8, 1e-150);
  EXPECT_DOUBLE_EQ(soft_cap(s, 2).real(), soft_cap(0.8, 2));
  EXPECT_DOUBLE_EQ(soft_cap(s, 2.0F).imag() / 1e-150, soft_cap(Dual<double>{0.8, 1}, 2).slope);
}

// The soft-cap can be used in constant expressions, such as tables.
static_assert(soft_cap(0.0F, 30) == 0.0F);
static_assert(soft_cap(1e9, 30) == 30.0);

}  // namespace
}  // namespace qkv::test
