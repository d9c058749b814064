// SPDX-License-Identifier: Apache-2.0
#include "kernels/logit_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "core/order.h"
#include "kernels/dot_kernels.h"
#include "reference/logits.h"
#include "tests/kernels/targets.h"

namespace qkv::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr Index kLengths[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 200, 1001};

template <class T>
class LogitKernelsOf : public testing::Test {
 protected:
  // Calls f(target, logits) for each target and length.
  template <class F>
  static void for_each_row(const F& f) {
    for_each_supported([&](Target target) {
      for (const Index n : kLengths) f(target, random_values<T>(n, static_cast<unsigned>(n), 5));
    });
  }
};
TYPED_TEST_SUITE(LogitKernelsOf, SumTypes);

TYPED_TEST(LogitKernelsOf, TheLargestIsThatOfTheReference) {
  using T = TypeParam;
  this->for_each_row([](Target target, std::vector<T> x) {
    const LogitKernels<T>& kernels = logit_kernels<T>(target);
    const auto n = static_cast<Index>(x.size());
    EXPECT_EQ(kernels.largest(x.data(), n), reference::largest(x.data(), n)) << n;
    for (T& value : x) {
      const T before = value;
      value = T(99);
      EXPECT_EQ(kernels.largest(x.data(), n), T(99)) << n;
      value = static_cast<T>(kNan);
      EXPECT_TRUE(std::isnan(kernels.largest(x.data(), n))) << n;
      value = before;
    }
  });
}

// The sum is bit-identical with the one that softmax() computes in float64 for the row, padded with
// -inf to a multiple of kPartialSums.
TYPED_TEST(LogitKernelsOf, SumsAreThoseOfSoftmax) {
  using T = TypeParam;
  this->for_each_row([](Target target, const std::vector<T>& x) {
    if (x.empty()) return;
    const LogitKernels<T>& kernels = logit_kernels<T>(target);
    const auto n = static_cast<Index>(x.size());
    const auto largest = static_cast<double>(*std::max_element(x.begin(), x.end()));
    std::vector<double> padded(x.begin(), x.end());
    const Index whole = (n + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
    padded.resize(static_cast<std::size_t>(whole), -kInfinity);
    double max = 0;
    double sum = 0;
    dot_kernels<double>(target).softmax({padded.data(), whole}, 1, whole,
                                        core::kNormalExponent<double>, &max, &sum);
    EXPECT_EQ(kernels.sum_of_exponentials(x.data(), n, largest), sum) << n;
    const double want = reference::sum_of_exponentials(x.data(), n, largest);
    EXPECT_NEAR(sum, want, 1e-14 * want) << n;
  });
}

TYPED_TEST(LogitKernelsOf, FirstFromIsThatOfTheReference) {
  using T = TypeParam;
  this->for_each_row([](Target target, std::vector<T> x) {
    const LogitKernels<T>& kernels = logit_kernels<T>(target);
    const auto n = static_cast<Index>(x.size());
    if (n > 20) x[17] = static_cast<T>(kNan);
    if (n > 70) x[66] = static_cast<T>(-kInfinity);
    for (const double least : {-kInfinity, -3.0, 6.0, 9.0, 1e9}) {
      for (Index begin = 0; begin <= n; ++begin) {
        EXPECT_EQ(kernels.first_from(x.data(), begin, n, static_cast<T>(least)),
                  reference::first_from(x.data(), begin, n, static_cast<T>(least)))
            << n << " from " << begin << " at least " << least;
      }
    }
    if (n == 0) return;
    EXPECT_EQ(kernels.first_from(x.data(), 0, n, x[0]), 0) << "a logit equal to least is found";
  });
}

}  // namespace
}  // namespace qkv::kernels
