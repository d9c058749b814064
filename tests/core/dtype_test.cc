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

#include "core/floats.h"

namespace qkv {
namespace {

// Returns half the distance between neighbouring numbers of a format near x.
double half_quantum(double x, int mantissa_bits, int smallest_exponent) {
  return std::ldexp(0.5, std::max(std::ilogb(x), smallest_exponent) - mantissa_bits);
}

// Returns x rounded to nearest even in a binary format, without bit patterns: the quantum at x (the
// distance of neighbours) is a power of two, x / quantum is exact, and nearbyint() rounds to even.
double rounded(double x, int mantissa_bits, int smallest_exponent, double largest) {
  if (x == 0 || !std::isfinite(x)) return x;
  const double quantum = 2 * half_quantum(x, mantissa_bits, smallest_exponent);
  const double result = std::nearbyint(x / quantum) * quantum;
  return std::fabs(result) > largest ? std::copysign(HUGE_VAL, x) : result;
}
// The formats of the 16-bit types: bits of the mantissa, least exponent of normal numbers, largest
// number.
struct BFloat16Format {
  using Type = BFloat16;
  static constexpr int kMantissa = 7, kSmallest = -126;
  static constexpr double kLargest = 0x1.FEp127;
};
struct Float16Format {
  using Type = Float16;
  static constexpr int kMantissa = 10, kSmallest = -14;
  static constexpr double kLargest = 65504;
};
template <class Format>
double rounded_to(double x) {
  return rounded(x, Format::kMantissa, Format::kSmallest, Format::kLargest);
}

bool same(double a, double b) { return a == b && std::signbit(a) == std::signbit(b); }

// Returns random floats of every exponent, and floats at and next to ties of the 16-bit types.
std::vector<float> test_floats() {
  std::mt19937 random(1);
  std::vector<float> floats{0.0F, -0.0F, std::numeric_limits<float>::infinity()};
  for (const float sign : {1.0F, -1.0F}) {  // the largest float16, and where rounding overflows
    floats.push_back(sign * 65504.0F);
    floats.push_back(sign * 65520.0F);
    floats.push_back(sign * std::nextafter(65520.0F, 0.0F));
  }
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

template <class Format>
class NarrowFloats : public testing::Test {};
using Formats = testing::Types<BFloat16Format, Float16Format>;
TYPED_TEST_SUITE(NarrowFloats, Formats);

TYPED_TEST(NarrowFloats, AllPatternsSurviveTheRoundTrip) {
  using Narrow = typename TypeParam::Type;
  constexpr std::uint32_t kOne = 1U << TypeParam::kMantissa;
  int nans = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto narrow = Narrow::from_bits(static_cast<std::uint16_t>(bits));
    const auto wide = static_cast<float>(narrow);
    const bool nan = std::isnan(wide);
    nans += nan;
    EXPECT_EQ(Narrow(wide).bits, nan ? bits | kOne / 2 : bits);
    EXPECT_EQ(std::signbit(wide), bits >= 0x8000);
    if (nan || std::isinf(wide)) continue;
    const auto exponent = static_cast<int>(bits % 0x8000 / kOne);
    const double mantissa = bits % kOne + (exponent > 0 ? kOne : 0);
    const int shift = std::max(exponent, 1) - 1 + TypeParam::kSmallest - TypeParam::kMantissa;
    EXPECT_EQ(std::fabs(wide), std::ldexp(mantissa, shift));
  }
  EXPECT_EQ(nans, 2 * static_cast<int>(kOne - 1));
}

TYPED_TEST(NarrowFloats, RoundsToNearestEven) {
  int compared = 0;
  for (const float x : test_floats()) {
    if (std::isnan(x)) continue;
    ++compared;
    const double got = static_cast<float>(typename TypeParam::Type(x));
    const double want = rounded_to<TypeParam>(x);
    ASSERT_TRUE(same(got, want)) << x << " -> " << got << ", want " << want;
  }
  EXPECT_GT(compared, 300000);
}

// A NaN keeps its sign and becomes quiet (highest mantissa bit 1). Other bits may be lost.
TYPED_TEST(NarrowFloats, NanStaysNanAndIsQuiet) {
  constexpr std::uint32_t kQuiet = 0x8000U - (1U << (TypeParam::kMantissa - 1));
  for (std::uint32_t payload = 1; payload < 0x800000; payload += 0x1FF) {
    for (const std::uint32_t sign : {0U, 0x80000000U}) {
      const auto x = std::bit_cast<float>(sign | 0x7F800000U | payload);
      const std::uint32_t bits = typename TypeParam::Type(x).bits;
      ASSERT_EQ(bits & kQuiet, kQuiet) << payload;
      ASSERT_EQ(bits >> 15, sign >> 31);
    }
  }
}

TYPED_TEST(NarrowFloats, RoundingToOddFirstAvoidsDoubleRounding) {
  using Narrow = typename TypeParam::Type;
  std::mt19937_64 random(2);
  const auto check = [](double x) {
    const double got = static_cast<float>(Narrow(core::round_to_odd(x)));
    ASSERT_TRUE(same(got, rounded_to<TypeParam>(x))) << x;
  };
  int different = 0;
  for (int n = 0; n < 100000; ++n) {
    const double x = std::ldexp(std::uniform_real_distribution<double>(-2, 2)(random),
                                static_cast<int>(random() % 320) - 160);
    check(x);
    // Rounding twice gives wrong results at and next to a tie.
    const double half = half_quantum(x, TypeParam::kMantissa, TypeParam::kSmallest);
    const double tie = rounded_to<TypeParam>(x) + std::copysign(half, x);
    for (const double near : {tie, std::nextafter(tie, 0.0), tie * (1 + 0x1p-50)}) {
      check(near);
      const auto twice = static_cast<float>(Narrow(static_cast<float>(near)));
      different += !same(twice, rounded_to<TypeParam>(near));
    }
  }
  EXPECT_GT(different, 5000) << "the test does not reach what rounding twice gets wrong";
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
