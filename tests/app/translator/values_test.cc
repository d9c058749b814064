// SPDX-License-Identifier: Apache-2.0
// Tests the larger of two numbers, and its gradient.
#include "translator/passes/values.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace qkv::app {
namespace {

struct Case {
  double pair[2];
  bool first;  // whether pair[0] is the result and gets the gradient
};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Case kCases[] = {{{1, 2}, false},      {{2, 1}, true},           {{3, 3}, true},
                           {{-0.0, 0.0}, true},  {{kNan, 1}, true},        {{1, kNan}, false},
                           {{kNan, kNan}, true}, {{-kInfinity, 5}, false}, {{kInfinity, 5}, true},
                           {{-1, -2}, true},     {{-2, -1}, false}};

// Enough pairs to fill vectors and leave a remainder.
constexpr std::size_t kPairs = 53;

const Case& case_of(std::size_t n) { return kCases[n % std::size(kCases)]; }

template <class T>
void check_pairs() {
  const auto count = static_cast<Index>(kPairs);
  Tensor pairs(dtype_of<T>, {1, 2 * count}), larger(dtype_of<T>, {1, count}),
      d(dtype_of<T>, {1, count});
  for (std::size_t n = 0; n < kPairs; ++n) {
    for (const std::size_t k : {0, 1}) {
      pairs.values<T>()[2 * n + k] = static_cast<T>(case_of(n).pair[k]);
    }
    d.values<T>()[n] = static_cast<T>(n + 1);
  }
  larger_of_pairs(pairs, larger);
  for (std::size_t n = 0; n < kPairs; ++n) {
    const auto want = static_cast<T>(case_of(n).pair[case_of(n).first ? 0 : 1]);
    const T got = larger.values<T>()[n];
    EXPECT_TRUE(std::isnan(want) ? std::isnan(got)
                                 : got == want && std::signbit(got) == std::signbit(want))
        << n << ": " << got;
  }
  larger_of_pairs_backward(d, pairs);
  for (std::size_t n = 0; n < kPairs; ++n) {
    const bool first = case_of(n).first;
    EXPECT_EQ(pairs.values<T>()[2 * n], first ? static_cast<T>(n + 1) : T(0)) << n;
    EXPECT_EQ(pairs.values<T>()[2 * n + 1], first ? T(0) : static_cast<T>(n + 1)) << n;
  }
}

TEST(Values, TheLargerOfPairsAndItsGradient) {
  check_pairs<float>();
  check_pairs<double>();
}

}  // namespace
}  // namespace qkv::app
