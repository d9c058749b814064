// SPDX-License-Identifier: Apache-2.0
#include "tests/support/compare.h"

#include <limits>
#include <vector>

#include <qkv/tensor.h>

namespace qkv::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool accepts(std::vector<double> got, const std::vector<double>& want, const Bound& bound = {}) {
  return static_cast<bool>(compare("x", got, want, bound, ""));
}

TEST(Compare, EqualValuesAgree) {
  EXPECT_TRUE(accepts({1, -2, 0, 1e300}, {1, -2, 0, 1e300}));
  EXPECT_TRUE(accepts({0.0}, {-0.0}));
  EXPECT_TRUE(accepts({}, {}));
}

TEST(Compare, AnyDifferenceFailsWithoutABound) {
  EXPECT_FALSE(accepts({1}, {1 + std::numeric_limits<double>::epsilon()}));
  EXPECT_FALSE(accepts({0}, {std::numeric_limits<double>::denorm_min()}));
}

TEST(Compare, BoundsAddUp) {
  EXPECT_TRUE(accepts({10.75}, {10}, {0.05, 0.25}));
  EXPECT_FALSE(accepts({10.76}, {10}, {0.05, 0.25}));
  EXPECT_TRUE(accepts({-10.75}, {-10}, {0.05, 0.25}));
  EXPECT_FALSE(accepts({10}, {-10}, {0.05, 0.25}));
  EXPECT_FALSE(accepts({0.1}, {0}, {1000, 0})) << "a relative bound allows nothing at 0";
}

TEST(Compare, NanAgainstANumberFails) {
  EXPECT_FALSE(accepts({kNaN}, {1}, {1, 1e9}));
  EXPECT_FALSE(accepts({1}, {kNaN}, {1, 1e9}));
  EXPECT_FALSE(accepts({kNaN}, {kInfinity}, {1, 1e9}));
  EXPECT_TRUE(accepts({kNaN}, {kNaN}));
}

TEST(Compare, InfinitiesMatchExactly) {
  EXPECT_TRUE(accepts({kInfinity, -kInfinity}, {kInfinity, -kInfinity}));
  EXPECT_FALSE(accepts({kInfinity}, {-kInfinity}, {1, kInfinity}));
  EXPECT_FALSE(accepts({1e308}, {kInfinity}, {1, 1e308}));
  EXPECT_FALSE(accepts({kInfinity}, {1e308}, {1, kInfinity}));
}

TEST(Compare, ABoundThatIsNanAllowsNothing) {
  EXPECT_FALSE(accepts({1}, {1}, {kNaN, 0}));
  EXPECT_FALSE(accepts({1}, {1}, {0, kNaN}));
}

TEST(Compare, AbsentAndWrongNumbersOfElementsFail) {
  EXPECT_FALSE(compare("x", ConstView{}, {}, {}, ""));
  EXPECT_FALSE(accepts({1}, {1, 1}));
  EXPECT_FALSE(accepts({1, 1}, {1}));
  EXPECT_FALSE(accepts({}, {1}));
}

TEST(Compare, ReadsEveryDTypeAndMemoryOrder) {
  const std::vector<double> want{1, 0, 1, 1, 0, 0};
#define QKV_CHECK(name, type, text)                                                         \
  {                                                                                         \
    Tensor x(DType::name, {3, 2});                                                          \
    const View transposed = transpose(View(x), 0, 1);                                       \
    for (Index i = 0; i < 6; ++i) transposed.at<type>({i / 3, i % 3}) = type(want[i] != 0); \
    EXPECT_TRUE(compare(text, transposed, want, {}, ""));                                   \
    transposed.at<type>({1, 2}) = type(true);                                               \
    EXPECT_FALSE(compare(text, transposed, want, {}, ""));                                  \
  }
  QKV_FOR_EACH_DTYPE(QKV_CHECK)
#undef QKV_CHECK
}

TEST(Compare, TheFailureNamesEverything) {
  std::vector<float> got(6, 2.0F);
  got[4] = 2.5F;
  got[5] = 3.0F;
  const std::vector<double> want(6, 2.0);
  const ConstView view(got.data(), {2, 3});
  const testing::AssertionResult result = compare("dq", view, want, {0.0625, 0.25}, "seed 7");
  ASSERT_FALSE(result);
  EXPECT_STREQ(result.message(),
               "dq: at [1,1] of float32 [2,3]: got 2.5, want 2, difference 0.5, bound 0.375 "
               "(relative 0.0625, absolute 0.25); 2 of 6 elements disagree\n  replay: seed 7");
}

TEST(Compare, SpansOfNumbers) {
  const std::vector<float> got{1, 2, 3};
  EXPECT_TRUE(compare("x", std::span(got), std::vector<double>{1, 2, 3}, {}, ""));
  EXPECT_FALSE(compare("x", std::span(got), std::vector<double>{1, 2, 4}, {}, ""));
}

}  // namespace
}  // namespace qkv::test
