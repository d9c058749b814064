// SPDX-License-Identifier: Apache-2.0
#include "kernels/choice_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/order.h"
#include "kernels/dot_kernels.h"
#include "reference/choice.h"
#include "tests/kernels/targets.h"

namespace qkv::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr Index kLengths[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 200, 1001};

template <class T>
std::vector<T> logits(Index n) {
  std::mt19937_64 random(static_cast<std::uint64_t>(n));
  std::normal_distribution<double> normal(0, 5);
  std::vector<T> all(static_cast<std::size_t>(n));
  for (T& value : all) value = static_cast<T>(normal(random));
  return all;
}

template <class T>
void compare_largest(const ChoiceKernels<T>& kernels) {
  for (const Index n : kLengths) {
    std::vector<T> x = logits<T>(n);
    EXPECT_EQ(kernels.largest(x.data(), n), reference::largest(x.data(), n)) << n;
    for (T& value : x) {
      const T before = value;
      value = T(99);
      EXPECT_EQ(kernels.largest(x.data(), n), T(99)) << n;
      value = static_cast<T>(kNan);
      EXPECT_TRUE(std::isnan(kernels.largest(x.data(), n))) << n;
      value = before;
    }
  }
}

// The bits of softmax, in float64, of the row padded with -inf.
template <class T>
void compare_sums(const ChoiceKernels<T>& kernels, const DotKernels<double>& dot) {
  for (const Index n : kLengths) {
    if (n == 0) continue;
    const std::vector<T> x = logits<T>(n);
    const auto largest = static_cast<double>(*std::max_element(x.begin(), x.end()));
    std::vector<double> padded(x.begin(), x.end());
    const Index whole = (n + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
    padded.resize(static_cast<std::size_t>(whole), -kInfinity);
    double max = 0;
    double sum = 0;
    dot.softmax({padded.data(), whole}, 1, whole, &max, &sum);
    EXPECT_EQ(kernels.sum_of_exponentials(x.data(), n, largest), sum) << n;
    const double want = reference::sum_of_exponentials(x.data(), n, largest);
    EXPECT_NEAR(sum, want, 1e-14 * want) << n;
  }
}

template <class T>
void compare_places(const ChoiceKernels<T>& kernels) {
  for (const Index n : kLengths) {
    std::vector<T> x = logits<T>(n);
    if (n > 20) x[17] = static_cast<T>(kNan);
    if (n > 70) x[66] = static_cast<T>(-kInfinity);
    for (const double least : {-kInfinity, -3.0, 6.0, 9.0, 1e9}) {
      for (Index begin = 0; begin <= n; ++begin) {
        EXPECT_EQ(kernels.first_from(x.data(), begin, n, static_cast<T>(least)),
                  reference::first_from(x.data(), begin, n, static_cast<T>(least)))
            << n << " from " << begin << " at least " << least;
      }
    }
    if (n == 0) continue;
    EXPECT_EQ(kernels.first_from(x.data(), 0, n, x[0]), 0) << "equal is enough";
  }
}

TEST(ChoiceKernels, GiveWhatTheReferenceGives) {
  for_each_supported([](Target target) {
    compare_largest(choice_kernels<float>(target));
    compare_largest(choice_kernels<double>(target));
    compare_sums(choice_kernels<float>(target), dot_kernels<double>(target));
    compare_sums(choice_kernels<double>(target), dot_kernels<double>(target));
    compare_places(choice_kernels<float>(target));
    compare_places(choice_kernels<double>(target));
  });
}

}  // namespace
}  // namespace qkv::kernels
