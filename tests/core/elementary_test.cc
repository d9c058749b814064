// SPDX-License-Identifier: Apache-2.0
#include "core/elementary.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

// Tests the elementary functions against libm in long double. Hashes of their results show that
// these are bit-identical everywhere.
namespace qkv::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns the distance of `got` from the true value `want` in units in the last place of float64.
double error_in_ulp(double got, long double want) {
  int exponent = 0;
  frexpl(want, &exponent);
  return static_cast<double>(fabsl(got - want) / ldexpl(1, std::max(exponent - 53, -1074)));
}

// Random numbers that are equal in every run and with every library.
class Numbers {
 public:
  // Returns a number from -1 to 1.
  double next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(static_cast<std::int64_t>(state_ >> 11) - (std::int64_t{1} << 52)) *
           0x1p-52;
  }

 private:
  std::uint64_t state_ = 1;
};

// The 64-bit FNV-1a hash.
class Hash {
 public:
  void add(double x) {
    const auto bits = std::bit_cast<std::uint64_t>(x);
    for (int byte = 0; byte < 8; ++byte) {
      value_ = (value_ ^ (bits >> (8 * byte) & 0xFF)) * 0x100000001B3U;
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325U;
};

constexpr int kNumbers = 30000;

TEST(Elementary, Exponentials) {
  Numbers numbers;
  Hash hash;
  for (int n = 0; n < kNumbers; ++n) {
    for (const double x : {numbers.next(), numbers.next() * 30, 724 * numbers.next() - 16}) {
      const double got = core::portable_exp(x);
      ASSERT_LE(error_in_ulp(got, expl(x)), 1) << x;
      hash.add(got);
    }
  }
  EXPECT_EQ(hash.value(), 0x17728B1510827553U);
  EXPECT_EQ(core::portable_exp(0.0), 1);
  EXPECT_EQ(core::portable_exp(kInfinity), kInfinity);
  EXPECT_EQ(core::portable_exp(710.0), kInfinity);
  EXPECT_EQ(core::portable_exp(-kInfinity), 0);
  EXPECT_EQ(core::portable_exp(-746.0), 0);
  EXPECT_EQ(core::portable_exp(-745.0), std::numeric_limits<double>::denorm_min());
  EXPECT_TRUE(std::isnan(core::portable_exp(std::nan(""))));
  EXPECT_EQ(core::portable_exp(1.0F), 0x1.5bf0a8p+1F);
}

TEST(Elementary, Logarithms) {
  Numbers numbers;
  Hash hash;
  for (int n = 0; n < kNumbers; ++n) {
    for (const double x : {1 + numbers.next() / 4, 20 + 19.9 * numbers.next(),
                           std::ldexp(1 + numbers.next() / 2, static_cast<int>(n % 2090 - 1070))}) {
      const double got = core::portable_log(x);
      ASSERT_LE(error_in_ulp(got, logl(x)), 1) << x;
      hash.add(got);
    }
  }
  EXPECT_EQ(hash.value(), 0x63DDAB50556234D6U);
  EXPECT_EQ(core::portable_log(1.0), 0);
  EXPECT_EQ(core::portable_log(0.0), -kInfinity);
  EXPECT_EQ(core::portable_log(-0.0), -kInfinity);
  EXPECT_EQ(core::portable_log(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(core::portable_log(-1.0)));
  EXPECT_TRUE(std::isnan(core::portable_log(std::nan(""))));
  EXPECT_EQ(core::portable_log(10.0F), 0x1.26bb1cp+1F);
}

TEST(Elementary, HyperbolicTangents) {
  Numbers numbers;
  Hash hash;
  for (int n = 0; n < kNumbers; ++n) {
    for (const double x : {numbers.next(), numbers.next() * 25, std::ldexp(numbers.next(), -40)}) {
      const double got = core::portable_tanh(x);
      ASSERT_LE(error_in_ulp(got, tanhl(x)), 3) << x;
      hash.add(got);
    }
  }
  EXPECT_EQ(hash.value(), 0xFB45FC5F31AF4909U);
  EXPECT_TRUE(std::signbit(core::portable_tanh(-0.0)));
  EXPECT_EQ(core::portable_tanh(kInfinity), 1);
  EXPECT_EQ(core::portable_tanh(-kInfinity), -1);
  EXPECT_TRUE(std::isnan(core::portable_tanh(std::nan(""))));
}

TEST(Elementary, SinesAndCosinesOfAnglesOfAnySize) {
  Numbers numbers;
  Hash hash;
  for (int n = 0; n < 3 * kNumbers; ++n) {
    const double x = std::ldexp(numbers.next(), n % 62);
    const core::SinCos got = core::portable_sin_cos(x);
    ASSERT_LE(error_in_ulp(got.sin, sinl(x)), 1) << x;
    ASSERT_LE(error_in_ulp(got.cos, cosl(x)), 1) << x;
    hash.add(got.sin);
    hash.add(got.cos);
  }
  for (int n = 62; n < 1024; ++n) {
    const core::SinCos got = core::portable_sin_cos(std::ldexp(1 + numbers.next() / 2, n - 1));
    ASSERT_NEAR(got.sin * got.sin + got.cos * got.cos, 1, 1e-15) << n;
    hash.add(got.sin);
  }
  EXPECT_EQ(hash.value(), 0x98CB2CDD4A994E64U);
  // The expected sines and cosines were computed by mpmath 1.3 with 1400 bits.
  struct {
    int power;
    double sin, cos;
  } const known[] = {{62, -0x1.1c784e462b2d5p-2, -0x1.ebd8c3c160e01p-1},
                     {100, -0x1.0b34b33a3351ap-1, -0x1.b4be60cc2cab9p-1},
                     {200, 0x1.242c9224ddb82p-1, 0x1.a4733a346a990p-1},
                     {400, 0x1.605fa389090cbp-1, -0x1.7373cdaf3e2f2p-1},
                     {700, -0x1.42bd373540b3dp-1, 0x1.8d78a912dee6ap-1},
                     {1000, 0x1.e8cadc6e9585ap-1, 0x1.30cd24a3235cfp-2},
                     {1023, 0x1.6540a80c2fb18p-3, -0x1.f8266285a3621p-1}};
  for (const auto& one : known) {
    const core::SinCos got = core::portable_sin_cos(std::ldexp(0x1.3c0ca428c59fbp+0, one.power));
    EXPECT_LE(error_in_ulp(got.sin, one.sin), 1) << one.power;
    EXPECT_LE(error_in_ulp(got.cos, one.cos), 1) << one.power;
  }
  EXPECT_TRUE(std::signbit(core::portable_sin_cos(-0.0).sin));
  EXPECT_TRUE(std::isnan(core::portable_sin_cos(kInfinity).cos));
  // The first angle is the float64 number closest to a multiple of pi/2 (Muller 2016, table 11.1);
  // the others are rounded multiples of pi/2.
  EXPECT_EQ(core::portable_sin_cos(0x1.6ac5b262ca1ffp+849).cos, -0x1.14ae72e6ba22fp-61);
  for (double k = 1; k < 3e5; k = k * 3 + 1) {
    const double x = k * 0x1.921fb54442d18p+0;
    const core::SinCos got = core::portable_sin_cos(x);
    ASSERT_LE(error_in_ulp(got.sin, sinl(x)), 1) << x;
    ASSERT_LE(error_in_ulp(got.cos, cosl(x)), 1) << x;
  }
}

TEST(Elementary, Powers) {
  Numbers numbers;
  Hash hash;
  for (int n = 0; n < kNumbers; ++n) {
    const double base = std::ldexp(1 + numbers.next() / 2, n % 40 - 10);
    const double near_one = 1 + numbers.next() / 10;
    const double exponents[] = {-2.0 * (n % 64) / 128, numbers.next() * 10, n % 3000 * 1.0};
    for (const double exponent : exponents) {
      const double x = exponent > 10 ? near_one : base;
      const double got = core::Powers(x).of(exponent);
      ASSERT_LE(error_in_ulp(got, powl(x, exponent)), 1) << x << " " << exponent;
      hash.add(got);
    }
  }
  EXPECT_EQ(hash.value(), 0x491A27468A3BB09DU);
  for (int n = 0; n < kNumbers; ++n) {
    const double base = n % 2 == 0 ? 1.6 + 0.4 * numbers.next() : 0.7 + 0.2 * numbers.next();
    const double exponent = 690 * numbers.next() / std::log(base);
    ASSERT_LE(error_in_ulp(core::Powers(base).of(exponent), powl(base, exponent)), 1.5)
        << base << " " << exponent;
  }
  EXPECT_EQ(core::Powers(3).of(0), 1);
  EXPECT_EQ(core::Powers(1).of(1e305), 1);
  EXPECT_EQ(core::Powers(3).of(1e305), kInfinity);
  EXPECT_EQ(core::Powers(3).of(-1e305), 0);
  EXPECT_EQ(core::Powers(0.5).of(-1e305), kInfinity);
  EXPECT_EQ(core::Powers(3).of(2), 9);
  EXPECT_EQ(core::Powers(0).of(0), 1);
  EXPECT_EQ(core::Powers(0).of(2), 0);
  EXPECT_EQ(core::Powers(0).of(-2), kInfinity);
  EXPECT_EQ(core::Powers(0.5).of(2000), 0);
}

}  // namespace
}  // namespace qkv::test
