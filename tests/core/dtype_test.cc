// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/dtype.h>

#include "core/rounding.h"

namespace qkv {
namespace {

// Half the spacing of numbers at x.
double half_quantum(double x, int mantissa_bits, int smallest_exponent) {
  return std::ldexp(0.5, std::max(std::ilogb(x), smallest_exponent) - mantissa_bits);
}

// x rounded to nearest even in a binary format, by real arithmetic: the quantum at x is a power of
// two, x / quantum is exact, and nearbyint() rounds to even. Independent of any bit pattern.
double rounded(double x, int mantissa_bits, int smallest_exponent, double largest) {
  if (x == 0 || !std::isfinite(x)) return x;
  const double quantum = 2 * half_quantum(x, mantissa_bits, smallest_exponent);
  const double result = std::nearbyint(x / quantum) * quantum;
  return std::fabs(result) > largest ? std::copysign(HUGE_VAL, x) : result;
}
double as_bfloat16(double x) { return rounded(x, 7, -126, 0x1.FEp127); }
double as_float16(double x) { return rounded(x, 10, -14, 65504); }

bool same(double a, double b) { return a == b && std::signbit(a) == std::signbit(b); }

// Floats of every exponent, and those at and next to ties.
std::vector<float> test_floats() {
  std::mt19937 random(1);
  std::vector<float> floats{0.0F, -0.0F, std::numeric_limits<float>::infinity()};
  for (int n = 0; n < 200000; ++n)
    floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  for (std::uint32_t half = 0; half < 0x8000; ++half) {
    for (const std::uint32_t low : {0x7FFFU, 0x8000U, 0x8001U, 0x0FFFU, 0x1000U, 0x1001U}) {
      floats.push_back(std::bit_cast<float>((half << 16) | low));
    }
  }
  for (int n = 0; n < 4096; ++n) {  // the subnormal range of float16, ties included
    const float tie = std::ldexp(static_cast<float>(n), -25);
    for (const float x : {tie, std::nextafter(tie, 1.0F), std::nextafter(tie, -1.0F)}) {
      floats.push_back(x);
      floats.push_back(-x);
    }
  }
  return floats;
}

TEST(BFloat16, AllPatternsSurviveTheRoundTrip) {
  int nans = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto narrow = BFloat16::from_bits(static_cast<std::uint16_t>(bits));
    const auto wide = static_cast<float>(narrow);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(wide), bits << 16);
    const bool nan = std::isnan(wide);
    nans += nan;
    EXPECT_EQ(BFloat16(wide).bits, nan ? bits | 0x40U : bits);
  }
  EXPECT_EQ(nans, 2 * 127);
}

TEST(Float16, AllPatternsSurviveTheRoundTrip) {
  int nans = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto narrow = Float16::from_bits(static_cast<std::uint16_t>(bits));
    const auto wide = static_cast<float>(narrow);
    const bool nan = std::isnan(wide);
    nans += nan;
    EXPECT_EQ(Float16(wide).bits, nan ? bits | 0x200U : bits);
    EXPECT_EQ(std::signbit(wide), bits >= 0x8000);
    if (nan || std::isinf(wide)) continue;
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double mantissa = static_cast<double>((bits & 0x3FF) + (exponent > 0 ? 1024 : 0));
    EXPECT_EQ(std::fabs(wide), std::ldexp(mantissa, std::max(exponent, 1) - 25));
  }
  EXPECT_EQ(nans, 2 * 1023);
}

TEST(BFloat16, RoundsToNearestEven) {
  int compared = 0;
  for (const float x : test_floats()) {
    if (std::isnan(x)) continue;
    ++compared;
    const double got = static_cast<float>(BFloat16(x));
    ASSERT_TRUE(same(got, as_bfloat16(x))) << x << " -> " << got << ", want " << as_bfloat16(x);
  }
  EXPECT_GT(compared, 300000);
}

TEST(Float16, RoundsToNearestEven) {
  int compared = 0;
  for (const float x : test_floats()) {
    if (std::isnan(x)) continue;
    ++compared;
    const double got = static_cast<float>(Float16(x));
    ASSERT_TRUE(same(got, as_float16(x))) << x << " -> " << got << ", want " << as_float16(x);
  }
  EXPECT_GT(compared, 300000);
}

TEST(Float16, OverflowsHalfWayPastTheLargest) {
  EXPECT_EQ(Float16(65504.0F).bits, 0x7BFF);
  EXPECT_EQ(Float16(std::nextafter(65520.0F, 0.0F)).bits, 0x7BFF);
  EXPECT_EQ(Float16(65520.0F).bits, 0x7C00);
  EXPECT_EQ(Float16(-1e30F).bits, 0xFC00);
  EXPECT_EQ(Float16(0x1p-25F).bits, 0x0000);
  EXPECT_EQ(Float16(std::nextafter(0x1p-25F, 1.0F)).bits, 0x0001);
}

TEST(BFloat16, OverflowsHalfWayPastTheLargest) {
  EXPECT_EQ(BFloat16(0x1.FEp127F).bits, 0x7F7F);
  EXPECT_EQ(BFloat16(0x1.FEFFFEp127F).bits, 0x7F7F);
  EXPECT_EQ(BFloat16(0x1.FFp127F).bits, 0x7F80);
  EXPECT_EQ(BFloat16(-std::numeric_limits<float>::max()).bits, 0xFF80);
}

TEST(NarrowFloats, NanStaysNanAndIsQuiet) {
  for (std::uint32_t payload = 1; payload < 0x800000; payload += 0x1FF) {
    for (const std::uint32_t sign : {0U, 0x80000000U}) {
      const auto x = std::bit_cast<float>(sign | 0x7F800000U | payload);
      ASSERT_EQ(BFloat16(x).bits & 0x7FC0U, 0x7FC0U) << payload;
      ASSERT_EQ(Float16(x).bits & 0x7E00U, 0x7E00U) << payload;
      ASSERT_EQ(BFloat16(x).bits >> 15, sign >> 31);
      ASSERT_EQ(Float16(x).bits >> 15, sign >> 31);
    }
  }
}

TEST(RoundToOdd, MakesTheWayFromFloat64OneRounding) {
  std::mt19937_64 random(2);
  const auto check = [](double x) {
    const float odd = core::round_to_odd(x);
    ASSERT_TRUE(same(static_cast<float>(BFloat16(odd)), as_bfloat16(x))) << x;
    ASSERT_TRUE(same(static_cast<float>(Float16(odd)), as_float16(x))) << x;
  };
  int different = 0;
  for (int n = 0; n < 100000; ++n) {
    const double x = std::ldexp(std::uniform_real_distribution<double>(-2, 2)(random),
                                static_cast<int>(random() % 320) - 160);
    check(x);
    // At and next to the ties of either format, where rounding twice goes wrong.
    const double sign = std::copysign(1.0, x);
    for (const double tie : {as_bfloat16(x) + sign * half_quantum(x, 7, -126),
                             as_float16(x) + sign * half_quantum(x, 10, -14)}) {
      for (const double near : {tie, std::nextafter(tie, 0.0), tie * (1 + 0x1p-50)}) {
        check(near);
        const auto twice = BFloat16(static_cast<float>(near));
        different += !same(static_cast<float>(twice), as_bfloat16(near));
      }
    }
  }
  EXPECT_GT(different, 10000) << "the test does not reach what rounding twice gets wrong";
}

TEST(DTypes, SizesNamesAndFamilies) {
  EXPECT_EQ(size_of(DType::kNone), 0U);
  EXPECT_EQ(name_of(DType::kNone), "none");
#define QKV_CHECK(name, type, text)              \
  EXPECT_EQ(size_of(DType::name), sizeof(type)); \
  EXPECT_EQ(name_of(DType::name), text);         \
  EXPECT_EQ(dtype_of<type>, DType::name);
  QKV_FOR_EACH_DTYPE(QKV_CHECK)
#undef QKV_CHECK
  EXPECT_TRUE(is_real(DType::kFloat16) && !is_real(DType::kBool) && !is_real(DType::kComplex128));
  EXPECT_TRUE(is_integer(DType::kInt8) && is_integer(DType::kUInt64));
  EXPECT_FALSE(is_integer(DType::kBool) || is_integer(DType::kComplex128));
  EXPECT_EQ(accumulator_of(DType::kBFloat16), DType::kFloat32);
  EXPECT_EQ(accumulator_of(DType::kFloat64), DType::kFloat64);
}

}  // namespace
}  // namespace qkv
